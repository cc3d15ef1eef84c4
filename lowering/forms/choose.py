"""Choose how the sequences of a batch lie: packed where the target asks for it and the program admits it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import TraceError
from headrace.ir import AttentionType, Layout, Program, State
from headrace.lowering.forms.packed import Pack


@dataclass(frozen=True)
class ChooseLayout:
    """The program has the wanted layout, or `layout_why` says what keeps it padded."""

    wanted: Layout
    name: str = "layout"

    def __call__(self, program: Program) -> Program:
        """Pack where it is wanted and can be; nothing is lost where it can't, since a padded program runs anywhere."""
        if self.wanted is Layout.PADDED:
            return program
        if why := _needs_rows(program):
            return program.with_(layout_why=why)
        try:
            return Pack()(program)
        except TraceError as error:
            return program.with_(layout_why=str(error))


def _needs_rows(program: Program) -> str:
    """What in the program's facts needs a row a sequence; empty where nothing does."""
    if program.signature.arrays:
        return f"It reads {program.signature.arrays[0].name}, which is no sequence of tokens."
    if program.decision.route is not None and program.decision.route.state is State.CUSTOM:
        return f"Its custom state {program.decision.route.name} takes batches of one sequence a row."
    asked = program.facts.interaction
    if asked is not None and asked.expansion is not None and not asked.expansion.attends:
        return "Its queries are filled up with tokens that no other attends to."
    cross = [spec.node for spec in program.nodes.attention if spec.type is AttentionType.ENCODER_DECODER]
    if cross:
        return f"The keys of {cross[0]} come from another sequence than its queries."
    latent = [spec.node for spec in program.nodes.attention if spec.latent]
    return f"The queries of {latent[0]} are the same for each sequence, however long." if latent else ""

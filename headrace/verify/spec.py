"""The specification of a program: every rule, and the stages at which it holds.

What holds of a part alone, whatever the graph, the parts check themselves when they are made (`headrace/ir/part.py`).

A stage is a list of passes (`lowering/pipeline.py`): TRACED up to `recover`, TYPED from `type` to the end of the
analysis, LOWERED for `select`, `layout`, `cache`, `quantize-caches`, `merge`, `quantize` and `tap`, in which the forms
of a lowered program lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.ir.program import Stage
from headrace.verify import decision, nodes, signature
from headrace.verify.signature import Breach
from headrace.verify.view import View

ALWAYS = frozenset(Stage)
WHOLE = frozenset({Stage.TRACED, Stage.TYPED})
TYPED = frozenset({Stage.TYPED, Stage.LOWERED})
LOWERED = frozenset({Stage.LOWERED})


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        check: yields the place of each breach, a node or a fact, and what is wrong there.
        holds: the stages at which it does.
    """

    check: Callable[[View], Iterator[Breach]]
    holds: frozenset[Stage]

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.check.__name__


SPEC: tuple[Rule, ...] = (
    Rule(signature.node_names, ALWAYS),
    Rule(signature.inputs_placed, ALWAYS),
    Rule(signature.input_roles, ALWAYS),
    Rule(signature.dynamic_shapes, ALWAYS),
    Rule(signature.outputs_named, ALWAYS),
    Rule(signature.output_widths, ALWAYS),
    Rule(signature.pooling_output, WHOLE),
    Rule(signature.labels_width, ALWAYS),
    Rule(signature.taps_side_by_side, ALWAYS),
    Rule(nodes.attention_form, ALWAYS),
    Rule(nodes.mask_form, ALWAYS),
    Rule(nodes.masks_agree, ALWAYS),
    Rule(nodes.pool_form, ALWAYS),
    Rule(nodes.lstm_form, ALWAYS),
    Rule(nodes.rows_form, ALWAYS),
    Rule(nodes.caches_kept, LOWERED),
    Rule(nodes.cache_scales, LOWERED),
    Rule(nodes.quantized_form, ALWAYS),
    Rule(nodes.specs_match_nodes, TYPED),
    Rule(nodes.recurrences_match_nodes, TYPED),
    Rule(nodes.recovered_named, TYPED),
    Rule(decision.route_agrees, TYPED),
    Rule(decision.tasks_decided, ALWAYS),
    Rule(decision.ready, LOWERED),
)

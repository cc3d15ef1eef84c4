"""Keep of a program what one task reads."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import graphs
from headrace.errors import LoadError, TaskNotEnabledError
from headrace.ir import Output, OutputKind, Program, Stage, Task
from headrace.tasks import refusal

# The outputs that answer a task, the first that the program has.
ANSWERS = {
    Task.EMBED: (OutputKind.EMBEDDING,),
    Task.TOKEN_EMBED: (OutputKind.TOKEN_EMBEDDING, OutputKind.HIDDEN),
    Task.CLASSIFY: (OutputKind.SEQUENCE_LOGITS,),
    Task.SCORE: (OutputKind.SEQUENCE_LOGITS,),
    Task.TOKEN_CLASSIFY: (OutputKind.TOKEN_LOGITS,),
    Task.FILL_MASK: (OutputKind.VOCABULARY_LOGITS,),
    Task.GENERATE: (OutputKind.VOCABULARY_LOGITS,),
    Task.SPARSE_EMBED: (OutputKind.VOCABULARY_LOGITS,),
}


def answering(program: Program, task: Task) -> Output:
    """The output that a supported task is answered from."""
    return next(found for kind in ANSWERS[task] if (found := program.output(kind)) is not None)


@dataclass(frozen=True)
class SelectTask:
    """The program returns the one output that the task is answered from, and holds only the weights that it reads."""

    task: Task
    name: str = "select"

    def __call__(self, program: Program) -> Program:
        """Cut the other outputs away.

        Raises:
            TaskNotEnabledError: the task is not supported.
            LoadError: the checkpoint lacks weights that the task reads.
        """
        if not any(decision.supported and decision.task is self.task for decision in program.tasks):
            raise TaskNotEnabledError(refusal(program, self.task))
        output = answering(program, self.task)
        exported = graphs.keep_outputs(program.graph, (program.outputs.index(output),))
        if lacking := sorted(set(program.missing) & set(exported.state_dict)):
            raise LoadError(
                f"The checkpoint has no weights for {', '.join(lacking[:5])}{' ...' * (len(lacking) > 5)}, which "
                f"{self.task} reads: they would be random. Give a checkpoint that was trained for {self.task}."
            )
        kept = {node.name for node in exported.graph.nodes}
        attention = tuple(spec for spec in program.attention if spec.node in kept)
        return program.with_(exported=exported, outputs=(output,), attention=attention, stage=Stage.LOWERED)

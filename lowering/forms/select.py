"""Keep of a program what one task reads."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import graphs
from headrace.errors import LoadError, TaskNotEnabledError
from headrace.ir import TARGET, OutputKind, Program, Stage, Task
from headrace.tasks import answering, refusal


@dataclass(frozen=True)
class SelectTask:
    """The program returns the one output that the task is answered from, and holds only the weights that it reads.

    Where that is the encoder's, the decoder and its inputs are gone.

    Attributes:
        beside: kinds of outputs that are kept too, where the program has them.
    """

    task: Task
    beside: tuple[OutputKind, ...] = ()
    name: str = "select"

    def __call__(self, program: Program) -> Program:
        """Cut the other outputs away.

        Raises:
            TaskNotEnabledError: the task is not supported.
            LoadError: the checkpoint lacks weights that the task reads.
        """
        if not any(decision.supported and decision.task is self.task for decision in program.decision.tasks):
            raise TaskNotEnabledError(refusal(program, self.task))
        output = answering(program, self.task)
        beside = tuple(
            other for other in program.signature.outputs if other.kind in self.beside and other is not output
        )
        outputs = (output, *beside)
        decoded = frozenset(given.name for given in program.signature.inputs if TARGET in given.axes)
        exported = graphs.keep_outputs(
            program.graph, tuple(program.signature.outputs.index(one) for one in outputs), decoded
        )
        if lacking := sorted(set(program.evidence.missing) & set(exported.state_dict)):
            raise LoadError(
                f"The checkpoint has no weights for {', '.join(lacking[:5])}{' ...' * (len(lacking) > 5)}, which "
                f"{self.task} reads: they would be random. Give a checkpoint that was trained for {self.task}."
            )
        inputs = tuple(given for given in program.signature.inputs if given.name in graphs.inputs_of(exported))
        return program.of_graph(exported, inputs=inputs, outputs=outputs, stage=Stage.LOWERED)

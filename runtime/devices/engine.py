"""An engine whose requests are answered by processes of several devices."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from headrace.backends.several import Parallel, Several
from headrace.errors import ArtifactError, TargetError
from headrace.ir import OutputKind, Program, Task
from headrace.runtime.devices.dealing import Answers, answers
from headrace.runtime.devices.messages import Describe, Prepare, Save
from headrace.runtime.devices.pool import Pool
from headrace.runtime.devices.unread import unread
from headrace.runtime.devices.writing import written
from headrace.runtime.engine.compiler import Compiler, Run
from headrace.runtime.engine.decoding import DecodingLoop
from headrace.runtime.engine.engine import Engine, require_batch_size
from headrace.runtime.engine.lane import Lane, key_of
from headrace.runtime.engine.request import Request
from headrace.runtime.places import IN_ORDER, Places
from headrace.runtime.progress import bar
from headrace.runtime.ragged import Ragged
from headrace.runtime.state.model_state import ModelState
from headrace.runtime.tasks.generate import Part as Written
from headrace.runtime.text.prefetch import Sizes
from headrace.runtime.text.texts import Texts
from headrace.utils.forks import OfEachProcess


class Afar:
    """An executable that the processes of the devices hold."""

    def __init__(self, lane: str, pool: Callable[[], Pool], whole: bool) -> None:
        """Of a lane, by its key; `whole` is whether each of them has all of it."""
        self.calls, self._lane, self._pool, self._whole = 0, lane, pool, whole

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """It runs where it is."""
        raise AssertionError("steps are made where they run")

    def save(self, path: Path) -> None:
        """Have the first device's process write it.

        Raises:
            ArtifactError: each has a part.
        """
        if not self._whole:
            raise ArtifactError(
                "The model is split over its devices, and none has an executable of all of it to save. Compile it for "
                "one device, and save that."
            )
        self._pool().ask(lambda call: Save(call, self._lane, str(path)), devices=1)


class Elsewhere(Compiler):
    """Has lanes made by the processes of the devices, and describes them here."""

    def __init__(
        self,
        program: Program,
        backend: Several,
        state: type[ModelState],
        token_budget: int | None,
        pool: Callable[[], Pool],
    ) -> None:
        """Ask nothing yet; `pool` is called at the first question."""
        super().__init__(program, backend, state, token_budget)
        self._pool, self._whole = pool, backend.parallel is Parallel.DATA

    def lane(self, tasks: Sequence[Task], kinds: Sequence[OutputKind], held: Sequence[str], run: Run) -> Lane:
        """As of `Compiler`, of each device."""
        program = self._pool().ask(lambda call: Prepare(call, tuple(map(str, tasks))))
        return self.described(key_of(kinds), program)

    def encoder(self) -> Lane:
        """As of `Compiler`: it was made with the decoder."""
        program = self._pool().ask(lambda call: Describe(call, str(OutputKind.CROSS)), devices=1)
        return self.described(OutputKind.CROSS, program)

    def described(self, key: str, program: Program) -> Lane:
        """A lane whose executable is elsewhere."""
        return Lane(program, Afar(key, self._pool, self._whole), self._state(program))


class SharedEngine(Engine):
    """Prepares nothing and runs nothing itself: each device's process has an engine of its own."""

    backend: Several
    shares = True

    def __init__(
        self,
        program: Program,
        backend: Several,
        make: Callable[[], Pool],
        token_budget: int | None = None,
        lanes: Mapping[str, Lane] | None = None,
        state: type[ModelState] | None = None,
    ) -> None:
        """Start no process yet.

        Args:
            make: starts the processes.
            lanes: what the processes read back.
        """
        super().__init__(program, backend, token_budget, state=state)
        self._made = OfEachProcess(make)
        self.compiler = elsewhere = Elsewhere(program, backend, self.state, token_budget, self._made)
        for key, lane in (lanes or {}).items():
            self.lanes[key] = elsewhere.described(key, lane.program)

    @property
    def pool(self) -> Pool:
        """The processes, each of which has its model; started when they are first asked for."""
        return self._made()

    def begin(self) -> None:
        """Start the processes now."""
        self._made()

    def close(self) -> None:
        """End the processes, if there are any."""
        if (pool := self._made.made) is not None:
            pool.close()

    def sizes(self, *tasks: str, progress: bool | None = None) -> Sizes:
        """As of `Engine`, of all devices together."""
        one, devices = super().sizes(*tasks, progress=progress), self.backend.replicas
        return Sizes(one.first * devices, one.growth, one.largest * devices)

    def parts(self, reader: Any, listed: Sequence[Any], **options: Any) -> Iterator[Any]:
        """Texts are tokenised where they are answered."""
        if not isinstance(reader, Texts) or isinstance(listed, Ragged):
            return super().parts(reader, listed, **options)
        return unread(reader, listed, self.program.facts.text.truncates, **options)

    def answered_together(
        self,
        tasks: Sequence[str],
        parts: Iterable[Sequence[Request]],
        count: int,
        batch_size: int | None = None,
        progress: bool | None = None,
        places: Places = IN_ORDER,
    ) -> Iterator[Answers]:
        """As of `Engine`: each part is dealt out to the devices."""
        require_batch_size(batch_size)
        self.joint_lane(tasks, progress)
        named = tuple(map(str, tasks))
        reading = closing(parts) if isinstance(parts, Generator) else nullcontext()
        with reading, bar(f"{', '.join(tasks)}: {self._noun}", places.count(range(count)), progress) as shown:
            asked = (named, count, batch_size)
            for requests, rows in answers(self.pool, self.backend.parallel, asked, parts, places):
                yield requests, rows
                shown.advance(places.count(requests))

    @property
    def decodes(self) -> bool:
        """Whether each device makes tokens: of a model that is split they do not yet."""
        return self.backend.decodes

    def decoding(self, progress: bool | None = None) -> DecodingLoop:
        """There is none here.

        Raises:
            TargetError: always.
        """
        raise TargetError(
            f"The target {self.backend.target} has a loop that makes tokens on each device, and none that callers "
            "share. Call generate or generate_iter, or serve the model on one device."
        )

    def written(self, prompts: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Written]:
        """Each device goes on from whole prompts."""
        return written(self.pool, prompts, options)

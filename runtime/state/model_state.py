"""Model states: what lives between the calls of one compiled program, one class a route of contract B."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.backends.interface import Executable, Memory
from headrace.errors import ArtifactError, InputError
from headrace.ir import Program, State
from headrace.lowering.decide import route
from headrace.runtime.cache.store import CacheStore, Held


class ModelState:
    """Runs one batch at a time. Subclass it and register it to keep something of your own between calls.

    Of a cached program it keeps what each sequence leaves for its next step; of any other, nothing.
    """

    reuses_prefixes = False
    """Whether what one sequence left serves another that begins with the same tokens."""

    def __init__(self, program: Program) -> None:
        """Begin with nothing kept."""
        self.program = program
        self.store: CacheStore | None = None
        self.encode: Callable[[Any], Any] | None = None

    def keep_in(self, memory: Memory, limit: int | None = None, encode: Callable[[Any], Any] | None = None) -> None:
        """Make room for what the program keeps; nothing where it keeps nothing.

        Args:
            limit: bytes at most; None takes what the target allows.
            encode: of an encoder-decoder, a text or an array to what its decoder reads of it, rows on the target.
        """
        self.encode = encode
        if self.program.form.caches:
            self.store = CacheStore(self.program, memory, limit or memory.cache_bytes(), self.reuses_prefixes)

    def admit(self, tokens: Sequence[int], source: Any = None) -> Held | None:
        """Room for a sequence, None where there is none now. What is known of its tokens already is in it.

        Args:
            source: of an encoder-decoder, what the encoder reads.
        """
        return self.store.admit(tokens) if self.store else Held()

    def reserve(self, held: Held, count: int) -> bool:
        """Room for so many more of its tokens, or none: whether there is."""
        return self.store is None or self.store.reserve(held, count)

    def commit(self, held: Held, tokens: Sequence[int], count: int) -> None:
        """A step that ran so many more of its tokens is done; `tokens` are all that have run."""
        if self.store:
            self.store.commit(held, tokens, count)

    def fork(self, held: Held) -> Held | None:
        """What a sequence holds, for one that goes on from the same tokens; None where there is no room for it."""
        return self.store.fork(held) if self.store else Held()

    def release(self, held: Held) -> None:
        """A sequence is over, or begins anew."""
        if self.store:
            self.store.release(held)

    def step(self, executable: Executable, inputs: Mapping[str, Any]) -> Any:
        """One batch in, the program's output out.

        Args:
            inputs: int64 [batch, sequence] each, by the program's input names, in the target's own form: tensors of
                torch, or arrays of numpy where onnxruntime runs the program. The caches of a cached program are
                added to them here.
        """
        return executable({**inputs, **self.store.arrays} if self.store else inputs)


class EncoderOnlyState(ModelState):
    """B3: bidirectional, so each sequence is whole in one unchunked pass and nothing outlives it: it has no cache."""


class DecoderState(ModelState):
    """B5: causal. Keys and values outlive a step where text is generated; a pooled answer needs one pass and none."""

    reuses_prefixes = True


class HybridState(ModelState):
    """B4: recurrent state, beside a KV cache where there is attention.

    A prefix is known again where the state at its end was kept, which a step that ended there did.
    """

    reuses_prefixes = True


class EncoderDecoderState(ModelState):
    """B2: an answer from the text alone runs the encoder, and the head's decoder, once.

    Where text is generated, the encoder's keys and values are written once and the decoder's grow. A decoder's prefix
    means something else under another text, so none is known again.
    """

    def admit(self, tokens: Sequence[int], source: Any = None) -> Held | None:
        """Room for a target, and what the encoder makes of its text in it."""
        held = super().admit(tokens)
        if held is None or self.store is None:
            return held
        assert self.encode is not None, "an encoder-decoder's state is told how to encode"
        if not self.store.write_cross(held, self.encode(source)):
            self.store.release(held)
            return None
        return held


STATES: dict[State, type[ModelState]] = {
    State.ENCODER_DECODER: EncoderDecoderState,
    State.ENCODER_ONLY: EncoderOnlyState,
    State.DECODER: DecoderState,
    State.HYBRID: HybridState,
}
_custom: dict[str, type[ModelState]] = {}


def register_model_state(name: str, state: type[ModelState], when: Callable[[Program], bool]) -> None:
    """Have programs of your choice run by a state of your own (contract B1).

    Args:
        name: how `explain` and saved artifacts call it; loading an artifact needs the same registration.
        state: a subclass of `ModelState`.
        when: reads a typed program and says whether the state is for it. Registered states are asked in order.

    Raises:
        InputError: one of them is something else.
        ValueError: the name is taken by another state.
    """
    if not isinstance(name, str) or not name:
        raise InputError(f"name is {reprlib.repr(name)}; the state's name is accepted, a str.")
    if not isinstance(state, type) or not issubclass(state, ModelState):
        raise InputError(f"state is {reprlib.repr(state)}; a subclass of headrace.ModelState is accepted.")
    if not callable(when):
        raise InputError(f"when is {reprlib.repr(when)}; a function of a Program that returns a bool is accepted.")
    if _custom.get(name, state) is not state:
        raise ValueError(f"A model state named {name!r} is registered already: {_custom[name].__qualname__}.")
    _custom[name] = state
    route.registered[name] = when


def unregister_model_state(name: str) -> None:
    """Forget a registered state; programs compiled with it keep it."""
    _custom.pop(name, None)
    route.registered.pop(name, None)


def brought_state(module: Any) -> type[ModelState] | None:
    """The state class that a user's module brings as `headrace_state`, of itself or of a module within.

    Raises:
        InputError: it brings something else by that name.
    """
    brought = (getattr(part, "headrace_state", None) for part in module.modules())
    found = next((state for state in brought if state is not None), None)
    if found is not None and not (isinstance(found, type) and issubclass(found, ModelState)):
        raise InputError(f"The module's headrace_state is {found!r}; it must be a subclass of headrace.ModelState.")
    return found


def state_class(program: Program, brought: type[ModelState] | None = None) -> type[ModelState]:
    """The class of the state that the program's route names, to be kept by whoever makes states of it.

    Names of custom states are looked up here alone: a model that is made keeps the class, whatever is registered later.

    Args:
        brought: the class that the program's own module brought. Two modules may bring classes of one name.

    Raises:
        ArtifactError: a custom state that no module brought and that is not registered in this process (contract B6).
    """
    assert program.decision.route is not None, "routed programs only"
    if program.decision.route.state is not State.CUSTOM:
        return STATES[program.decision.route.state]
    if brought is not None:
        return brought
    name = program.decision.route.custom or ""
    if name not in _custom:
        raise ArtifactError(
            f"The model runs with the custom state {name!r}, which is not registered here. Call "
            f"headrace.register_model_state({name!r}, ...) first."
        )
    return _custom[name]

"""What the eager model does, measured: the callable that the probe holds its annotations against (contract A3).

Everything here runs the original module, with transformers' eager attention, on one unpadded sequence: on a padded
one, fully masked rows attend to everything and a causal model looks bidirectional.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from headrace.frontend.capture.attention import Call, capture, implementation
from headrace.frontend.eager.float64 import Widened, in_float64
from headrace.frontend.eager.model import EagerModel
from headrace.frontend.eager.signature import (
    Served,
    call,
    encoder_rows,
    head_rows,
    positions,
    rows_of,
    signature,
)
from headrace.frontend.probe.influence import Given, measured, rows_given, weighed
from headrace.frontend.probe.windows import SHRUNK, candidates, set_to
from headrace.ir import MaskKind, Window
from headrace.sample import with_new_end

# Above so many parameters the probe makes no float64 copy, and widens weights as they are read, which is slower; above
# so many more it runs in the model's own dtype, since that would take minutes.
COPIED_PARAMETERS, WIDENED_PARAMETERS = 100_000_000, 2_000_000_000
# Rows of a decoder's target beside an array, and of runs that are short enough to be remembered.
SHORT = 12
# The halves of an encoder-decoder, and the input that holds the tokens of each.
TEXT, TARGET = "text", "target"
IDS = {TEXT: "input_ids", TARGET: "decoder_input_ids"}
# What every module holds beside what its class gives it.
BARE = nn.Module()
# For each attention in call order and each row that was changed, the rows of its output that changed with it.
Reached = list[dict[int, frozenset[int]] | None]
# For each attention, the path of the module that computes it; None where it went through the interface.
Places = tuple[str | None, ...]
T = TypeVar("T")


class Ran(NamedTuple):
    """What the copy returned, the backbone's rows (of an encoder-decoder, the decoder's), and the encoder's."""

    output: Any
    rows: Tensor
    encoded: Tensor


class Behaviour:
    """The eager module, ready to be perturbed."""

    def __init__(self, served: Served, model: EagerModel) -> None:
        """Keep the module; nothing is copied or run before the first measurement."""
        self._served, self._module, self._seen = served, model.module, model.seen
        # Encoder and decoder are probed with a text and a target of their own, also where a head makes the latter.
        inner = model.signature if self._seen.pair is None else signature(self._seen.pair)
        self._signature = replace(inner, arrays=model.signature.arrays)
        # What looks at the model returned is for them alone: a probe's runs are of a copy.
        self._model = replace(model, signature=self._signature, samples={}, returned={})
        self._ran: dict[Any, Ran] = {}

    @torch.no_grad()
    def outputs(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """What the eager model answers, in the order of the program's outputs and in the running dtype."""
        with implementation(self._module, "eager"):
            answers: tuple[Tensor, ...] = self._served(**inputs)
        return answers

    @property
    def weights(self) -> list[Tensor]:
        """The module's parameters, as they were loaded."""
        return list(self._module.parameters())

    @cached_property
    def _double(self) -> nn.Module:
        """The module in float64: a change too small for float32 still shows there."""
        large = self._parameters > COPIED_PARAMETERS
        double = self._module if large else in_float64(self._module)
        return double if large or self._runs(double, nullcontext()) else self._module

    @cached_property
    def _parameters(self) -> int:
        return sum(p.numel() for p in self._module.parameters())

    @cached_property
    def _widens(self) -> bool:
        """Whether the module itself stands for its copy, and runs in float64 all the same."""
        large = COPIED_PARAMETERS < self._parameters <= WIDENED_PARAMETERS
        return large and self._runs(self._module, Widened())

    def _runs(self, module: nn.Module, precision: AbstractContextManager[Any]) -> bool:
        try:
            with implementation(module, "eager"), torch.no_grad(), precision:
                call(self._part(module), self._signature, self._inputs(2))
        except Exception:  # its own code names float32
            return False
        return True

    @contextmanager
    def _exact(self) -> Iterator[None]:
        """Eagerly, and in float64 where the module can."""
        precision = Widened() if self._widens else nullcontext()
        with implementation(self._double, "eager"), torch.no_grad(), precision:
            yield

    @cached_property
    def _probed(self) -> nn.Module:
        """What the probe runs: the copy, of an encoder-decoder the module that takes both text and target."""
        return self._part(self._double)

    def _part(self, copied: nn.Module) -> nn.Module:
        return copied if self._seen.pair is None else counterpart(self._seen.pair, self._module, copied)

    def stack_change(self, length: int, changed: str = TEXT, seen: str = TEXT) -> float:
        """Change the last token; the largest change of an earlier hidden row, relative to the largest value there.

        Args:
            changed: the half of an encoder-decoder whose token changes, `TEXT` or `TARGET`.
            seen: the half whose rows are compared: all of them where it is the other half.
        """
        before = self._rows(self._inputs(length), seen)
        after = self._rows(self._changed(length, changed), seen)
        kept = slice(None, -1) if changed == seen else slice(None)
        if self._signature.arrays and changed == seen == TEXT:
            # A row of an array has no token of its own: its last quarter is new, and the first half's rows are seen.
            kept = slice(None, (before.shape[1] + 1) // 2)
        return float((before - after)[:, kept].abs().max() / before[:, kept].abs().max().clamp(min=1e-30))

    def _changed(self, length: int, half: str) -> dict[str, Tensor]:
        """The inputs with another last token in one half."""
        name = IDS[half]
        inputs = self._inputs(length)
        if self._signature.arrays and half == TEXT:
            arrays = self._signature.arrays
            return inputs | {given.name: with_new_end(inputs[given.name], given) for given in arrays}
        ids = inputs[name].clone()
        others = self._inputs(length, seed=1)[name][0]
        ids[0, -1] = next((i for i in others if i != ids[0, -1]), (ids[0, -1] + 1) % self._model.vocabulary)
        return inputs | {name: ids}

    def looks(self, places: Places) -> list[Hashable]:
        """For each attention what its module's code goes by, but for weights: those that are equal run the same.

        Something that nothing else equals where no module is known to compute it.
        """
        owners = self._owners(places)
        inside = {part for owner in owners if owner is not None for part in owner.modules()}
        numbered = _numbered(one for one in self._double.named_modules() if one[1] in inside)
        return [object() if owner is None else look(owner, numbered) for owner in owners]

    def reach(
        self,
        length: int,
        keys: tuple[int, ...],
        places: Places,
        rounding: float = 0.0,
        orders: frozenset[int] | None = None,
    ) -> Reached:
        """For each attention in call order and each key position, the other rows of its output that the key reaches.

        One entry is None where the attention's module can't be run again on its own, or computes several at once.

        Args:
            rounding: what changes no row, in units of the last place of the largest value.
            orders: the attentions that are looked at, all where it is None; the entries of others are None.
        """

        def reached(module: nn.Module, given: Given) -> list[dict[int, frozenset[int]] | None]:
            return [measured(module, given, length, keys, allowed=rounding)]

        inputs = self._inputs(length)
        found = self._observed(inputs, places, reached, orders)
        asked = (orders is None or order in orders for order in range(len(places)))
        if any(one is None and place and ask for one, place, ask in zip(found, places, asked, strict=True)):
            # Some models keep a product in a module of its own, which is given no rows: the module around it is.
            around = tuple(place and place.split("@")[0].rpartition(".")[0] for place in places)
            wider = self._observed(inputs, around, reached, orders)
            found = [other if one is None else one for one, other in zip(found, wider, strict=True)]
        return [reached and {key: rows - {key} for key, rows in reached.items()} for reached in found]

    def weigh(self, length: int, keys: tuple[int, ...], places: Places) -> Reached:
        """The other rows that give each key any weight, read off the softmaxes of each attention's module.

        One entry is None where the module's softmaxes are not as many as its attentions.
        """

        def weighing(module: nn.Module, given: Given) -> list[dict[int, frozenset[int]] | None]:
            return list(weighed(module, given, length, keys))

        found = self._observed(self._inputs(length), places, weighing)
        return [rows and {key: others - {key} for key, others in rows.items()} for rows in found]

    def reach_across(self, length: int, keys: tuple[int, ...], places: Places) -> Reached:
        """The same for each row of a second sequence that an attention is given: the rows that it reaches.

        One entry is None where an attention is given none, or one that changes with the target.
        """

        def second(_module: nn.Module, given: Given) -> list[Tensor | None]:
            return [given.get(rows_given(given, length, 1))]

        def reached(module: nn.Module, given: Given) -> list[dict[int, frozenset[int]] | None]:
            return [measured(module, given, length, keys, place=1)]

        inputs = self._inputs(length)
        one, other = (self._observed(x, places, second) for x in (inputs, self._changed(length, TARGET)))
        found = self._observed(inputs, places, reached)
        fixed = [a is not None and b is not None and torch.equal(a, b) for a, b in zip(one, other, strict=True)]
        return [rows if kept else None for rows, kept in zip(found, fixed, strict=True)]

    @contextmanager
    def shrunk(self, call_order: int, window: Window) -> Iterator[list[tuple[MaskKind, Window]] | None]:
        """The same architecture with that attention's window made small: what its masks then declare.

        The window enters through the configuration when the mask is made. Which attribute it is shows in the mask: at
        other values of the attribute, the window is what the same rule makes of those.
        """
        for config, name, rule in candidates(self._double, window):
            small, other = (self._declared(config, name, size) for size in SHRUNK)
            if small is None or other is None:
                continue
            widths = tuple(max(declared[call_order][1]) for declared in (small, other))
            if widths == tuple(map(rule, SHRUNK)):
                self._ran.clear()
                with set_to(config, name, SHRUNK[0]):
                    yield small
                self._ran.clear()
                return
        yield None

    def _declared(self, config: Any, name: str, size: int) -> list[tuple[MaskKind, Window]] | None:
        """What the masks declare with another value of an attribute; None where the model does not run with it."""
        with set_to(config, name, size), suppress(Exception):
            return [(made.kind, made.window) for made in self._captured()]
        return None

    def _captured(self) -> list[Call]:
        # Eager around it: the experts' grouped products know no float64.
        with self._exact(), capture(self._double, grouped=False) as captured:
            call(self._probed, self._signature, self._inputs(2))
        return captured.calls

    def _inputs(self, length: int, seed: int = 0) -> dict[str, Tensor]:
        arrays = self._signature.arrays
        # A decoder of arrays may take a target shorter than their rows: what needs one as long is not measured.
        target = min(length, SHORT) if arrays else length
        inputs = self._model.sample(1, length, seed, target)
        return inputs if arrays else inputs | {"position_ids": positions(1, length, self._model.offset)}

    def _rows(self, inputs: dict[str, Tensor], half: str) -> Tensor:
        run = self._ran.get(self._model.key(inputs)) or self._run(inputs)
        if self._seen.pair is not None and half == TEXT:
            return run.encoded
        # What comes after the backbone may look ahead too: a head's rows count where it has one a token.
        after = head_rows(run.output)
        after = after if after is not None and after.shape[:2] == run.rows.shape[:2] and after.dim() == 3 else None
        return run.rows if after is None else torch.cat([run.rows, after.to(run.rows.dtype)], -1)

    def _run(self, inputs: dict[str, Tensor]) -> Ran:
        """Run the copy; short runs are remembered where rows were returned once: no rerun of a part is among them."""
        backbone = self._counterpart(self._seen.backbone)
        with self._exact(), rows_of(backbone) as rows, rows_of(self._probed, encoder_rows) as encoded:
            output = call(self._probed, self._signature, inputs)
        ran = Ran(output, rows[-1], encoded[-1])
        if len(rows) == len(encoded) == 1 and ran.rows.shape[1] <= SHORT:
            self._ran[self._model.key(inputs)] = ran
        return ran

    def _counterpart(self, module: nn.Module) -> nn.Module:
        return counterpart(module, self._module, self._double)

    def _owners(self, places: Places) -> list[nn.Module | None]:
        """The copy's module that computes each attention."""
        announced = (made.module for made in self._seen.calls)
        paths = dict(self._served.named_modules(remove_duplicate=False))
        inside = set(self._module.modules())
        # Export numbers the calls of a module that is called again.
        found = [next(announced, None) if place is None else paths.get(place.split("@")[0]) for place in places]
        return [self._counterpart(m) if m is not None and m in inside else None for m in found]

    def _observed(
        self,
        inputs: dict[str, Tensor],
        places: Places,
        observe: Callable[[nn.Module, Given], Sequence[T | None]],
        orders: frozenset[int] | None = None,
    ) -> list[T | None]:
        """What `observe` makes of each call of an attention's module and of what it was given, in call order.

        Args:
            places: for each attention, the path of the module whose code computes it; None where it went through
                the interface, which told the module.
            orders: the attentions whose calls are observed, of which `observe` then makes one thing each; None for all.
        """
        with self._exact():
            pass  # Whether it runs so is tried by a run, which is not to be observed.
        owners = self._owners(places)
        found: dict[nn.Module, list[T | None]] = {module: [] for module in owners if module is not None}
        own = {module: [order for order, owner in enumerate(owners) if owner is module] for module in found}
        busy: list[bool] = []

        def passed_over(module: nn.Module) -> bool:
            turn = len(found[module])
            return orders is not None and turn < len(own[module]) and own[module][turn] not in orders

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
            if not busy:
                busy.append(True)
                found[module] += [None] if passed_over(module) else observe(module, dict(enumerate(args)) | kwargs)
                busy.clear()

        hooks = [m.register_forward_hook(hook, with_kwargs=True) for m in found]
        try:
            self._run(inputs)
        finally:
            for made in hooks:
                made.remove()
        whole = {module for module, runs in found.items() if len(runs) == owners.count(module)}
        return [found[owner].pop(0) if owner in whole else None for owner in owners]


def look(module: nn.Module, numbered: frozenset[tuple[type, str]]) -> Hashable:
    """What a module's code goes by, but for weights: its class, its attributes, its buffers, and those of its parts.

    Args:
        numbered: the attributes, by class, that hold the number of a layer, and are none of it.
    """
    hooked = [value.values() for name, value in vars(module).items() if name.endswith("hooks") and value]
    return (
        type(module),
        tuple((name, _plain(value)) for name, value in _own(module) if (type(module), name) not in numbered),
        tuple(id(hook) for hooks in hooked for hook in hooks),
        tuple((name, value.shape, value.dtype) for name, value in module.named_parameters(recurse=False)),
        tuple((name, value.shape, value.dtype, _bytes(value)) for name, value in module.named_buffers(recurse=False)),
        tuple((name, look(part, numbered)) for name, part in module.named_children()),
    )


def _own(module: nn.Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(module).items() if name not in vars(BARE)]


def _plain(value: Any) -> Hashable:
    return value if isinstance(value, bool | int | float | str) else id(value)


def _numbered(modules: Iterable[tuple[str, nn.Module]]) -> frozenset[tuple[type, str]]:
    """The attributes, by class, that hold in each module of that class a number that its path holds too."""
    found: dict[tuple[type, str], bool] = {}
    for path, module in modules:
        numbers = {int(part) for part in path.split(".") if part.isdecimal()}
        for name, value in _own(module):
            key = type(module), name
            found[key] = found.get(key, True) and type(value) is int and value in numbers
    return frozenset(key for key, always in found.items() if always)


def _bytes(buffer: Tensor) -> bytes:
    return buffer.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def counterpart(module: nn.Module, original: nn.Module, copied: nn.Module) -> nn.Module:
    """The copy's module at the place of the original's."""
    pairs = zip(original.modules(), copied.modules(), strict=True)
    return next(twin for one, twin in pairs if one is module)

"""What the eager model does, measured: the callable that the probe holds its annotations against (contract A3).

Everything here runs the original module, with transformers' eager attention, on one unpadded sequence: on a padded
one, fully masked rows attend to everything and a causal model looks bidirectional.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from headrace.frontend.dryrun import DryRun, special_ids
from headrace.frontend.interface import Call, capture, implementation
from headrace.frontend.served import Served, call, first_tensor, positions, rows_of, sample
from headrace.ir import MaskKind, Window

# Above this many parameters, the probe runs in the model's own dtype: a float64 copy would not fit beside it.
COPIED_PARAMETERS = 2_000_000_000
SHRUNK_WINDOW = 8
# Sizes of a change, in standard deviations of the rows.
NOISES = (1.0, 3.0, 3.0, 10.0)


class Behaviour:
    """The eager module, ready to be perturbed."""

    def __init__(self, served: Served, config: Any, seen: DryRun, offset: int) -> None:
        """Keep the module; nothing is copied or run before the first measurement."""
        self._served, self._module, self._seen, self._signature = served, served.model, seen, served.signature
        self._avoid, self._offset = special_ids(config), offset

    @torch.no_grad()
    def outputs(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """What the eager model answers, in the order of the program's outputs and in the running dtype."""
        with implementation(self._module, "eager"):
            answers: tuple[Tensor, ...] = self._served(**inputs)
        return answers

    @cached_property
    def _double(self) -> nn.Module:
        """The module in float64: a change too small for float32 still shows there."""
        if sum(p.numel() for p in self._module.parameters()) > COPIED_PARAMETERS:
            return self._module
        return copy.deepcopy(self._module).double()

    def stack_change(self, length: int) -> float:
        """Change the last token; the largest change of an earlier hidden row, relative to the largest value there."""
        inputs = self._inputs(length)
        changed = inputs | {"input_ids": inputs["input_ids"].clone()}
        others = self._inputs(length, seed=1)["input_ids"][0]
        last = inputs["input_ids"][0, -1]
        changed["input_ids"][0, -1] = next((i for i in others if i != last), (last + 1) % self._seen.vocabulary)
        before, after = self._rows(inputs), self._rows(changed)
        return float((before - after)[:, :-1].abs().max() / before[:, :-1].abs().max().clamp(min=1e-30))

    def reach(self, length: int, keys: tuple[int, ...]) -> list[dict[int, frozenset[int]] | None]:
        """For each attention in call order and each key position, the other rows of its output that the key reaches.

        One entry is None where the attention's module can't be run again on its own.
        """
        found: list[dict[int, frozenset[int]] | None] = []
        with implementation(self._double, "eager"), torch.no_grad(), self._observed(length, keys, found):
            call(self._double, self._signature, self._inputs(length))
        return found

    @contextmanager
    def shrunk(self, call_order: int, window: Window) -> Iterator[list[tuple[MaskKind, Window]] | None]:
        """The same architecture with that attention's window made small: what its masks then declare.

        The window enters through the configuration when the mask is made; which attribute it is shows in the mask.
        """
        for config, name, value in self._window_attributes(window):
            setattr(config, name, SHRUNK_WINDOW)
            try:
                declared = [(made.kind, made.window) for made in self._captured()]
                if declared[call_order][1] != window:
                    yield declared
                    return
            finally:
                setattr(config, name, value)
        yield None

    def _window_attributes(self, window: Window) -> list[tuple[Any, str, int]]:
        left = max(window)
        values = {left, left + 1, 2 * left, 2 * left + 1, 2 * left + 2}
        configs = {id(c): c for m in self._double.modules() if hasattr(c := getattr(m, "config", None), "__dict__")}
        return [
            (config, name, value)
            for config in configs.values()
            for name, value in vars(config).items()
            if isinstance(value, int) and not isinstance(value, bool) and value in values
        ]

    def _captured(self) -> list[Call]:
        with capture(self._double) as captured, torch.no_grad():
            call(self._double, self._signature, self._inputs(2))
        return captured.calls

    def _inputs(self, length: int, seed: int = 0) -> dict[str, Tensor]:
        inputs = sample(1, length, self._seen.vocabulary, self._avoid, seed)
        return inputs | {"position_ids": positions(1, length, self._offset)}

    def _rows(self, inputs: dict[str, Tensor]) -> Tensor:
        backbone = self._counterpart(self._seen.backbone)
        with implementation(self._double, "eager"), torch.no_grad(), rows_of(backbone) as rows:
            call(self._double, self._signature, inputs)
        return rows[-1]

    def _counterpart(self, module: nn.Module) -> nn.Module:
        """The copy's module at the place of the original's."""
        pairs = zip(self._module.modules(), self._double.modules(), strict=True)
        return next(twin for original, twin in pairs if original is module)

    @contextmanager
    def _observed(
        self, length: int, keys: tuple[int, ...], found: list[dict[int, frozenset[int]] | None]
    ) -> Iterator[None]:
        attentions = {id(self._counterpart(m)): self._counterpart(m) for m in {c.module for c in self._seen.calls}}
        busy: list[bool] = []

        def observe(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
            if not busy:
                busy.append(True)
                found.append(_reached(module, args, kwargs, length, keys))
                busy.clear()

        hooks = [m.register_forward_hook(observe, with_kwargs=True) for m in attentions.values()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _reached(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], length: int, keys: tuple[int, ...]
) -> dict[int, frozenset[int]] | None:
    """Run one attention module again with noise in one row of its input at a time."""

    def is_rows(value: Any) -> bool:
        shape = value.shape if isinstance(value, Tensor) and value.is_floating_point() else ()
        return tuple(shape[:2]) == (1, length) and len(shape) == 3

    place: Any = next((i for i, value in enumerate(args) if is_rows(value)), None)
    name: Any = next((n for n, value in kwargs.items() if is_rows(value)), None)
    if place is None and name is None:
        return None

    def run(rows: Tensor) -> Tensor | None:
        if place is not None:
            return first_tensor(module.forward(*args[:place], rows, *args[place + 1 :], **kwargs))
        return first_tensor(module.forward(*args, **(kwargs | {name: rows})))

    given: Tensor = args[place] if place is not None else kwargs[name]
    before = run(given)
    if before is None or before.shape[:2] != (1, length):
        return None

    def reached_by(key: int) -> frozenset[int]:
        seen: frozenset[int] = frozenset()
        for noise in _noises(given):
            rows = given.clone()
            rows[0, key] += noise
            after = run(rows)
            assert after is not None
            seen |= frozenset((after != before).flatten(2).any(-1)[0].nonzero().flatten().tolist())
            if len(seen) == length:
                break
        return seen - {key}

    return {key: reached_by(key) for key in keys}


def _noises(rows: Tensor) -> Iterator[Tensor]:
    """Changes of one row, each with its opposite.

    A trained attention can be so sharp that a key's weight vanishes even in float64. A score is about linear in the
    key, so of a large change and its opposite one raises it: what a query can see shows in one of them.
    """
    generator = torch.Generator().manual_seed(0)
    spread = rows.double().std()
    for scale in NOISES:
        noise = scale * spread * torch.randn(rows.shape[2], generator=generator, dtype=torch.float64)
        yield noise.to(rows.dtype)
        yield -noise.to(rows.dtype)

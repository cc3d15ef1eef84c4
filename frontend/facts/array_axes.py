"""Models that read arrays in place of token ids: the shape of what they read, found by trying it on the eager model.

Images and features are of one size, which a processor's or the model's configuration names. Audio samples may be of
any length; how many make the first row, and how many more the next, shows in what the model returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from headrace.errors import TraceError
from headrace.frontend.capture.attention import implementation
from headrace.frontend.eager.model import EagerModel
from headrace.frontend.eager.run import rows_returned
from headrace.ir import BATCH, Axis, Input, Role

# No first row within so many samples: the model does not read audio samples.
MOST_SAMPLES = 1 << 16


def fit_arrays(model: EagerModel, processor: Mapping[str, Any]) -> EagerModel:
    """The model with the axes of the arrays that it reads; as it was for one that reads token ids.

    Args:
        processor: what the model folder says of its image processor or feature extractor; empty without one.

    Raises:
        TraceError: the model accepts no shape that is known of.
    """
    if not model.signature.reads_arrays:
        return model
    name, configs = model.signature.inputs[0], list(_configs(model.module))
    met: list[str] = []
    with implementation(model.module, "eager"), torch.no_grad():
        for axes in dict.fromkeys(SHAPES[name](configs, processor)):
            try:
                return _reading(model, _fitted(model, Input(name, Role.ARRAY, "float32", (BATCH, *axes))))
            except Exception as error:  # whatever the model raises on a shape that it does not take
                met.append(f"{_shape(axes)}: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}")
    raise TraceError(
        f"The model reads {name}, but takes it in no shape that its configuration names. Tried: "
        f"{'; '.join(met) or 'nothing, the configuration names no size'}. Set image_size and num_channels, or "
        "num_mel_bins and max_source_positions, in the configuration to what the model reads."
    )


def _shape(axes: tuple[Axis, ...]) -> str:
    return "[" + ", ".join(f"{axis.name} {axis.size or 'any'}" for axis in axes) + "]"


def _configs(module: nn.Module) -> Iterator[Any]:
    """Every configuration in the model, the outermost first."""
    seen: set[int] = set()
    for inner in module.modules():
        config = getattr(inner, "config", None)
        if config is not None and id(config) not in seen:
            seen.add(id(config))
            yield config


def _named(configs: list[Any], name: str) -> list[Any]:
    return [value for config in configs if (value := getattr(config, name, None)) is not None]


def _images(configs: list[Any], processor: Mapping[str, Any]) -> Iterator[tuple[Axis, ...]]:
    """What the processor makes, if the folder has one, else the size that the configuration names."""
    sizes = [processor.get("crop_size"), processor.get("size"), *_named(configs, "image_size")]
    for size in sizes:
        if (pair := _pair(size)) is not None:
            for channels in [*_named(configs, "num_channels"), 3]:
                yield Axis("channels", int(channels)), Axis("height", pair[0]), Axis("width", pair[1])


def _pair(size: Any) -> tuple[int, int] | None:
    """A size as configurations write it: one int, two of them, or named."""
    if isinstance(size, Mapping):
        size = (size["height"], size["width"]) if {"height", "width"} <= set(size) else None
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[1])) if isinstance(size, (tuple, list)) and len(size) == 2 else None


def _waves(configs: list[Any], processor: Mapping[str, Any]) -> Iterator[tuple[Axis, ...]]:
    """Samples of any number, else a spectrogram of one size."""
    yield (Axis("samples"),)
    for frames, bins in zip(_named(configs, "max_length"), _named(configs, "num_mel_bins"), strict=False):
        yield Axis("frames", int(frames)), Axis("mel bins", int(bins))


def _features(configs: list[Any], processor: Mapping[str, Any]) -> Iterator[tuple[Axis, ...]]:
    """A spectrogram whose convolution halves it to the positions that there are."""
    for bins, places in zip(_named(configs, "num_mel_bins"), _named(configs, "max_source_positions"), strict=False):
        yield Axis("mel bins", int(bins)), Axis("frames", 2 * int(places))


SHAPES: dict[str, Callable[[list[Any], Mapping[str, Any]], Iterator[tuple[Axis, ...]]]] = {
    "pixel_values": _images,
    "input_values": _waves,
    "input_features": _features,
}


def _fitted(model: EagerModel, given: Input) -> Input:
    """The input, if the model takes it, with what its free axis must hold for one row, and for one more."""
    free = next((place for place, axis in enumerate(given.axes) if place and axis.size is None), None)
    if free is None:
        _rows(model, given)
        return given

    def sized(size: int) -> Input:
        return _with(given, free, Axis(given.axes[free].name, size))

    first = _smallest(lambda size: _yields(model, sized(size), 1), 1)
    second = _smallest(lambda size: _yields(model, sized(size), 2), first + 1)
    # Export makes a single row a graph of its own (a norm over time refuses it, a view drops it): two at least.
    return _with(given, free, Axis(given.axes[free].name, None, first, second - first, least=second))


def _with(given: Input, place: int, axis: Axis) -> Input:
    return replace(given, axes=(*given.axes[:place], axis, *given.axes[place + 1 :]))


def _reading(model: EagerModel, given: Input) -> EagerModel:
    return replace(model, signature=replace(model.signature, arrays=(given,)))


def _rows(model: EagerModel, given: Input) -> int:
    reading = _reading(model, given)
    return int(rows_returned(reading, reading.sample(1, 1)).shape[1])


def _yields(model: EagerModel, given: Input, rows: int) -> bool:
    """Whether that size makes so many rows; a convolution refuses what is shorter than its kernel."""
    try:
        return _rows(model, given) >= rows
    except RuntimeError:
        return False


def _smallest(holds: Callable[[int], bool], start: int) -> int:
    """The smallest size from `start` on for which `holds`, which then goes on holding."""
    below, size = start - 1, start
    while not holds(size):
        below, size = size, 2 * size
        if size > MOST_SAMPLES:
            raise TraceError(f"up to {MOST_SAMPLES} samples yield no row")
    while size - below > 1:
        middle = (below + size) // 2
        below, size = (below, middle) if holds(middle) else (middle, size)
    return size

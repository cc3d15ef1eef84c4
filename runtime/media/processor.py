"""What a folder's processor makes of images and sound: the arrays that its model reads."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, missing_library
from headrace.ir import Input
from headrace.runtime.media.images import is_image, read_image
from headrace.runtime.media.sound import is_sampled, read_sound


class Processor:
    """The image processor or feature extractor of a model's folder; made when something is first given to it."""

    def __init__(self, given: Input, said: str) -> None:
        """Read nothing yet.

        Args:
            given: the model's input.
            said: the processor's configuration, as JSON.
        """
        self._input, self._said = given, said
        sizes = {axis.name: axis.size for axis in given.axes}
        self.images, self._channels = "height" in sizes, sizes.get("channels") or 3

    @property
    def accepts(self) -> str:
        """What it makes arrays of, in words."""
        if self.images:
            return "paths of image files, images of Pillow's and uint8 arrays of pixels"
        return "paths of WAV files and (samples, rate)"

    def takes(self, one: Any) -> bool:
        """Whether something is for it; floats without a rate are the model's own arrays."""
        if isinstance(one, (str, os.PathLike)):
            return True
        if not self.images:
            return is_sampled(one)
        pixels = getattr(one, "dtype", None) == np.uint8 and np.ndim(one) in (2, 3)
        return is_image(one) or pixels

    def array(self, one: Any, number: int) -> NDArray[np.float32]:
        """The array without a batch axis that the model reads of it.

        Args:
            number: of the request, for messages.

        Raises:
            InputError: it cannot be read, or the processor refuses it.
            TargetError: a library that this needs is not installed.
        """
        options: dict[str, Any]
        if self.images:
            options = {"images": self._image(one, number)}
        else:
            rate = int(self._made.sampling_rate)
            # Sound beyond what the model reads is refused by its shape, not cut.
            options = {"raw_speech": read_sound(one, rate, number), "sampling_rate": rate, "truncation": False}
        try:
            made = self._made(**options, return_tensors="np")[self._input.name][0]
        except Exception as error:  # whatever the processor raises on what it does not take
            raise InputError(f"Request {number} is refused by the model's own processor: {error}") from error
        found: NDArray[np.float32] = np.asarray(made, np.float32)
        return found

    def _image(self, one: Any, number: int) -> Any:
        return np.asarray(one) if hasattr(one, "dtype") else read_image(one, self._channels, number)

    @cached_property
    def _made(self) -> Any:
        try:
            from headrace.frontend.load.processor import make_processor
        except ImportError as error:
            raise (missing_library(error, "Reading images and sound by the model's processor") or error) from error
        return make_processor(json.loads(self._said), self.images)

"""Image files by Pillow."""

from __future__ import annotations

import os
import sys
from typing import Any

from headrace.errors import InputError, missing_library


def is_image(one: Any) -> bool:
    """Whether something is an image of Pillow's: of a library that nobody has imported, there is none."""
    found = sys.modules.get("PIL.Image")
    return found is not None and isinstance(one, found.Image)


def read_image(one: Any, channels: int, number: int) -> Any:
    """An image file or an image of Pillow's as the processors of transformers are given it: upright, in its colours.

    Args:
        channels: of the model's input; 1 reads shades of grey.
        number: of the request, for messages.

    Raises:
        InputError: no image can be read there.
        TargetError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise (missing_library(error, "An image file") or error) from error
    try:
        opened = one if is_image(one) else Image.open(os.fspath(one))
        return ImageOps.exif_transpose(opened).convert("L" if channels == 1 else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"Request {number}, {one!s}, cannot be read as an image: {error}.") from error

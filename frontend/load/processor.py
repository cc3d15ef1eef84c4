"""The image processor or feature extractor of a folder, made again of what the folder says of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from headrace.frontend.load.config import readable

FILES = ("preprocessor_config.json", "processor_config.json")


def read_processor_config(folder: Path) -> dict[str, Any]:
    """What a folder says of it, empty without one; transformers 5 may write it into the file of a joint processor."""
    for name in FILES:
        if (path := folder / name).is_file():
            with readable(path):
                read = json.loads(path.read_text())
                return dict(read.get("image_processor") or read.get("feature_extractor") or read)
    return {}


def make_processor(said: Mapping[str, Any], images: bool) -> Any:
    """Transformers' processor, as its own loader makes it of such a file.

    Args:
        said: what `read_processor_config` read.
        images: whether it reads images, else sound.

    Raises:
        LoadError: transformers makes none of it.
    """
    loader: Any = transformers.AutoImageProcessor if images else transformers.AutoFeatureExtractor
    with tempfile.TemporaryDirectory() as folder, readable(f"The model's {FILES[0]}"):
        (Path(folder) / FILES[0]).write_text(json.dumps(dict(said)))
        return loader.from_pretrained(folder, trust_remote_code=False)

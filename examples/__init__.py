"""Real pretrained weights for the demo and the tests, without a model hub: `folder("minilm")`."""

from headrace.examples.models import MODELS, cache_folder, folder

__all__ = ["MODELS", "cache_folder", "folder"]

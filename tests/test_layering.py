"""The stages meet only in the IR: who may import whom, and what past the frontend may not be asked of a model.

Each rule is a small function from source text to a list of offences, and is itself tried on text that offends.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("frontend", "lowering", "backends", "runtime", "examples")
MAY_IMPORT = {"headrace": (), "frontend": (), "lowering": (), "backends": (), "examples": (), "runtime": STAGES}
PAST_THE_FRONTEND = ("lowering", "backends", "runtime")

# Evidence that contract A1 and D5 forbid: it says what a model is called, not what it computes.
NAMES_OF_MODELS = {"__class__", "model_type", "architectures"}
NAMES_OF_INPUTS = {"input_ids", "attention_mask", "position_ids", "token_type_ids"}
NAMES_OF_INPUTS |= {"decoder_input_ids", "decoder_attention_mask", "pixel_values", "input_values", "input_features"}
# Where names go out to ONNX files. What a tokenizer calls what it returns, and what manifests of old call inputs, is
# read from there.
BORDER = "headrace.backends.onnx.names"
CLASSES_OF_MODELS = {"Module", "PreTrainedModel", "PretrainedConfig", "PreTrainedConfig"}
# Parameters are tensors, and asking for one is fine.
NO_MODULES = ("torch.nn.Parameter", "torch.nn.parameter.")


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    root = ROOT / "headrace"
    files = [*root.glob("*.py"), *(file for room in rooms() for file in sorted((root / room).rglob("*.py")))]
    found = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}
    for stage in STAGES:
        for file in sorted((ROOT / stage).rglob("*.py")):
            found[".".join(("headrace", *file.relative_to(ROOT).with_suffix("").parts))] = file
    return found


def rooms() -> set[str]:
    """The folders of the package root that are no stage's."""
    return {file.parent.name for file in (ROOT / "headrace").glob("*/__init__.py")} - set(STAGES)


def words() -> set[str]:
    """The modules of the package root, which every stage may import."""
    return {file.stem for file in (ROOT / "headrace").glob("*.py")} - {"__init__"} | rooms()


@pytest.fixture(autouse=True, scope="module")
def _forget() -> Iterator[None]:
    """A million nodes, which the collector of this process would look through from now on."""
    yield
    walked.cache_clear()


@cache
def walked(source: str) -> tuple[ast.AST, ...]:
    """Every node of a source, which most rules look at."""
    return tuple(ast.walk(ast.parse(source)))


def absolute(node: ast.ImportFrom, module: str) -> str:
    """The dotted name that a `from ... import` starts from; `module` ends in __init__ for a package."""
    if not node.level:
        return node.module or ""
    base = module.split(".")[: -node.level]
    return ".".join([*base, *([node.module] if node.module else [])])


def imports(source: str, module: str) -> Iterator[str]:
    """Every dotted name that the source imports, wherever the import stands, by a literal's name too."""
    for node in walked(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{absolute(node, module)}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def bindings(source: str, module: str) -> dict[str, str]:
    """What the names that imports bind stand for."""
    bound: dict[str, str] = {}
    for node in walked(source):
        if isinstance(node, ast.Import):
            bound |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            bound |= {a.asname or a.name: f"{absolute(node, module)}.{a.name}" for a in node.names}
    return bound


def dotted(node: ast.AST, bound: dict[str, str]) -> str:
    """`nn.Module` as `torch.nn.Module`; empty for what is not a dotted name."""
    if isinstance(node, ast.Name):
        return bound.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (base := dotted(node.value, bound)):
        return f"{base}.{node.attr}"
    return ""


def layer_offences(source: str, module: str, root_words: set[str]) -> list[str]:
    """Imports of a stage that this module's folder may not import."""
    layer = module.split(".")[1] if module.split(".")[1] in STAGES else "headrace"
    allowed = {layer, *MAY_IMPORT[layer], *root_words}
    found = []
    for name in imports(source, module):
        first, *rest = name.split(".")
        if first in STAGES:
            found.append(f"{module} imports {name}: it is called headrace.{name}")
        elif first == "headrace" and layer != "runtime" and (not rest or rest[0] not in allowed):
            found.append(f"{module} imports {name}: {layer} may import {sorted(allowed)} of headrace")
    return found


def tools_offences(source: str, module: str) -> list[str]:
    """Imports of the tools by anything but a tool: they stand around the engine, which does without them.

    `explain()` is a method of what the API returns, and asks for its text once it is called.
    """
    if module.startswith("headrace.runtime.tools"):
        return []
    names = imports(source, module)
    tools = [name for name in names if name.startswith("headrace.runtime.tools")]
    return [f"{module} imports {name}" for name in tools if name != "headrace.runtime.tools.inspect.report.explain"]


def private_offences(source: str, module: str) -> list[str]:
    """Uses of private parts of torch and transformers outside of `compat`; ruff's SLF finds those of their objects."""
    if ".compat" in module:
        return []
    bound = bindings(source, module)
    used = set(imports(source, module)) | {dotted(n, bound) for n in walked(source) if isinstance(n, ast.Attribute)}
    used = {name for name in used if name.startswith(("torch.", "transformers.")) and not name.startswith("torch.ops.")}
    return sorted(f"{module} uses {name}" for name in used if re.search(r"\._(?!_)|\.fx\.experimental\.", name))


def transformers_offences(source: str, module: str) -> list[str]:
    """Uses of transformers past the frontend: none, but for tokenizers and utilities in runtime."""
    bound = bindings(source, module)
    used = set(imports(source, module))
    used |= {dotted(node, bound) for node in walked(source) if isinstance(node, ast.Attribute)}
    used = {name for name in used if re.match(r"transformers(\.|$)", name)}
    if module.split(".")[1] == "runtime":
        # The bare module may be imported: what is taken from it appears as an attribute.
        harmless = re.compile(
            r"transformers(\.__version__|\.utils(\..*)?|\.BatchEncoding|\.(\w+\.)*\w*Tokenizer\w*(\..*)?)?$"
        )
        used = {name for name in used if not harmless.match(name) or name.startswith("transformers.models")}
    return sorted(f"{module} uses {name}" for name in used)


def naming_offences(source: str, module: str) -> list[str]:
    """Names that transformers gives a model's inputs: past the frontend an input is known by its role."""
    if module.startswith("headrace.frontend.") or module == BORDER:
        return []
    return [
        f"{module}:{node.lineno}: {node.value}"
        for node in walked(source)
        if isinstance(node, ast.Constant) and node.value in NAMES_OF_INPUTS
    ]


def evidence_offences(source: str, module: str) -> list[str]:
    """Places that ask what a model is called or which class it has."""
    bound = bindings(source, module)
    return [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for node in walked(source)
        if isinstance(node, ast.expr | ast.pattern) and (asks_name(node) or asks_class(node, bound))
    ]


def asks_name(node: ast.AST) -> bool:
    """`x.model_type`, `x["model_type"]`, `x.get("model_type")`, `getattr(x, "model_type")`."""
    if isinstance(node, ast.Attribute):
        return node.attr in NAMES_OF_MODELS
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return isinstance(node.slice, ast.Constant) and node.slice.value in NAMES_OF_MODELS
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("get", "pop", "getattr", "hasattr"):
        return any(isinstance(a, ast.Constant) and a.value in NAMES_OF_MODELS for a in node.args)
    return False


def asks_class(node: ast.AST, bound: dict[str, str]) -> bool:
    """`type(x)`, and `isinstance`, `issubclass` or `case` on a class of transformers or torch.nn."""
    if isinstance(node, ast.MatchClass):
        return is_model_class(dotted(node.cls, bound))
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    if node.func.id == "type":
        return len(node.args) == 1 and not node.keywords
    if node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
        return any(is_model_class(dotted(part, bound)) for part in ast.walk(node.args[1]))
    return False


def is_model_class(name: str) -> bool:
    if name.startswith(NO_MODULES):
        return False
    return name.startswith(("transformers.", "torch.nn.")) or name.rpartition(".")[2] in CLASSES_OF_MODELS


def offences(rule: Callable[[str, str], list[str]], layers: tuple[str, ...]) -> list[str]:
    return [o for name, file in modules().items() if name.split(".")[1] in layers for o in rule(file.read_text(), name)]


def test_every_layer_has_modules() -> None:
    """Else the tests below pass on nothing."""
    names = modules()
    assert {"ir", "errors", "debug", "graphs", "ops"} <= words()
    assert {"headrace.ir.attention", "headrace.ops.packed"} <= names.keys()
    for stage in STAGES:
        assert any(name.startswith(f"headrace.{stage}.") for name in names), stage


def test_stages_import_only_what_they_may() -> None:
    root_words = words()
    found = [
        offence
        for name, file in modules().items()
        if name != "headrace.__init__"  # the public API re-exports from every stage
        for offence in layer_offences(file.read_text(), name, root_words)
    ]
    assert not found, "\n".join(found)


def test_nobody_imports_a_stage_as_a_top_level_package() -> None:
    others = [file for folder in ("tests", "benchmarks", "docs") for file in (ROOT / folder).rglob("*.py")]
    for file in [*others, ROOT / "headrace" / "__init__.py"]:
        bare = {name for name in imports(file.read_text(), "x.y.z") if name.split(".")[0] in STAGES}
        assert not bare, file


def test_nothing_imports_the_tools() -> None:
    found = offences(tools_offences, ("ir", "ops", "graphs", "utils", *STAGES))
    assert not found, "\n".join(found)


def test_no_transformers_model_past_the_frontend() -> None:
    found = offences(transformers_offences, PAST_THE_FRONTEND)
    assert not found, "\n".join(found)


def test_names_and_classes_are_no_evidence_past_the_frontend() -> None:
    """Contract A1 and D5."""
    found = offences(evidence_offences, PAST_THE_FRONTEND)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("headrace.ir", "import headrace.frontend"),
        ("headrace.ir", "def f():\n    from headrace.runtime import api"),
        ("headrace.lowering.pipeline", "from headrace.frontend.trace import trace"),
        ("headrace.lowering.pipeline", "from headrace import backends"),
        ("headrace.lowering.pipeline", "from ..backends import cpu"),
        ("headrace.lowering.__init__", "from ..backends import cpu"),
        ("headrace.backends.cpu", "import headrace"),
        ("headrace.backends.cpu", "from headrace import compile"),
        ("headrace.frontend.load.checkpoint", "import importlib\nimportlib.import_module('headrace.runtime.api')"),
        ("headrace.runtime.api", "import frontend"),
        ("headrace.runtime.api", "from lowering.pipeline import lower"),
    ],
)
def test_layer_rule_finds(module: str, source: str) -> None:
    assert layer_offences(source, module, {"ir", "errors"})


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("headrace.ir", "from headrace.errors import VerifyError"),
        (
            "headrace.lowering.pipeline",
            "from headrace import ir\nfrom headrace.lowering.pipeline import PIPELINE\nimport torch",
        ),
        ("headrace.lowering.__init__", "from .passes import run\nfrom ..ir import Program"),
        ("headrace.runtime.api", "from headrace.frontend import load\nfrom headrace.backends import interface"),
    ],
)
def test_layer_rule_leaves_alone(module: str, source: str) -> None:
    assert not layer_offences(source, module, {"ir", "errors"})


def test_private_corners_stand_behind_compat() -> None:
    found = offences(private_offences, ("ir", "ops", "graphs", "utils", *STAGES))
    assert not found, "\n".join(found)


def test_private_rule() -> None:
    assert private_offences("from torch._ops import OpOverload", "headrace.backends.plan")
    assert private_offences("from torch.utils import _pytree as pytree", "headrace.graphs.run")
    assert private_offences("import torch._dynamo", "headrace.backends.plan")
    assert private_offences("import torch\ntorch._dynamo.reset()", "headrace.backends.plan")
    assert private_offences("from torch.fx.experimental.symbolic_shapes import X", "headrace.lowering.a")
    assert not private_offences("from torch._ops import OpOverload", "headrace.compat.torch")
    assert not private_offences("from torch.utils import data", "headrace.graphs.run")
    assert not private_offences("import torch\ntorch.ops.aten._softmax.default", "headrace.graphs.run")


def test_inputs_are_known_by_their_roles_past_the_frontend() -> None:
    found = [offence for name, file in modules().items() for offence in naming_offences(file.read_text(), name)]
    assert not found, "\n".join(found)
    assert BORDER in modules()


def test_naming_rule() -> None:
    assert naming_offences('ids = inputs["input_ids"]', "headrace.lowering.pipeline")
    assert naming_offences('PADDING = ("attention_mask",)', "headrace.verify.nodes")
    assert naming_offences('IDS = "input_ids"', "headrace.runtime.text.ids")
    assert not naming_offences('ids = inputs["input_ids"]', "headrace.frontend.eager.run")
    assert not naming_offences('IDS = "input_ids"', "headrace.backends.onnx.names")
    assert not naming_offences("def read(token_type_ids):\n    return 'no token_type_ids'", "headrace.runtime.model")


def test_tools_rule() -> None:
    source = "def f():\n    from headrace.runtime.tools import parity"
    assert tools_offences(source, "headrace.runtime.model")
    assert not tools_offences(source, "headrace.runtime.tools.cli.app")
    assert not tools_offences("import headrace.runtime.text", "headrace.runtime.model")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("headrace.lowering.pipeline", "import transformers"),
        ("headrace.backends.cpu", "def f():\n    from transformers import AutoTokenizer"),
        ("headrace.runtime.api", "from transformers import AutoModel"),
        ("headrace.runtime.api", "from transformers import BertConfig"),
        ("headrace.runtime.api", "from transformers.models.bert.tokenization_bert import BertTokenizer"),
        ("headrace.runtime.api", "import transformers as tf\ntf.BertForMaskedLM"),
        ("headrace.runtime.api", "import transformers\ntransformers.models.bert"),
    ],
)
def test_transformers_rule_finds(module: str, source: str) -> None:
    assert transformers_offences(source, module)


@pytest.mark.parametrize(
    "source",
    [
        "from transformers import AutoTokenizer, PreTrainedTokenizerFast, BatchEncoding",
        "import transformers\ntransformers.__version__\ntransformers.AutoTokenizer.from_pretrained('x')",
        "from transformers.utils import logging\nlogging.set_verbosity_error()",
    ],
)
def test_transformers_rule_leaves_tokenizers_to_the_runtime(source: str) -> None:
    assert not transformers_offences(source, "headrace.runtime.api")


@pytest.mark.parametrize(
    "source",
    [
        "model.__class__.__name__",
        "getattr(model, '__class__')",
        "type(model)",
        "config.model_type == 'bert'",
        "config['architectures'][0]",
        "config.get('model_type')",
        "from torch import nn\nisinstance(model, nn.Module)",
        "from torch.nn import Linear as L\nisinstance(model, (str, L))",
        "import torch\nisinstance(model, str | torch.nn.Embedding)",
        "def f(x):\n    from transformers import PreTrainedTokenizerBase as P\n    return issubclass(x, P)",
        "isinstance(config, PretrainedConfig)",
        "import torch\nmatch model:\n    case torch.nn.Module():\n        pass",
    ],
)
def test_evidence_rule_finds(source: str) -> None:
    assert evidence_offences(source, "headrace.lowering.pipeline")


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(text, str | list)",
        "import torch\nisinstance(x, torch.Tensor) or isinstance(x, torch.nn.Parameter)",
        "type('Name', (), {})",
        "x.type(node)",
        "config = {'model_type': 'llama', 'architectures': []}",
        "from torch import fx\nisinstance(x, fx.GraphModule)",
    ],
)
def test_evidence_rule_leaves_alone(source: str) -> None:
    assert not evidence_offences(source, "headrace.lowering.pipeline")

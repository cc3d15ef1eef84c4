"""The wheel holds the whole package, and the package imports where neither torch nor transformers is."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("frontend", "lowering", "backends", "runtime", "examples")

# Run in a fresh interpreter before anything else: what a deployment machine without these libraries sees.
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def configuration() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def built(source: Path, out: Path, kind: str) -> Path:
    """What setuptools makes of a copy of this checkout, without isolation so that no network is needed.

    Of a copy: setuptools writes build/ and *.egg-info beside pyproject.toml.
    """
    files = ["pyproject.toml", "LICENSE", "README.md", "headrace", *STAGES]
    subprocess.run(["cp", "-a", *(ROOT / name for name in files if (ROOT / name).exists()), source], check=True)
    call = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    made = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False, cwd=source)
    assert made.returncode == 0, made.stdout + made.stderr
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout."""
    return built(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages that `pip install -e` writes into, for this checkout alone."""
    file = built(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"), "editable")
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(packages)
    return packages


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, away from the checkout."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_without_torch(code: str, folder: Path) -> str:
    """Runs code where only the unpacked wheel is Headrace and torch cannot be imported."""
    # -I keeps the working folder and PYTHONPATH out; the first entry of sys.path wins over an editable install.
    script = f"{BLOCK}\nsys.path.insert(0, {str(folder)!r})\n{code}"
    command = [sys.executable, "-I", "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_every_folder_ships() -> None:
    found = {".".join(f.parent.relative_to(ROOT).parts) for f in (ROOT / "headrace").glob("**/*.py")}
    for stage in STAGES:
        found |= {"headrace." + ".".join(f.parent.relative_to(ROOT).parts) for f in (ROOT / stage).rglob("*.py")}
    assert found == set(configuration()["tool"]["setuptools"]["packages"])


def test_every_folder_is_a_package() -> None:
    """Without __init__.py a folder is a namespace package, which type checkers and the wheel treat otherwise."""
    folders = {file.parent for stage in STAGES for file in (ROOT / stage).rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_links_point_home() -> None:
    """Type checkers, editors and an uninstalled pytest reach the stages through them."""
    for stage in STAGES:
        link = ROOT / "headrace" / stage
        assert link.is_symlink()
        assert not link.readlink().is_absolute()
        assert link.resolve() == ROOT / stage


def test_base_needs_neither_torch_nor_transformers() -> None:
    names = {re.match(r"[\w-]+", line)[0] for line in configuration()["project"]["dependencies"]}
    assert names == {"numpy", "tokenizers", "safetensors", "typer", "rich"}


def test_wheel_holds_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    expected = {str(file.relative_to(ROOT)) for file in (ROOT / "headrace").glob("**/*.py")} | {"headrace/py.typed"}
    for stage in STAGES:
        files = [file for file in (ROOT / stage).rglob("*") if file.suffix in (".py", ".css")]
        expected |= {f"headrace/{file.relative_to(ROOT)}" for file in files}
    assert expected <= shipped
    stray = {name for name in shipped - expected if ".dist-info/" not in name}
    assert not {name for name in stray if name.endswith(".py")}, "a module ships twice or from elsewhere"
    assert any(name.endswith("licenses/LICENSE") for name in shipped)


def test_wheel_imports_without_torch(unpacked: Path) -> None:
    code = "import headrace, headrace.errors, headrace.ir\nprint(headrace.__file__)\nprint('torch' in sys.modules)"
    where, has_torch = run_without_torch(code, unpacked).split()
    assert Path(where).is_relative_to(unpacked)
    assert has_torch == "False"


def test_missing_torch_names_the_line_that_installs_it(unpacked: Path) -> None:
    code = """
import headrace
from headrace.errors import HeadraceError
try:
    headrace.compile
except HeadraceError as error:
    print(error)
"""
    assert 'pip install "headrace[torch]"' in run_without_torch(code, unpacked)


def test_command_runs_without_torch(unpacked: Path) -> None:
    code = """
from headrace.runtime.tools import cli
sys.argv = ["headrace", "--help"]
try:
    cli.main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert "Usage" in run_without_torch(code, unpacked)


# A user's program, and what a type checker says of each of its lines.
REVEALED = {
    'headrace.compile("folder")': "headrace.runtime.model.CompiledModel",
    'headrace.compile("folder").embed("a text")': "numpy.ndarray",
    'headrace.compile("folder").classify(["a text"])[0].label': "str",
    'headrace.compile("folder").token_classify("a text")[0]': "list[headrace.runtime.tasks.token_classify.Entity]",
    'next(headrace.load("folder").score_iter([("a", "b")]))': "float",
    'headrace.CrossEncoder("folder").num_labels': "int",
}


def test_an_editable_install_is_a_path(editable: Path) -> None:
    """Type checkers read paths, and no hooks: with one, a user's mypy would take everything of ours for Any."""
    assert not list(editable.glob("*finder*"))
    (line,) = (file.read_text() for file in editable.glob("__editable__*.pth"))
    assert (Path(line.strip()) / "headrace" / "py.typed").is_file()
    assert (Path(line.strip()) / "headrace" / "runtime" / "model.py").is_file()


@pytest.mark.slow
def test_types_of_an_editable_install(editable: Path, tmp_path: Path) -> None:
    """Without torch, so that its types need not be read."""
    import numpy

    (editable / "numpy").symlink_to(Path(numpy.__file__).parent)
    program = tmp_path / "program.py"
    program.write_text("import headrace\n" + "".join(f"reveal_type({line})\n" for line in REVEALED))
    python = editable.parents[2] / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--python-executable", python, "--cache-dir", tmp_path / "cache", program]
    # Of a folder apart, so that this checkout's configuration is not read.
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env={"PATH": ""})
    said = re.findall(r'Revealed type is "(.*)"', ran.stdout)
    assert len(said) == len(REVEALED), ran.stdout + ran.stderr
    for found, wanted in zip(said, REVEALED.values(), strict=True):
        assert wanted in found, ran.stdout

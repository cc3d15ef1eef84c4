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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout; built with the environment's setuptools, so that no network is needed."""
    out = tmp_path_factory.mktemp("wheel")
    # Of a copy: setuptools writes build/ and *.egg-info beside pyproject.toml.
    source = tmp_path_factory.mktemp("source")
    files = ["pyproject.toml", "LICENSE", "README.md", "headrace", *STAGES]
    subprocess.run(["cp", "-a", *(ROOT / name for name in files if (ROOT / name).exists()), source], check=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (file,) = out.glob("*.whl")
    return file


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

"""Pages that scripts write are what their scripts write, and the contract's rules are each named by a test."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[1] / "docs"
STALE = "run `make docs`"


def script(name: str) -> ModuleType:
    """A script of docs/ as a module."""
    found = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_pipeline_page_is_not_stale() -> None:
    """But for what differs between versions of the libraries."""
    made = script("make_pipeline")

    def stable(page: str) -> str:
        return re.sub(re.escape(made.VARIES) + r"\n```.*?```", "", page, flags=re.DOTALL)

    written = made.PAGE.read_text()
    assert made.VARIES in written
    assert stable(made.document()) == stable(written), STALE


def test_operators_page_is_not_stale() -> None:
    made = script("make_ir")
    assert made.document() == made.PAGE.read_text(), STALE


def test_every_operator_is_on_its_page() -> None:
    """Modules of operators that the script does not list would be left out."""
    made = script("make_ir")
    rooms = {file.stem for file in (DOCS.parent / "headrace" / "ops").glob("*.py")} - {"__init__"}
    assert set(made.MODULES) == rooms


def test_rooms_are_not_stale() -> None:
    made = script("make_architecture")
    written = made.PAGE.read_text()
    assert made.BEGIN in written
    assert made.END in written
    assert made.document(written) == written, STALE


def test_table_of_tasks_is_not_stale() -> None:
    """README's table is the list of tasks: a task that is added, or changes, is in it."""
    made = script("make_tasks")
    written = made.PAGE.read_text()
    assert made.BEGIN in written
    assert made.END in written
    assert made.document(written) == written, STALE


def test_links_between_pages() -> None:
    """Every relative link of a page leads to a file, and every file that a page names in its table of places exists."""
    root = DOCS.parent
    for page in [*DOCS.glob("*.md"), *root.glob("*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for place in re.findall(
        r"`((?:headrace|frontend|lowering|backends|runtime|docs|tests)/[\w/.]+)`",
        (DOCS / "architecture.md").read_text(),
    ):
        assert (root / place).exists(), place


def test_every_rule_of_the_contract_has_a_test_that_names_it() -> None:
    rules = re.findall(r"^(?:\| )?([A-D]\d)[. |]", (DOCS / "contract.md").read_text(), re.MULTILINE)
    assert len(rules) == 23
    here = Path(__file__)
    tests = "\n".join(file.read_text() for file in here.parent.rglob("*.py") if file != here)
    unnamed = [rule for rule in rules if not re.search(rf"\b{rule}\b", tests)]
    assert not unnamed

"""Write the table of rooms in docs/architecture.md from the folders' own docstrings.

python docs/make_architecture.py     (make docs)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: written by docs/make_architecture.py -->", "<!-- end of rooms -->"
# In the order in which a model passes.
STAGES = ("headrace", "frontend", "lowering", "backends", "runtime", "examples")


def main() -> None:
    """Write the table into the page."""
    PAGE.write_text(document(PAGE.read_text()))
    print(f"wrote {PAGE}")


def document(page: str) -> str:
    """The page with the table as the folders have it now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


def table() -> str:
    """Every folder of the product and its sentence, each stage's own files beside it."""
    rows = [row for stage in STAGES for row in rows_of(ROOT / stage)]
    return "\n".join(["| folder | what stands in it | files |", "|---|---|---|", *rows])


def rows_of(stage: Path) -> Iterator[str]:
    """A stage's folder and those within, depth first; links lead to other stages."""
    for folder in sorted([stage, *(path for path in stage.rglob("*") if path.is_dir())]):
        if (folder / "__init__.py").is_file() and not any(part.is_symlink() for part in (folder, *folder.parents)):
            files = [f"`{file.stem}`" for file in sorted(folder.glob("*.py")) if not file.stem.startswith("__")]
            yield f"| `{folder.relative_to(ROOT)}/` | {sentence(folder)} | {' '.join(files)} |"


def sentence(folder: Path) -> str:
    """The first line of what the folder says of itself."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return text.partition("\n")[0]


if __name__ == "__main__":
    main()

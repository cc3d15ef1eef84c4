"""What loading a saved model imports."""

import subprocess
import sys

LOADS = """
import sys
import headrace
headrace.load
from headrace.backends import backend
backend("cpu", compiles=False)
print(sorted({"torch._dynamo", "torch._inductor.compile_fx", "sympy", "transformers", "triton"} & set(sys.modules)))
"""


def test_loading_imports_neither_a_compiler_nor_transformers() -> None:
    """They take three times as long to import as all the rest of a start."""
    said = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"

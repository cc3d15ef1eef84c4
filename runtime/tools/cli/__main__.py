"""`python -m headrace.runtime.tools.cli`."""

from headrace.runtime.tools.cli import main

main()

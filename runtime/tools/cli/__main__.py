"""`python -m headrace.runtime.tools.cli`."""

from headrace.runtime.tools.cli.app import main

main()

"""`python -m headrace.runtime.cli`."""

from headrace.runtime.cli.app import main

main()

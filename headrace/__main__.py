"""`python -m headrace` is the command `headrace`."""

import importlib

# By name: this package imports no stage, and the command line is one's.
importlib.import_module(".runtime.tools.cli", __package__).main()

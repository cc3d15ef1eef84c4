# Every target installs what it needs: into the active virtual environment, else into one of its own (.venv).
#
#   make demo         install, then show Headrace on real models
#   make test         install, then run the tests
#   make check        lint, types, tests: what CI runs
#   make gate         compile every kernel for every GPU architecture, without a GPU; CI does a part of it, PART=--part
#   make rocm         execute every kernel of the ROCm target in an emulator, and write docs/rocm.md's tables anew
#   make test-oldest  the tests with the oldest torch and transformers supported, in .venv-oldest
#   make docs         write docs/pipeline.md, docs/ir.md and the tables of docs/architecture.md and README.md anew
#   make coverage     write docs/coverage.md and docs/coverage.json anew: every architecture, about half an hour
#   make bundles      record tests/parity/bundles anew, by the reference target
#   make wheel        build dist/headrace-*.whl
#
# Other versions: make demo TORCH='torch==2.11.0'. Another Python: make demo PYTHON=python3.12.

# Pins, so that two runs install the same; pyproject.toml has the range.
TORCH ?= torch==2.13.0
TRANSFORMERS ?= transformers==5.24.0

# Test processes, one thread each.
JOBS ?= 2

SUITABLE = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	if $$p -c '$(SUITABLE)' 2>/dev/null; then echo $$p; break; fi; done)

VENV := $(or $(VIRTUAL_ENV),.venv)
PY := $(VENV)/bin/python

.DELETE_ON_ERROR:
.PHONY: demo test lint check gate rocm test-oldest docs coverage bundles wheel clean FORCE

demo: $(VENV)/.headrace-demo
	$(VENV)/bin/headrace demo

test: $(VENV)/.headrace-dev
	$(PY) -m pytest -q -n $(JOBS) --dist loadfile $(ARGS)

lint: $(VENV)/.headrace-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

check: lint test

gate: $(VENV)/.headrace-dev
	$(PY) -m tests.gate --jobs $(JOBS) $(PART)

rocm: $(VENV)/.headrace-dev
	$(PY) -m docs.make_rocm

test-oldest:
	$(MAKE) test VIRTUAL_ENV='$(CURDIR)/.venv-oldest' TORCH='torch==2.11.*' TRANSFORMERS='transformers==5.17.*'

docs: $(VENV)/.headrace-dev
	$(PY) docs/make_pipeline.py
	$(PY) docs/make_ir.py
	$(PY) docs/make_architecture.py
	$(PY) docs/make_tasks.py

coverage: $(VENV)/.headrace-dev
	$(PY) -m docs.make_coverage --jobs $(JOBS)

bundles: $(VENV)/.headrace-dev
	$(PY) -m tests.parity.make

wheel: $(VENV)/.headrace-dev
	$(PY) -m build --wheel

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

# One stamp an extra: a second `make` installs nothing, unless pyproject.toml or a pin changed.
$(VENV)/.headrace-%: pyproject.toml $(VENV)/.headrace-pins
	$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip --upgrade
	$(PY) -m pip install --disable-pip-version-check "$(TORCH)" "$(TRANSFORMERS)" -e '.[$*]'
	@touch $@

# Always looked at, written only where a pin differs from the last install's.
$(VENV)/.headrace-pins: FORCE | $(PY)
	@printf '%s\n' '$(TORCH)' '$(TRANSFORMERS)' | cmp -s - $@ || printf '%s\n' '$(TORCH)' '$(TRANSFORMERS)' > $@

$(PY):
	@test -n '$(PYTHON)' || { echo 'Headrace needs Python 3.11, 3.12 or 3.13; none is on PATH. Name one: make PYTHON=/path/to/python3.12' >&2; exit 1; }
	@$(PYTHON) -c '$(SUITABLE)' || { echo 'Headrace needs Python 3.11, 3.12 or 3.13; $(PYTHON) is another.' >&2; exit 1; }
	$(PYTHON) -m venv '$(VENV)'

# Needs Python 3.11+ (with venv) and make; everything else is installed into .venv.
# Another Python: make PYTHON=python3.13 demo      Another database: DATABASE_URL=postgresql://... make demo

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
MANAGE := $(PY) manage.py
# The stamp carries the folder's path: a virtualenv cannot be moved, so a moved checkout builds a new one.
STAMP := $(VENV)/installed-$(shell printf '%s' '$(CURDIR)' | cksum | cut -d' ' -f1)

.PHONY: help venv demo test serve bench bench-peers bench-plots lint format typecheck migrations-check crash soak stop clean

help:
	@echo "make demo              run the example orders through real workers"
	@echo "make test              run the tests (ARGS='-k name' adds arguments for pytest)"
	@echo "make serve             web, dashboard, a worker and a stream of orders on http://$(HOST):$(PORT)/"
	@echo "make bench             the benchmarks of this engine    make bench-peers: next to others"
	@echo "make bench-plots       draws docs/performance/*.svg from what they measured"
	@echo "make lint typecheck migrations-check format"
	@echo "make crash soak        the tests that kill workers; the ones that run for long"
	@echo "make stop              stop the embedded PostgreSQL (it stays up between commands)"
	@echo "make clean             stop it and remove all that was made here"

$(STAMP): setup.cfg pyproject.toml
	@set -e; \
	if [ ! -e '$@' ]; then \
	    found=; \
	    for candidate in $${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3 python}; do \
	        if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	            found=$$candidate; break; \
	        fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "make: no Python 3.11 or newer with the venv module was found$${PYTHON:+ as '$$PYTHON'}; install one (Debian: python3 and python3-venv) or name it: make PYTHON=/path/to/python3" >&2; \
	        exit 1; \
	    fi; \
	    echo "Making $(VENV) with $$("$$found" --version)"; \
	    "$$found" -m venv --clear $(VENV); \
	fi; \
	echo "Installing django-saga and what it needs into $(VENV)"; \
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	touch '$@'

export PYTHON

venv: $(STAMP)

demo: $(STAMP)
	@$(MANAGE) migrate --verbosity 0
	@$(MANAGE) shop_demo $(ARGS)

# Files of tests side by side, each process with a database of its own; 0 for one process and no other.
PROCESSES ?= 2

test: $(STAMP)
	$(PY) -m pytest -n $(PROCESSES) --dist loadfile $(ARGS)

HOST ?= 127.0.0.1
PORT ?= 8000

serve: $(STAMP)
	@$(MANAGE) migrate --verbosity 0
	@exec $(PY) -m example_project.serve $(HOST) $(PORT)

bench: $(STAMP)
	$(PY) -m bench $(ARGS)

bench-peers: $(STAMP)
	$(PY) -m bench.peers $(ARGS)

bench-plots: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[plots]'
	$(PY) -m bench.plots

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-logo

format: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

typecheck: $(STAMP)
	$(PY) -m mypy

migrations-check: $(STAMP)
	$(MANAGE) makemigrations --check --dry-run

# The crash tests are part of "make test", with fewer random runs.
CRASH_RUNS ?= 400
crash: $(STAMP)
	CRASH_RUNS=$(CRASH_RUNS) $(PY) -m pytest -m crash $(ARGS)

MINUTES ?= 5
soak: $(STAMP)
	$(PY) -m tests.soak $(MINUTES) $(ARGS)

# Both refuse while somebody is connected: another terminal may be in the middle of a run.
stop:
	@if [ -x $(PY) ]; then $(PY) -m example_project.database stop; fi

clean: stop
	rm -rf .postgres $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

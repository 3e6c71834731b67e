# make build    write the code of specs/rmsnorm.yaml
# make test     run every test, on the CPU if there is no GPU
# make lint     ruff, black and mypy
#
# Each target installs what it needs into .venv. Only make and Python 3.11 or newer must be there;
# PYTHON=... picks another Python, SPECS=... other specs.

SPECS ?= specs/rmsnorm.yaml

# Read only where .venv has to be made.
find_python = for python in python3.13 python3.12 python3.11 python3; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$python; break; fi; done
PYTHON ?= $(shell $(find_python))

BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEPENDENCIES := pyproject.toml constraints.txt

.PHONY: build test lint format check docs clean help
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

build: .venv/.installed  ## write the code of SPECS
	$(BIN)/kgen build $(SPECS)

test: .venv/.installed-test  ## run every test
	$(BIN)/python -m pytest -n auto --durations=10

lint: .venv/.installed-dev  ## ruff, black and mypy
	$(BIN)/ruff check .
	$(BIN)/black --quiet --check --diff .
	$(BIN)/mypy
	$(BIN)/mypy --config-file= --ignore-missing-imports generated/*/op.py

format: .venv/.installed-dev  ## sort imports and format
	$(BIN)/ruff check --fix .
	$(BIN)/black --quiet .

check: .venv/.installed  ## tell whether the generated code and the page of ops are up to date
	$(BIN)/kgen check
	$(BIN)/kgen gallery --check

docs: .venv/.installed  ## write docs/ops.md, the page of ops
	$(BIN)/kgen gallery

clean:  ## remove the virtual environment and all caches
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*  ## /make \1\t/p' Makefile

.venv/bin/python:
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "kgen needs Python 3.11 or newer, $(if $(PYTHON),and $(PYTHON) is not that,and finds none on the PATH)." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi
	@"$(PYTHON)" -m venv .venv || { rm -rf .venv; exit 1; }

.venv/.installed: .venv/bin/python $(DEPENDENCIES)
	$(PIP_INSTALL) -e .
	@touch $@

.venv/.installed-test: .venv/bin/python $(DEPENDENCIES)
	$(PIP_INSTALL) -e '.[test]'
	@touch $@ .venv/.installed

# mypy reads the types of the tests' packages too, and finds kgen by its name through the link.
.venv/.installed-dev: .venv/bin/python $(DEPENDENCIES)
	$(PIP_INSTALL) -e '.[test,dev]'
	@mkdir -p .venv/typing && ln -sfn ../../generator .venv/typing/kgen
	@touch $@ .venv/.installed .venv/.installed-test

# make run     install into .venv, fetch and export the default model, answer PROMPT
# make test    install what the tests need, and run them
# make check   format, lint, strict types, sizes
# A second call of any of them repeats none of the setup.

PYTHON ?= python3
MODEL ?= smollm2-135m-instruct
PROMPT ?= What is the capital of France?
BIN := .venv/bin
SOURCES := edge exporters runtimes tests

export PROMPT

.DEFAULT_GOAL := help
.PHONY: help run test check format clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

run: .venv/.installed
	@$(BIN)/dsedge run $(MODEL) "$$PROMPT"

test: .venv/.tested
	@$(BIN)/python -m pytest

check: .venv/.tested
	$(BIN)/ruff format --check $(SOURCES) .ci
	$(BIN)/ruff check $(SOURCES) .ci
	$(BIN)/mypy
	$(BIN)/python .ci/sizes.py $(SOURCES)

format: .venv/.tested
	$(BIN)/ruff format $(SOURCES) .ci
	$(BIN)/ruff check --fix $(SOURCES) .ci

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache

.venv/.made:
	@$(PYTHON) -c 'import sys; ok = sys.version_info >= (3, 11); print("" if ok else "dsedge needs Python 3.11 or newer and $(PYTHON) is " + sys.version.split()[0] + "; run: make PYTHON=/path/to/python3.11", end="", file=sys.stderr); sys.exit(not ok)'
	@echo "making .venv" >&2
	@$(PYTHON) -m venv .venv
	@# Dependency groups need pip 25.1.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@touch $@

.venv/.installed: pyproject.toml | .venv/.made
	@echo "installing dsedge into .venv" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/.tested: pyproject.toml constraints.txt | .venv/.installed
	@echo "installing what the tests need into .venv" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . --group dev
	@touch $@

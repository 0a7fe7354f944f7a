# make run     install into .venv, fetch and export the default model, answer PROMPT
# make test    install what the tests need, and run them
# make check   format, lint, strict types, sizes, whether docs/commands.md is up to date, and the API reference (build/api)
# make fuzz    look for inputs that break a reader: SECONDS each (60), TARGET a name of tests/fuzz/targets.py, or all
# A second call of any of them repeats none of the setup.

PYTHON ?= python3
MODEL ?= smollm2-135m-instruct
TARGET ?= all
SECONDS ?= 60
SEED ?= 0
PROMPT ?= What is the capital of France?
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
NATIVE := CMakeLists.txt $(wildcard runtimes/native/src/*)
SOURCES := edge exporters runtimes benchmarks tests docs

export PROMPT

.DEFAULT_GOAL := help
.PHONY: help run test check fuzz format clean

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
	$(BIN)/python .ci/sizes.py edge exporters runtimes
	$(BIN)/python docs/commands.py --check
	$(BIN)/python -m mkdocs build --strict --quiet

fuzz: .venv/.fuzzed
	@$(BIN)/python -m tests.fuzz $(TARGET) --seconds $(SECONDS) --seed $(SEED)

format: .venv/.tested
	$(BIN)/ruff format $(SOURCES) .ci
	$(BIN)/ruff check --fix $(SOURCES) .ci

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache

.venv/.fuzzed: pyproject.toml | .venv/.tested
	@$(PIP) install --group fuzz || { echo "atheris has no wheel for this Python; use CPython 3.11 to 3.13 on Linux" >&2; exit 2; }
	@touch $@

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "dsedge needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	@echo "making .venv" >&2
	@$(PYTHON) -m venv .venv
	@# Dependency groups need pip 25.1.
	@$(PIP) install --upgrade "pip>=25.1"
	@touch $@

.venv/.installed: pyproject.toml $(NATIVE) | .venv/.made
	@echo "installing dsedge into .venv" >&2
	@$(PIP) install --editable .
	@touch $@

.venv/.tested: pyproject.toml constraints.txt $(NATIVE) | .venv/.installed
	@echo "installing what the tests need into .venv" >&2
	@$(PIP) install --constraint constraints.txt --editable . --group dev
	@touch $@

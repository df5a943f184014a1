# make help lists the targets. A machine with Python 3.11+, pip and make is enough: the first target that needs it
# makes .venv with the versions of constraints.txt, and installs again only when they or pyproject.toml change.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
RAY := .venv/.ray
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest -n 2

# Two test workers of one thread each; nothing is fetched while tests run.
test test-slow check: export OMP_NUM_THREADS = 1
test test-slow check: export OPENBLAS_NUM_THREADS = 1
test test-slow check: export MKL_NUM_THREADS = 1
test test-slow check: export HF_HUB_OFFLINE = 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow check docs format clean

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

install: $(INSTALLED)  ## make .venv, with rlfw installed in editable mode

demo: $(INSTALLED)  ## train, compare and plot something small
	@$(BIN)/python experiments/demo.py

test: $(INSTALLED)  ## all tests but the slow ones: some minutes
	@$(PYTEST) -m "not slow"

test-slow: $(RAY)  ## the slow tests: whole training runs
	@$(PYTEST) -m slow

check: $(INSTALLED)  ## format, lint, types and the tests that take seconds
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(PYTEST) -m "not slow and not medium" --maxfail 1

docs: $(INSTALLED)  ## write docs/algorithms.md anew, from the parts and the recipes
	@$(BIN)/python -m rlfw.explain docs/algorithms.md

format: $(INSTALLED)  ## rewrite the code in the house's format
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

clean:  ## remove build outputs and caches; .venv and runs/ stay
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# torch comes first, so that nothing else picks another build of it. Without build isolation the pinned setuptools
# builds rlfw and the dependencies that are published as source alone.
$(INSTALLED): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("rlfw needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "installing rlfw and its pinned dependencies into .venv (once; some minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) pip setuptools wheel
	@$(PIP) torch==2.13.0
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

# Ray is large, and only slow tests need it.
$(RAY): $(INSTALLED)
	@$(PIP) --no-build-isolation --editable '.[ray]'
	@touch $@

# Everything runs in its own environment, .venv, which every target sets up first and only when it has to.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo bench test test-slow check format clean

help:  ## What there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Create .venv and install everything into it (done by the others, too)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "equipoise needs Python 3.11 or newer; try: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## The main job in a minute: laws, imbalance, balance, with a picture
	$(BIN)/equipoise demo

bench: $(READY)  ## Speed and memory against PyG, a few minutes: a table, a picture, JSON
	$(BIN)/equipoise bench --figure equipoise-bench.png --json equipoise-bench.json

test: $(READY)  ## The tests that take less than a few minutes together
	$(BIN)/python -m pytest -n auto -m 'not slow'

test-slow: $(READY)  ## The tests that take longer
	$(BIN)/python -m pytest -m slow

check: $(READY)  ## Lint, format, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --verbose

format: $(READY)  ## Let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

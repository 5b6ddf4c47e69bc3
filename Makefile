# Every target runs in its own environment, .venv, and creates it first if necessary.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo bench test test-slow fuzz check docs dist format clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Create .venv and install the package with its development tools

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "equipoise needs Python 3.11 or newer; try: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## Train a 10-layer GAT from four initialisations and plot the result (half a minute)
	$(BIN)/equipoise demo

bench: $(READY)  ## Measure speed and memory against PyG (a few minutes): table, plot, JSON
	$(BIN)/equipoise bench --figure equipoise-bench.png --json equipoise-bench.json

test: $(READY)  ## Run the tests (a few minutes)
	$(BIN)/python -m pytest -n auto -m 'not slow'

test-slow: $(READY)  ## Run all tests, the slow ones included, with coverage
	$(BIN)/python -m pytest -n auto --cov=equipoise --cov-report=term:skip-covered

fuzz: $(READY)  ## Try 122,400 malformed inputs (about half an hour); prints the number per target
	$(BIN)/python -m tests.fuzz

check: $(READY)  ## Lint, check formatting, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --verbose

docs: $(READY)  ## Build the documentation site into docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -j auto docs docs/_build/html

dist: $(READY)  ## Build wheel and sdist, test the wheel in an empty environment, and write its bill of materials
	rm -rf dist build/wheel-test
	$(BIN)/python -m build
	$(PYTHON) -m venv build/wheel-test
	build/wheel-test/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	build/wheel-test/bin/python tools/bill_of_materials.py > dist/equipoise.cdx.json
	cd build/wheel-test && bin/equipoise --version && bin/equipoise reproduce --dry-run sgd --dataset texas --seeds 1 \
		&& bin/equipoise train --dataset synthetic-citation --layers 3 --init bal-o --lr 0.1 --epochs 5

format: $(READY)  ## Format the code and apply safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the environment, build products and caches
	rm -rf $(VENV) build dist docs/_build docs/examples .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

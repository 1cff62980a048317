# Two commands do all the set-up: make demo, make test. Everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check clean

# Installed once, and again whenever the dependencies change.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/installed

demo: .venv/installed
	$(BIN)/intrabatch demo --out runs/demo

test: check
	$(BIN)/python -m pytest

check: .venv/installed
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

clean:
	rm -rf .venv build dist

# Two commands do all the set-up: make demo, make test. Everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check results clean

# Installed once, and again whenever the dependencies change.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/installed

demo: .venv/installed
	$(BIN)/intrabatch demo --out runs/demo

test: check
	$(BIN)/python -m pytest -n auto

check: .venv/installed
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

# The paper's comparisons on the built-in images, 5 seeds: about 40 minutes on 2 cores; it can be stopped and goes on.
results: .venv/installed
	$(BIN)/intrabatch reproduce glyphs --out runs/reproduce --seeds 5 --jobs 2 \
	  --set data.glyph_classes=150 --set train.epochs=8 --set train.validate_every=0
	mkdir -p docs/results && cp runs/reproduce/glyphs.md docs/results/glyphs.md

clean:
	rm -rf .venv build dist

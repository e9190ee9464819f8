# On a fresh clone with Python and make, each of these does all of its own set-up in .venv:
#   make train    CartPole from random to solved, with its curve and a video   (SEED, LOGDIR, FLAGS)
#   make test     linters, types and tests
#   make lint     linters and types alone
#   make clean    remove .venv and caches, but no runs

PYTHON ?= python3
SEED ?= 0
LOGDIR ?= runs/quickstart/seed$(SEED)
FLAGS ?=

BIN := .venv/bin

.PHONY: train test lint clean

train: .venv/.quickstart
	$(BIN)/python -m dreamerv3.main --configs quickstart \
	  --seed $(SEED) --logdir '$(LOGDIR)' $(FLAGS)
	$(BIN)/python scripts/plot.py --logdirs '$(LOGDIR)' --out '$(LOGDIR)/curve.png'
	$(BIN)/python scripts/play.py '$(LOGDIR)' --out '$(LOGDIR)/agent.mp4'

test: lint
	$(BIN)/python -m pytest

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Stamps: a set of extras is installed once, and again when pyproject.toml changes.
.venv/.quickstart .venv/.dev: .venv/.%: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	$(if $(filter dev,$*),$(BIN)/python -m pip install --quiet --no-deps --requirement tests/no-deps.txt)
	touch $@

.venv/bin/python:
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

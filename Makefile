# Every target sets up what it needs in .venv first; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := passive
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many interpreters: each of them would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install train resnet2500 test test-cuda lint types check clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Bathyal needs Python 3.10 or newer: make PYTHON=/path/to/python3 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.examples: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[examples]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@

$(VENV)/.test-cuda: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[test,cuda13]'
	@touch $@

install: $(VENV)/.examples  ## make .venv with Bathyal and what its examples need

train: $(VENV)/.examples  ## train a small ResNet on handwritten digits within 4 MiB
	$(BIN)/bathyal train small_resnet --data digits --batch 64 --memory '4 MiB' --epochs 20 --lr 0.1 --schedule cosine

resnet2500: $(VENV)/.examples  ## train a network of 2,498 layers; as root within 1 GiB that the kernel enforces
	$(BIN)/bathyal resnet2500 $(if $(filter 0,$(shell id -u)),--limit '1 GiB')

test: $(VENV)/.test  ## run the tests, but for those of the CUDA libraries
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m 'not cuda'

test-cuda: $(VENV)/.test-cuda  ## run the tests of the CUDA libraries, about 1 GB; no GPU needed
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m cuda

lint: $(VENV)/.test  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test  ## check types
	$(BIN)/mypy

check: lint types test  ## all checks

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info build

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One thread a process: two workers on two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help demo test test-slow lint type docs bench clean
help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lightning_lift needs Python 3.11 or later and $(PYTHON) is older: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,mnist,ray,cvxpy,sbi,onnx,ot]'
	@touch $@

demo: $(READY)  ## fit and test a log-concave density on the Gumbel target (under two minutes after set-up)
	$(BIN)/lightning-lift fit --config configs/ebm_gumbel.yaml --test_after_fit

test: lint type  ## set up everything, then ruff, mypy and the fast tests
	$(PYTEST) -n 2

test-slow: $(READY)  ## the tests that train for minutes
	$(PYTEST) -m slow --timeout 3600

lint: $(READY)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(READY)  ## mypy --strict
	$(BIN)/mypy

docs: $(READY)  ## write the command line's reference to docs/reference/
	mkdir -p docs/reference
	for command in fit validate test predict; do \
	  $(BIN)/lightning-lift $$command --help > docs/reference/$$command.txt; done
	for command in rescale export compare escape landscape configs; do \
	  $(BIN)/lightning-lift $$command --help > docs/reference/$$command.txt; done

bench: $(READY)  ## every benchmark, one after the other
	for script in $(filter-out benchmarks/before.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script; done

clean:  ## remove caches and runs, keep the virtual environment
	rm -rf runs lightning_logs .mypy_cache .ruff_cache .pytest_cache build *.egg-info

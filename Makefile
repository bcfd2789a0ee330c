# Everything runs in .venv at the root; the stamp file makes a second call skip the installation.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test test-gpu lint compare clean

run: $(STAMP)  ## the main job on the embedded default (handwritten digits, small ViT, tile-wise at 75 %)
	$(BIN)/python run.py $(ARGS)

test: $(STAMP)  ## all tests that need no GPU
	$(BIN)/python -m pytest -m "not gpu" -n auto --dist worksteal --durations=30 $(ARGS)

test-gpu: $(STAMP)  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(ARGS)

# without caches, which do not see that an import has become one of ours
lint: $(STAMP)  ## style, format and types
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy

compare: $(STAMP)  ## table, Pareto plot and HTML page of everything under results/
	$(BIN)/python compare.py $(ARGS)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"sparsefront needs Python 3.11 or newer, this is {v[0]}.{v[1]}; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar off -c constraints.txt -e ".[test,lint]"
	touch $(STAMP)

clean:  ## remove results and caches, keep the environment
	rm -rf results .cache

PYTHON ?= python3
BIN := .venv/bin
export PYTHONWARNINGS ?=

.PHONY: demo test check experiment results bench format clean

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

.venv/.demo: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[demo]"
	@touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@ .venv/.demo

demo: .venv/.demo  ## fit a sensitive survey at ε = 1 and write out/demo/
	$(BIN)/discreet demo

test: .venv/.dev  ## all tests but the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: .venv/.dev  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --doctest-modules src -p no:cacheprovider

experiment: .venv/.dev  ## make experiment NAME=na-dpvi-m2 [FULL=1] [SEEDS=3] [EPSILONS="1 4"] [DASK=tcp://127.0.0.1:8786]
	@test -f "experiments/$(NAME).py" || { echo "NAME=$(NAME) is not one of: $$(ls experiments | grep -v '^_\|harness\|write-results\|toml' | sed 's/\.py$$//' | tr '\n' ' ')"; exit 2; }
	FULL=$(FULL) SEEDS=$(SEEDS) EPSILONS="$(EPSILONS)" MODELS="$(MODELS)" LONGEST="$(LONGEST)" $(BIN)/python experiments/$(NAME).py $(if $(DASK),--dask $(DASK))

results: .venv/.dev  ## docs/results.md from results/*.json
	$(BIN)/python experiments/write-results.py

bench: .venv/.dev  ## make bench NAME=trace-solvers
	@test -f "benchmarks/$(NAME).py" || { echo "NAME=$(NAME) is not one of: $$(ls benchmarks | sed 's/\.py$$//' | tr '\n' ' ')"; exit 2; }
	PYTHONPATH=experiments $(BIN)/python benchmarks/$(NAME).py

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv out .pytest_cache .ruff_cache

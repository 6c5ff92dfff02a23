# setup: the environment   demo: the loop on a small synthetic world   test, check: what CI runs
# bench: measurements   reliability: the long campaigns of faults, load and growth
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-slow check reliability format bench clean

setup: $(STAMP)

# the install compiles the attention library, where there is a C compiler
$(STAMP): pyproject.toml constraints.txt hatch_build.py src/opengem/ops/native/attention.c
	@command -v $(PYTHON) >/dev/null || { echo "opengem needs Python 3.11: install it, or name another with make PYTHON=python3.x"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[cpu,kernels,serve,report,dev]"
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/opengem quickstart --out runs/demo

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not gpu" -n 2

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m "slow and not gpu"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reliability: $(STAMP)
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/growth.py

bench: $(STAMP)
	$(BIN)/python benchmarks/storage.py
	$(BIN)/python benchmarks/serving_latency.py

clean:
	rm -rf runs build dist .pytest_cache .ruff_cache

# Two commands matter: `make run` trains a model and shows it at work, `make test` proves everything.
# They need Python 3.11+ and make; everything else goes into .venv, which is kept and reused.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
RUN    ?= runs/pronounce-quick

# the same tests with every annotated shape checked; bad input is left to our own errors
SHAPES := --jaxtyping-packages=qkv,beartype.beartype tests/layers tests/positions tests/contract -k "not bad_input"

.PHONY: run test check lint bench docs clean

run: $(READY)  ## train a pronouncer for about four minutes, and show what it says of words it has never seen
	$(BIN)/qkv train pronounce --preset quick --run $(RUN) $(if $(wildcard $(RUN)/config.json),--resume)

test: lint  ## everything that needs no GPU
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not gpu and not slow"
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(SHAPES)
	$(BIN)/python -m pytest -q -m "slow and not gpu"

check: lint  ## the quick part, for the inner loop
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not gpu and not slow"

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## speed and memory on this machine, written to benchmarks/results/
	$(BIN)/python -m benchmarks.attention_cpu

docs: $(READY)  ## the site, in build/site: written pages, worked problems computed now, the reference; nothing from elsewhere
	$(BIN)/python -m docs.generate build/docs
	$(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

# Two commands matter: `make run` trains a model and shows it at work, `make test` proves everything.
# They need Python 3.11+ and make; everything else goes into .venv, which is kept and reused.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
RUN    ?= runs/pronounce-quick

# the same tests with every annotated shape checked; bad input is left to our own errors
SHAPES := --jaxtyping-packages=qkv,beartype.beartype tests/layers tests/positions tests/contract -k "not bad_input"

.PHONY: run serve test check lint browser bench docs clean

run: $(READY)  ## train a pronouncer for about four minutes, and show what it says of words it has never seen
	$(BIN)/qkv train pronounce --preset quick --run $(RUN) $(if $(wildcard $(RUN)/config.json),--resume)

serve: $(READY)  ## the workbench, with the newest run
	$(BIN)/qkv serve

test: lint browser  ## everything that needs no GPU
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not gpu and not slow"
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(SHAPES)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "slow and not alone and not gpu"
	$(BIN)/python -m pytest -q -m "alone and not gpu"

check: lint browser  ## the quick part, for the inner loop
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not gpu and not slow"

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

browser:  ## Debian's Chromium for the tests of the page: by apt where root may, else those tests are skipped
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
		|| echo "no Chromium, and no right to install it: the browser tests will be skipped"

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

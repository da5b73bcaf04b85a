# Two commands matter: `make run` trains a model and shows it at work, `make test` tests everything that is quick.
# They need Python 3.11+ and make; everything else goes into .venv, which is kept and reused.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
RUN    ?= runs/pronounce-quick

# the constraints hold for the isolated build as well
LIMITS  := $(CURDIR)/constraints.txt
INSTALL := PIP_CONSTRAINT=$(LIMITS) PIP_BUILD_CONSTRAINT=$(LIMITS) $(BIN)/python -m pip install --quiet --disable-pip-version-check

PYTEST := $(BIN)/python -m pytest -q
QUICK  := not gpu and not slow
INNER  := $(QUICK) and not process and not browser and not triton and not training

# every annotated shape is checked during the tests of layers; tests/conftest.py sets the mark
SHAPES := --jaxtyping-packages=qkv,beartype.beartype tests/layers tests/positions tests/contract

.PHONY: run serve check test test-slow test-install lint browser bench docs clean

run: $(READY)  ## train a pronouncer for about four minutes and show its predictions for words it has never seen
	$(BIN)/qkv train pronounce --preset quick --run $(RUN) $(if $(wildcard $(RUN)/config.json),--resume)

serve: $(READY)  ## open the workbench with the newest run
	$(BIN)/qkv serve

check: lint  ## the inner loop, within 4 minutes: lint, types, imports, tests without processes, browser, kernels, training
	$(PYTEST) -n 2 --dist worksteal -m "$(INNER)"

test: lint browser  ## lint and every quick test that needs no GPU, within 12 minutes on 2 cores
	$(PYTEST) -n 2 --dist worksteal -m "$(QUICK) and not shapes"
	$(PYTEST) -n 2 --dist worksteal -m "$(QUICK) and shapes" $(SHAPES)

test-slow: browser $(READY)  ## the rest, within 30 minutes: trainings, kills, mutants, speed
	$(PYTEST) -n 2 --dist worksteal -m "slow and not alone and not gpu"
	$(PYTEST) -m "alone and not gpu"

test-install: $(READY)  ## build the wheel; install it with each extra alone into fresh environments; run the README's commands
	$(BIN)/python -m benchmarks.install

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

browser:  ## install Chromium for the browser tests if apt can; without it those tests are skipped
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
		|| echo "Chromium is missing and cannot be installed: browser tests will be skipped"

bench: $(READY)  ## measure speed and memory on this machine; write benchmarks/results/
	$(BIN)/python -m benchmarks.attention_cpu

docs: $(READY)  ## build the site in build/site: pages, worked problems computed now, reference
	$(BIN)/python -m docs.generate build
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --config-file build/mkdocs.yml

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) pip setuptools torch
	$(INSTALL) -e ".[dev]"
	touch $@

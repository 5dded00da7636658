# Every target works in a fresh clone and needs nothing activated: the first one run
# builds .venv, and it is brought up to date again only when pyproject.toml changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
CODE   := src tests benchmarks recipes docs wheels setup.py

# Two test workers with one thread each fill a two-core machine; more threads would fight over it.
WORKERS ?= 2
# Tests start many processes: without bytecode on disk, each would compile the package anew.
PYTEST  := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-hard test-native test-gpu test-browser lint format bench bench-nightly docs site screenshots web web-check wheel try-wheel release hooks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## build .venv and install clearhead into it (once)

# torch first, so that its large wheel is settled before the resolver meets what depends on it
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch>=2.11,<2.14"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(READY) ## train a translator on the built-in phrasebook and use it (about two minutes)
	$(BIN)/clearhead demo

test: $(READY) lint ## lint, then the quick tests and all doctests
	$(PYTEST) -n $(WORKERS) --dist worksteal

test-slow: $(READY) ## the tests that take longer
	$(PYTEST) -n $(WORKERS) --hypothesis-profile random -m "slow and not gpu and not browser and not native"

# the same seed tries the same things; SEED=7 others, and ONLY=flips one part alone
SEED ?= 1
test-hard: $(READY) ## kills, flipped bits, bad input and random engine configurations by the hundred
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m tests.hard --seed $(SEED) $(if $(ONLY),--only $(ONLY))

# what is built stays in build/native; -rs names what is skipped because a compiler or an emulator is absent
test-native: $(READY) ## the C++ engine for every instruction set, under sanitizers, and for ARM (with qemu)
	CLEARHEAD_DEMAND_ENGINE=1 $(PYTEST) -n $(WORKERS) --dist loadfile -m native -rs tests/native

test-gpu: $(READY) ## the tests that need a CUDA device
	$(PYTEST) -m gpu

# each worker has an explorer and a browser of its own; where there is no Chromium the tests say so and are skipped
test-browser: $(READY) ## the explorer's page in a real browser (needs Chromium)
	$(PYTEST) -n $(WORKERS) --dist worksteal -m browser -rs tests/browser

lint: $(READY) ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: $(READY) ## apply ruff's automatic fixes, and format
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(READY) ## run every script in benchmarks/
	@set -e; for script in benchmarks/[!_]*.py; do echo "== $$script"; $(BIN)/python $$script; done

# BEFORE is a worktree of an earlier commit: `git worktree add ../before COMMIT`
bench-nightly: $(READY) ## compare the speed of this tree with that of BEFORE; the table goes to build/nightly.md
	@mkdir -p build
	$(BIN)/python benchmarks/before_after.py $(BEFORE) --speed --rounds 5 --markdown build/nightly.md

# written beside its place and then moved, so that a failing run does not leave an empty page
docs: $(READY) ## regenerate the generated pages of docs/
	$(BIN)/clearhead examples --markdown > docs/worked-examples.md.new
	mv docs/worked-examples.md.new docs/worked-examples.md
	$(BIN)/python docs/write_settings.py
	$(BIN)/python docs/walk.py --write
	$(BIN)/python recipes/run.py --table

# what the site needs is no part of `make setup`
$(VENV)/.site: $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[site]"
	@touch $@

site: $(VENV)/.site ## build the documentation site into build/site (open index.html there), and check it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(PYTEST) -q -m site tests/test_site.py

# BUNDLE=folder takes another bundle than the demonstration's, which is trained first where there is none
screenshots: $(READY) ## take the explorer's pictures in docs/images anew (needs Chromium)
	$(BIN)/python tests/browser/screenshots.py $(BUNDLE)

# What the sources' dependencies are is pinned in web/package-lock.json; Node is needed here and nowhere else.
web/node_modules/.ready: web/package.json web/package-lock.json
	cd web && npm ci --no-fund --no-audit
	@touch $@

web: web/node_modules/.ready ## build the explorer's page into the package (needs Node 20.19 or newer)
	cd web && npm run --silent build

web-check: web/node_modules/.ready ## types, lint, format and tests of the page; is the shipped one what web/ gives?
	cd web && npm run --silent check && npm run --silent lint && npm run --silent format-check
	cd web && npm run --silent test
	cd web && npm run --silent same

# compiled for other machines, too: the PyPI package ziglang is a C++ compiler for all of them
wheel: $(READY) ## wheels with the C++ engine inside, for Linux (x86-64, ARM) and macOS (ARM), and the sdist, into dist/
	$(BIN)/python wheels/build.py

# dist/ holds wheels for several platforms: pip takes the one that fits
try-wheel: ## install the wheel of dist/ into an empty environment and decode with the engine inside
	$(PYTHON) wheels/release.py --only install

# SKIP="demo test" leaves steps out; TAG=v0.2.0 is the tag that the version must match
release: $(READY) ## check version and changelog, build the wheels, install one, run the demo and the tests
	$(BIN)/python wheels/release.py $(if $(TAG),--tag $(TAG)) $(if $(SKIP),--skip $(SKIP))

hooks: $(READY) ## let git run the checks of .pre-commit-config.yaml on each commit
	$(BIN)/pre-commit install --install-hooks --hook-type pre-commit --hook-type pre-push

clean: ## remove .venv and every cache
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis web/node_modules
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

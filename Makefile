# Everything a person or a machine does with this checkout. `make demo` and `make test` set up what they need by themselves.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help demo test lint pytest bench soak explore setup setup-spark setup-bench setup-system lock clean

BIN := .venv/bin
WORKERS ?= 4
EXAMPLES ?= 1000
SECONDS_EACH ?= 300
ARGS ?=

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## the main job on real files, with an audit; ARGS='--kv URL --objects URL' for other stores
	@$(BIN)/refstore demo $(ARGS)

test: setup-spark setup-system ## lint, then all tests but the soak
	@$(MAKE) lint
	@$(MAKE) pytest

lint: setup-spark ## format, ruff, pyright, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache --no-logo

pytest: setup-spark ## the tests alone; ARGS='-k name' to choose
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term:skip-covered $(ARGS)

bench: setup-bench setup-system ## the table of docs/benchmarks.md, measured here
	$(BIN)/python -m bench $(ARGS)

soak: setup setup-system ## the long tests: the machine 1,000 x 500 steps, processes killed for SECONDS on each arrangement
	REFSTORE_MACHINE_EXAMPLES=$(EXAMPLES) REFSTORE_MACHINE_STEPS=500 $(BIN)/pytest tests/properties/test_machine.py -n 0 --timeout 0 $(ARGS)
	REFSTORE_CHAOS_SECONDS=$(SECONDS_EACH) $(BIN)/pytest tests -m soak -n 0 -s $(ARGS)

explore: setup ## every interleaving, as far as the budget in ARGS allows
	$(BIN)/python -m refstore.testing.explore $(ARGS)

setup: ## .venv with the locked packages and this project
	@scripts/setup.sh requirements.lock

setup-spark: setup
	@scripts/setup.sh requirements-spark.lock

setup-bench: setup-spark
	@scripts/setup.sh requirements-bench.lock

setup-system: ## Debian's Redis and Ceph, where there is root; says what is left out where there is none
	@scripts/setup-system.sh

lock: setup ## write the requirements locks anew from pyproject.toml
	@scripts/lock.sh

clean: ## remove what this Makefile made
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

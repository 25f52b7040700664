# Every task of this checkout. `make demo`, `make check` and `make test` set up what they need by themselves.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Empty: bytecode is written, whatever the environment says. The tests start Python more than a thousand times.
export PYTHONDONTWRITEBYTECODE :=
.PHONY: help demo check test test-all test-release lint style types pytest docs s3-tests bench soak explore release setup setup-spark setup-java setup-bench setup-system lock clean

BIN := .venv/bin
WORKERS ?= 4
EXAMPLES ?= 1000
SECONDS_EACH ?= 300
FAILOVERS ?= 250
ARGS ?=
# which tests `make pytest` runs; those of the first tier where it is empty (addopts in pyproject.toml)
TIERS ?=
# a checkout of ceph/s3-tests, which `make s3-tests` and `make test-all` run; they pass it on from the environment, too
export S3_TESTS_DIR ?=
# files of tests/unit that `make check` leaves out: they start processes, or explore for minutes
LEFT_OUT := api_serve file_modes protocol_model

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## run the main job on real files, with an audit; ARGS='--kv URL --objects URL' for other stores
	@$(BIN)/python -m examples.demo $(ARGS)

check: setup ## run ruff, the import check and the fast tests: without Spark, without root, in under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python scripts/check_names.py
	$(BIN)/python scripts/check_public_names.py
	$(BIN)/python scripts/decision_index.py --check
	$(BIN)/python scripts/protocol_page.py --check
	$(BIN)/python scripts/check_tests.py
	$(BIN)/python scripts/line_budget.py
	$(BIN)/pytest -n 2 -q -m "not soak and not second_tier and not slow and not server" tests/fundamentals tests/unit $(LEFT_OUT:%=--ignore=tests/unit/test_%.py)

test: setup-java setup-system ## run lint and the tests of the first tier: before a merge
	@$(MAKE) style
	@$(MAKE) -j 2 types pytest

test-all: setup-java setup-system ## run lint and the tests of both tiers, as CI does
	@$(MAKE) style
	@$(MAKE) -j 2 types pytest TIERS='-m "not soak"'

test-release: setup-java setup-system ## run lint, all tests with coverage and ten times the states, and a short soak: before a release
	@$(MAKE) lint
	@REFSTORE_EXPLORE_STATES=40000 $(MAKE) pytest TIERS='-m "not soak"' ARGS='--cov --cov-report=term:skip-covered'
	@$(MAKE) soak SECONDS_EACH=10 EXAMPLES=20 FAILOVERS=5

lint: style types ## check format, ruff, import directions and types (pyright)

style: setup-spark
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python scripts/check_names.py
	$(BIN)/python scripts/check_public_names.py
	$(BIN)/python scripts/decision_index.py --check
	$(BIN)/python scripts/protocol_page.py --check
	$(BIN)/python scripts/check_tests.py
	$(BIN)/python scripts/line_budget.py

# The supervisor ends pyright's own processes, too, where make is ended.
types: setup-spark
	@exec $(BIN)/python -m tests.supervisor $(BIN)/pyright

pytest: setup-java ## run the tests of the first tier alone; ARGS='-k name' to choose
	@exec $(BIN)/pytest -n $(WORKERS) --dist loadgroup --durations 40 --durations-min 1 $(TIERS) $(ARGS)

s3-tests: setup ## run the S3 tests of an unchanged checkout of ceph/s3-tests against the gateway; S3_TESTS_DIR=DIR
	@[[ -n "$${S3_TESTS_DIR:-}" ]] || { echo 'say where the checkout of ceph/s3-tests is: make s3-tests S3_TESTS_DIR=DIR' >&2; exit 2; }
	@exec $(BIN)/pytest -n 0 -m 'not soak' tests/s3/test_public_suite.py $(ARGS)

docs: setup ## build the reference of the SDK in build/docs from its docstrings, and check the links of all documents
	rm -rf build/docs
	$(BIN)/python -W 'ignore:Error parsing type annotation' -m pdoc --no-show-source --output-directory build/docs refstore
	$(BIN)/python scripts/check_links.py

bench: setup-bench setup-system ## measure the rows of bench/results.md on this machine
	$(BIN)/python -m bench $(ARGS)

soak: setup setup-system ## run the long tests: EXAMPLES x 500 random steps; FAILOVERS, then killed processes for SECONDS_EACH, on each arrangement
	REFSTORE_MACHINE_EXAMPLES=$(EXAMPLES) REFSTORE_MACHINE_STEPS=500 $(BIN)/pytest tests/properties/test_machine.py -n 0 --timeout 0 $(ARGS)
	REFSTORE_FAILOVER_ROUNDS=$(FAILOVERS) $(BIN)/pytest tests/integration/test_kv_failovers.py -n 0 --timeout 0 $(ARGS)
	REFSTORE_CHAOS_SECONDS=$(SECONDS_EACH) $(BIN)/pytest tests -m soak -n 0 -s $(ARGS)

explore: setup ## run the real code over every interleaving, as far as the budget in ARGS allows
	$(BIN)/python -m tests.kit.explore $(ARGS)

release: setup-spark setup-system ## check, build and tag VERSION=x.y.z here; push nothing. ARGS='--dry-run' or '--skip-tests'
	@scripts/release.sh $(VERSION) $(ARGS)

setup: ## make .venv with the locked packages and this project
	@scripts/setup.sh requirements.lock

setup-spark: setup
	@scripts/setup.sh requirements-spark.lock
	@scripts/setup.sh requirements-duckdb-httpfs.lock .venv/duckdb-httpfs

# Spark's classes, written down once, halve each start of Java in the tests.
setup-java: setup-spark
	@$(BIN)/python -m tests.spark.java

setup-bench: setup-spark
	@scripts/setup.sh requirements-bench.lock

setup-system: ## install Debian's Redis, PostgreSQL, Ceph, Chromium, promtool and nginx where there is root; name what is left out where there is none
	@scripts/setup-system.sh

lock: setup ## write the requirements locks again from pyproject.toml
	@scripts/lock.sh

clean: ## remove what these targets made
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The commands of this project. `make` alone lists them. Everything runs from .venv, which `setup` makes.

PYTHON ?= python3
APP ?= fraud
BIN := .venv/bin
# More arguments for the tests: make test PYTEST_ARGS="-k window"
PYTEST_ARGS ?=
# Tests and demos start hundreds of Python processes: none shall compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
# For how long `make fuzz` goes on.
MINUTES ?= 5

.DEFAULT_GOAL := help
.PHONY: help setup demo test crash fuzz long matrix mutants test-fast lint types lock format bench e2e-compose clean

help: ## List the commands.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install everything into .venv and fetch the jars; nothing when done already.
	@$(PYTHON) scripts/setup.py $(if $(filter file,$(origin PYTHON)),--any-python)

demo: setup ## Run an app on a live stream for a minute, or all at once: make demo APP=fraud, APP=all
	@$(BIN)/millrace demo $(APP)

test: setup ## Run the tests: unit, Spark, end to end, in a browser, and a crash in the middle of a batch.
	@[ "$$MILLRACE_NO_BROWSER" = 1 ] || scripts/install-chromium >/dev/null || [ -z "$$CI" ]
	@$(BIN)/pytest tests/unit -n 2 --dist loadfile --no-loadscope-reorder -q $(PYTEST_ARGS)
	@MILLRACE_NO_BROWSER=$${MILLRACE_NO_BROWSER:-$$(scripts/install-chromium >/dev/null 2>&1 || echo 1)} \
		MILLRACE_NO_PROMETHEUS=$${MILLRACE_NO_PROMETHEUS:-$$(scripts/install-prometheus >/dev/null || echo 1)} \
		$(BIN)/pytest tests/crash tests/e2e tests/browser tests/spark -n 2 --dist loadfile --no-loadscope-reorder \
		--durations=20 $(PYTEST_ARGS)

crash: setup ## Kill the app at every point of a batch and start it again: minutes per point.
	@$(BIN)/pytest tests/crash -m "" $(PYTEST_ARGS)

long: setup ## Run the long ones that CI leaves out: days of whole worlds, ends to ends in all their ways.
	@$(BIN)/pytest tests -m "long and not matrix" $(PYTEST_ARGS)

matrix: setup ## Run the cases that every day does without: other profiles, formats, long histories of restarts.
	@$(BIN)/pytest tests/spark tests/e2e -m matrix $(PYTEST_ARGS)

fuzz: setup ## Compare Spark with memory on random processes: make fuzz MINUTES=10 SEED=1
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

mutants: setup ## Change the code in small ways that its tests must notice: make mutants ONLY=session
	@$(BIN)/python -m tests.mutants $(if $(ONLY),--only "$(ONLY)")

test-fast: setup ## Run the quick ones of the tests that need no Java, in less than a minute.
	@$(BIN)/pytest tests/unit --fast -n 2 --dist loadfile -q $(PYTEST_ARGS)

lint: setup ## Check style with ruff, that the lock files are in step, and that contracts are kept.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python scripts/wrap_docs.py --check
	@bash scripts/check-locks
	@$(BIN)/millrace contracts check

types: setup ## Check types with mypy, strictly.
	@$(BIN)/mypy
	@$(BIN)/mypy scripts/setup.py

lock: setup ## Resolve the Python packages anew after a change in pyproject.toml.
	@$(BIN)/uv lock
	@bash scripts/check-locks --write

format: setup ## Format the code, and wrap long lines of the pages.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/python scripts/wrap_docs.py

bench: setup ## Measure throughput, latency, start-up and memory.
	@$(BIN)/millrace bench

e2e-compose: setup ## Run the end-to-end tests against the broker of compose.yaml (needs Docker).
	@scripts/e2e-compose

clean: ## Remove the environment and everything that was built or cached in this folder.
	rm -rf .venv .millrace dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

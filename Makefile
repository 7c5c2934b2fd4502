# `make` lists the targets. Python 3.11+ and its venv module are all that must be there.
PYTHON ?= python3
SECONDS_OF_KILLING ?= 60
SECONDS_OF_HISTORY ?= 180
SECONDS_OF_SOAKING ?= 1800
EXAMPLES ?= 500
BIN := .venv/bin
DEMO := .venv-demo/bin
PIP := python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test check ruff mypy pyright imports fix bench kill histories soak machine fuzz galera citus docs site dist sbom versions pythons clean python servers compiled

# Tests start hundreds of Python processes: each would compile every module again, half of its start.
unexport PYTHONDONTWRITEBYTECODE

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# With a URL the demo needs that database's driver, which only .venv has.
demo: $(if $(URL),.venv/ready,.venv-demo/$(if $(findstring --dashboard,$(ARGS)),dashboard,ready)) ## Watch jobs survive a killed worker, on SQLite (URL=postgresql://… for another database, ARGS=--dashboard in a browser)
	@$(if $(URL),$(BIN)/holdfast demo --url "$(URL)",$(DEMO)/holdfast demo) $(ARGS)

# With ARGS in one process: most of them name a few tests, and each process starts its own servers.
test: .venv/ready ## Check, and run every test on real servers (ARGS="-k name" passes options to pytest, in one process)
	@echo "==> checks, and fetching the servers that this machine lacks: minutes, the first time"
	@$(MAKE) --no-print-directory --jobs --output-sync ruff mypy pyright imports servers $(if $(ARGS),,compiled)
	@echo "==> tests"
	@$(BIN)/pytest $(or $(ARGS),-n auto --dist worksteal)

check: .venv/ready ## Lint, check the format, the types and who imports whom
	@$(MAKE) --no-print-directory --jobs --output-sync ruff mypy pyright imports

ruff:
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

mypy:
	@echo "==> mypy"
	@$(BIN)/mypy

pyright:
	@echo "==> pyright"
	@$(BIN)/pyright --warnings

imports:
	@echo "==> import-linter"
	@$(BIN)/lint-imports --no-logo

# Beside the checks: a server that has to be fetched is mostly waited for.
servers:
	@echo "==> servers"
	@$(BIN)/python -m tests.fetch

# Once, and not by each of the processes that begin at the same time: pytest rewrites every assertion. What does not
# compile is told by the tests.
compiled:
	@$(BIN)/pytest --collect-only > /dev/null 2>&1 || true

fix: .venv/ready ## Fix what ruff can fix, and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: .venv/ready ## Measure beside raw SQL and other queues (ARGS="--no-peers --on sqlite", "--study big", …)
	@$(BIN)/python -m tests.bench $(ARGS)

kill: .venv/ready ## Kill workers and relays at random for a minute a database, under jobs, events and runs, and count
	@$(BIN)/python -m tests.faults.kill --seconds $(SECONDS_OF_KILLING)
	@$(BIN)/python -m tests.faults.relay_kill --seconds $(SECONDS_OF_KILLING)
	@$(BIN)/python -m tests.faults.run_kill --seconds $(SECONDS_OF_KILLING)

histories: .venv/ready ## Run random mixes of operations while processes die, three minutes a database, and check it
	@$(BIN)/python -m tests.histories --seconds $(SECONDS_OF_HISTORY) $(ARGS)

soak: .venv/ready ## Run two shards for half an hour at a fixed rate, under kills, cuts, a failover and moved keys (ARGS="--rate 200")
	@$(BIN)/python -m tests.soak --seconds $(SECONDS_OF_SOAKING) $(ARGS)

machine: .venv/ready ## Hold random operations against a model, 500 runs a database (EXAMPLES=5000 for more)
	@HOLDFAST_EXAMPLES=$(EXAMPLES) $(BIN)/pytest tests/machine $(ARGS)

fuzz: .venv/ready ## Let durable runs with random bodies die after any commit, 500 runs a database (EXAMPLES=5000 for more)
	@HOLDFAST_EXAMPLES=$(EXAMPLES) $(BIN)/pytest tests/runs/test_fuzz_databases.py $(ARGS)

galera: .venv/ready ## Kill a node of a three-node Galera cluster and count what was lost
	@$(BIN)/pytest tests/galera -m galera $(ARGS)

citus: $(if $(URL),.venv/ready) ## Run the suite, races, a kill test and a schema move on a Citus cluster (URL=postgresql://…, its coordinator)
	@test -n "$(URL)" || { echo "make citus needs a coordinator that may create schemas: make citus URL=postgresql://user@host/database" >&2; exit 1; }
	@CITUS_URL="$(URL)" $(BIN)/pytest tests/citus -m citus $(ARGS)

versions: .venv/ready ## Run the conformance suite on PostgreSQL 14 to 18 (ARGS="--only 14" for one)
	@$(BIN)/python -m tests.versions postgres $(ARGS)

pythons: .venv/ready ## Run a part of the tests on Python 3.11 to 3.14 (ARGS="--only 3.14" for one)
	@$(BIN)/python -m tests.versions python $(ARGS)

docs: .venv/ready ## Run the examples of the docs and check their links
	@$(BIN)/pytest tests/docs $(ARGS)

site: .venv/ready ## Build the documentation as a site with search, in .run/site/site
	@$(BIN)/python -m tools.site

dist: .venv/ready ## Build wheel and source distribution into dist/, with the SBOM beside them
	@rm -rf dist
	@$(BIN)/python -m hatchling build --directory dist
	@$(MAKE) --no-print-directory sbom

# Of what an application may get with Holdfast: all extras, and nothing of the tools that we work with.
sbom: .venv/ready ## Write what the package depends on, from uv.lock, as CycloneDX: dist/sbom.cdx.json
	@mkdir -p dist
	@$(BIN)/uv export --quiet --frozen --no-dev --all-extras --preview-features sbom-export --format cyclonedx1.5 --output-file dist/sbom.cdx.json
	@echo "dist/sbom.cdx.json"

clean: ## Delete environments, caches and what test runs left
	@echo "==> deleting .venv, .venv-demo, .run, dist and caches"
	@rm -rf .venv .venv-demo .run dist build .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests -name __pycache__ -prune -exec rm -rf {} +

python:
	@command -v $(PYTHON) > /dev/null \
		|| { echo "$(PYTHON) was not found: install Python 3.11 or later (Debian: apt-get install python3 python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Holdfast needs Python 3.11 or later; name one with: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null \
		|| { echo "$(PYTHON) cannot make virtual environments (Debian: apt-get install python3-venv)" >&2; exit 1; }

# uv does the whole work from the lock; pip only fetches uv. An unchanged lock costs nothing.
.venv/ready: uv.lock pyproject.toml | python
	@echo "==> .venv from uv.lock"
	@test -x $(BIN)/python || $(PYTHON) -m venv --clear .venv
	@test -x $(BIN)/uv || $(BIN)/$(PIP) install uv
	@UV_PROJECT_ENVIRONMENT=.venv $(BIN)/uv sync --quiet --frozen --all-extras --no-progress
	@touch $@

.venv-demo/ready: pyproject.toml | python
	@echo "==> .venv-demo with the core dependencies"
	@test -x $(DEMO)/python || $(PYTHON) -m venv --clear .venv-demo
	@$(DEMO)/$(PIP) install --editable .
	@touch $@

.venv-demo/dashboard: .venv-demo/ready
	@echo "==> .venv-demo with what the dashboard needs"
	@$(DEMO)/$(PIP) install --editable '.[dashboard]'
	@touch $@

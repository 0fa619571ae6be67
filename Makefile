# Every command of this repository. `make` alone lists them.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# Without bytecode on disk every process, of which the tests start thousands, would compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
LOCKED := pyproject.toml client/pyproject.toml uv.lock .ci/environment
# An environment that has everything also has what it takes to run: it is brought up to date, not reduced.
ALL := .venv/.all
RUN := $(if $(wildcard $(ALL)),$(ALL),.venv/.run)
# Of the images.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# Of the distributions.
DIST ?= dist
# Two test processes more than CPUs, as many tests wait for others, but not so many that servers and jobs starve each other.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n + 2 : 8)))
# Unit tests wait for nothing.
UNIT_WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n : 8)))

# Those that `make check` runs are left out.
CHECKS := tests/test_project.py tests/test_imports.py tests/test_local_names.py tests/test_docs_site.py
TESTS := -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(CHECKS:%=--ignore=%)

.PHONY: help demo demo-docker demo-compose demo-cluster demo-slurm cluster-up images images-offline up up-tpu test test-all test-seconds unit check audit screenshots fmt migration dist bench docs which-machine experiments faults chaos chaos-hosts chaos-slurm soak clean

help: ## show these commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

demo: $(RUN) ## submit a real training to a server of its own, follow it, check what it left
	@.ci/isolation
	@$(BIN)/python examples/demo.py

demo-docker: $(RUN) ## the same in a container, on this machine's Docker engine
	@$(BIN)/python examples/demo_docker.py

demo-compose: $(RUN) ## docker-compose.yml with its profile docker: a job in a container, whose worker is replaced
	@$(BIN)/python examples/demo_compose.py

demo-cluster: $(RUN) ## 30 jobs on three hosts that share only a network, one killed meanwhile (as root, with PostgreSQL)
	@.ci/isolation
	@$(BIN)/python examples/cluster.py demo

demo-slurm: $(ALL) ## an array and trainings on a Slurm cluster of four nodes on this machine, one of which fails
	@GRADIENT_DEMO_HOME=$${GRADIENT_DEMO_HOME:-.demo/slurm} $(BIN)/python examples/demo_slurm.py

cluster-up: $(RUN) ## run a service with three such hosts on this machine (as root, with PostgreSQL)
	@.ci/isolation
	@$(BIN)/python examples/cluster.py up

images: ## build the trainer's images, for CPU and for NVIDIA GPUs; needs Docker and a registry
	@docker build --tag gradient/trainer:$(VERSION) images/trainer
	@docker build --tag gradient/trainer:$(VERSION)-gpu --build-arg VARIANT=gpu images/trainer

images-offline: $(RUN) ## build the trainer's image for CPU without a registry (debootstrap, pip, docker import)
	@VERSION=$(VERSION) images/trainer/offline

up: $(RUN) ## run the service on this machine: http://127.0.0.1:8780
	@.ci/isolation
	@exec $(BIN)/gradient-server up

up-tpu: $(ALL) ## the same with a simulated cloud for TPU jobs
	@.ci/isolation
	@exec $(BIN)/gradient-server up --tpu-simulator

test: $(ALL) ## run the tests; installs PostgreSQL, Chromium and git for them where it may
	@.ci/test-needs
	@$(BIN)/python -m pytest $(TESTS)

test-all: $(ALL) ## run every test, also those marked slow
	@.ci/test-needs
	@GRADIENT_FUZZ_EXAMPLES=6 $(BIN)/python -m pytest $(TESTS) --run-slow

test-seconds: $(ALL) ## run the tests, and keep the seconds of each file, so that the longest begin first
	@.ci/test-needs
	@$(BIN)/python -m pytest $(TESTS) --keep-seconds

unit: $(ALL) ## run the tests that start no process and no server (a minute)
	@$(BIN)/python -m pytest -n $(UNIT_WORKERS) --dist worksteal -m unit

check: $(ALL) ## check format, lint, types, Python versions, imports and the rules of this repository
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/vermin --quiet --no-tips --target=3.9- client worker/runner worker/backends/tpu/vm/on_vm \
		$(addprefix core/,errors.py formatting.py jobs/exec/channel.py jobs/spec/container_options.py jobs/spec/outputs.py \
		jobs/tracking/metric_limits.py system/filesystem.py system/untrusted_folders.py) \
		$(addprefix core/storage/artifacts/,folder_mirror.py links.py manifests.py paths.py scan.py)
	@$(BIN)/lint-imports --no-logo >.venv/imports.log || { cat .venv/imports.log; exit 1; }
	@$(BIN)/python -m pytest -q --no-header $(CHECKS)
	@.ci/lines

which-machine: $(ALL) ## check the answers to "which machine?": simulated ranks, published ratios, programs of known pace
	@$(BIN)/python -m bench.trainer.published
	@$(BIN)/python -m pytest -q --run-slow tests/core/comparison/test_ranking.py tests/core/comparison/test_published.py \
		tests/e2e/training/test_known_pace.py

docs: $(ALL) ## build the documentation as a site in site/
	@$(BIN)/properdocs build 2>.venv/docs.log || { cat .venv/docs.log; exit 1; }
	@echo site/index.html

screenshots: $(ALL) ## take the pictures of docs/dashboard.md from a server with jobs; needs Chromium
	@$(BIN)/python .ci/screenshots.py

audit: $(ALL) ## known vulnerabilities, secrets in files, bill of materials; needs the advisories of pypi.org
	@.ci/audit

fmt: $(ALL) ## format, and mend what ruff can mend
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

migration: $(ALL) ## write a migration for what changed in core/db/models: make migration name="what changes"
	@$(BIN)/python .ci/new_migration.py "$(name)"
	@$(BIN)/ruff check --fix-only --quiet migrations && $(BIN)/ruff format --quiet migrations

dist: $(ALL) ## build the wheels and source distributions of client and server into dist/
	@rm -f $(DIST)/gradient_jobs*
	@$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --all-packages --out-dir $(DIST)
	@ls $(DIST)/gradient_jobs*

bench: $(ALL) ## measure: submit latency, jobs a second, start of CLI and server; prints JSON
	@$(BIN)/python -m bench

experiments: $(RUN) ## train on all of MNIST and a part of CIFAR-10 on this CPU, beside a plain JAX program (hours): make experiments only=mnist
	@$(BIN)/python -m experiments $(if $(only),--only $(only))

faults: $(ALL) ## every fault and fuzzed route as often as a release asks for (hours); make test tries each a few times
	@.ci/test-needs
	@GRADIENT_FAULTS=full $(BIN)/python -m pytest $(TESTS) --run-slow -m faults
	@GRADIENT_FUZZ_EXAMPLES=100 $(BIN)/python -m pytest $(TESTS) --run-slow tests/service -k "fuzz or hostile_values"

chaos: $(ALL) ## 300 faults on a whole installation, checked at the end (as root; 45 minutes): make chaos faults=300 seed=11
	@.ci/test-needs
	@PYTHONPATH=tests $(BIN)/python -m chaos $(if $(faults),--faults $(faults)) $(if $(seed),--seed $(seed))

chaos-hosts: $(ALL) ## 120 faults on three hosts that share only a network, checked at the end (as root; 15 minutes)
	@.ci/test-needs
	@PYTHONPATH=tests $(BIN)/python -m chaos.hosts $(if $(faults),--faults $(faults)) $(if $(seed),--seed $(seed))

chaos-slurm: $(ALL) ## 120 faults on a Slurm cluster and the service before it, checked at the end (15 minutes)
	@.ci/test-needs
	@PYTHONPATH=tests $(BIN)/python -m chaos.slurm $(if $(faults),--faults $(faults)) $(if $(seed),--seed $(seed))

soak: $(ALL) ## 2,000 jobs in containers; fails if files, threads, connections or memory rise (as root): make soak jobs=2000
	@.ci/test-needs
	@PYTHONPATH=tests $(BIN)/python -m soak $(if $(jobs),--jobs $(jobs))

clean: ## remove the environment, caches and the demo's folder
	@chmod -R u+w .venv .demo 2>/dev/null || true # the packages of jobs are read-only
	@rm -rf .venv .demo .experiments .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.run: $(LOCKED)
	@.ci/environment run
	@touch $@

$(ALL): $(LOCKED)
	@.ci/environment all
	@touch $@

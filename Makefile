# Every target does its own set-up: a fresh clone with python3 (>= 3.11), a C compiler and make needs nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PROGRAMS := dutyfree-agent dutyfree-spawner dutyfree-machine
PACKAGED := $(addprefix src/dutyfree/_native/,$(PROGRAMS))
# Tests wait more than they compute: workers beyond the processors pay.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? 4 : n)))
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --durations=10
NATIVE_SOURCES := $(wildcard native/*/*.c native/*/*.h)
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp native ## virtual environment, pinned dependencies, native programs; says what to type next
	@[ -z "$(filter setup,$(MAKECMDGOALS))" ] || printf '    %-26s %s\n' '$(BIN)/dutyfree demo' 'a rollout with a reward, shown and run' \
		'$(BIN)/dutyfree run -it' 'a shell in a sandbox' '$(BIN)/dutyfree doctor' 'what this machine can run'

develop: setup $(VENV)/.develop ## and what tests, checks and benchmarks need

native: $(PACKAGED) ## the C programs, put beside the Python sources

bench: setup ## measure every substrate of this machine (quick profile); writes and names the report
	$(BIN)/dutyfree measure --quick -o out/bench
	$(BIN)/dutyfree report out/bench

study: develop ## (root, Debian) the whole study on this machine, TRIALS=30 of each (the slowest half), into docs/study; resumable
	scripts/study.sh $(or $(TRIALS),30)

test: develop check ## the tests this machine can run in minutes; ends with what was left out, and the command for it
	$(PYTEST) --slow=without

test-all: test ## and the slow proofs: engines, virtual machines, sanitizers, fuzzers, faults (40 minutes where everything is installed)
	$(PYTEST) --slow=only

check: develop ## linters, types, formatting: what must be clean before a change goes in
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(NATIVE_SOURCES)

format: develop ## rewrite the sources as `check` wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(NATIVE_SOURCES)

docs: develop ## rewrite what is generated: docs/reference/substrates.md and configuration.md
	$(BIN)/dutyfree doctor --markdown >docs/reference/substrates.md
	$(BIN)/python scripts/options.py >docs/reference/configuration.md

speed: develop ## the native substrate against its rivals, as ratios in one run
	$(BIN)/python -m benchmarks.speed

versus: develop ## the native substrate of this tree against that of an older revision (OLD=REVISION), as ratios in one run
	$(BIN)/python -m benchmarks.versus $(OLD)

speed-state: develop ## snapshots, forks and resets of the native substrate, against plain creation in one run
	$(BIN)/python -m benchmarks.state

speed-warm: develop ## what pools and stages save, as ratios in one run
	$(BIN)/python -m benchmarks.warm

soak: develop ## 50,000 sandboxes (CYCLES=N) and what is left of them: nothing
	$(BIN)/python -m benchmarks.soak --cycles $(or $(CYCLES),50000)

chaos: develop ## MINUTES=2 of load and faults mixed by a seed (SEED=N plays one again); OWNERS=1000 kills owners instead
	$(BIN)/python -m benchmarks.chaos --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED)) $(if $(OWNERS),--owners $(OWNERS))

contamination: develop ## markers planted before each of 10,000 resets (RESETS=N), and how many were found after: none
	$(BIN)/python -m benchmarks.contamination --resets $(or $(RESETS),10000)

judges: develop ## every framework's own tests on its adapter, each in a cached environment; writes docs/reference/frameworks.md
	DUTYFREE_JUDGES=write $(BIN)/python -m pytest tests/judges

fuzz: develop ## coverage-guided fuzzers, FUZZ_SECONDS=600 each (SEED=N plays one again, TARGETS="agent client" picks); findings in out/fuzz
	$(BIN)/python tests/fuzz/run.py --seconds $(or $(FUZZ_SECONDS),600) $(if $(SEED),--seed $(SEED)) $(TARGETS)

fuzz-syscalls: develop ## random system calls inside sandboxes for SECONDS=600, the host being watched (SEED=N plays one again)
	$(BIN)/python tests/fuzz/syscalls.py --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

faults: develop ## every fault at every named point, and the twelve invariants after each; make test takes a few of them
	$(PYTEST) tests/faults/test_invariants.py

substrates: ## (root, Debian) install and start what this machine can have: docker, podman, runc, gVisor, QEMU
	scripts/substrates.sh start

substrates-stop: ## end what `make substrates` started; packages and images stay
	scripts/substrates.sh stop

cluster-build: ## (root, Go) build Kubernetes' own programs into a cache outside the repository: 15 minutes or more, once
	scripts/cluster-build.sh

claims-build: ## (root, Go) build agent-sandbox's controller into the same cache: `make cluster` then starts it too
	scripts/claims-build.sh

cluster: setup ## (root, Debian) a real one-node Kubernetes on this machine's loopback, all of it in one directory
	scripts/cluster.sh start

cluster-stop: ## end that cluster without a trace
	scripts/cluster.sh stop

opensandbox: setup ## (root) the vendor's own OpenSandbox server on this machine's Docker engine, on loopback
	scripts/opensandbox.sh start

opensandbox-stop: ## end that server, its sandboxes and their network
	scripts/opensandbox.sh stop

wheel: develop ## an installable wheel with the native programs inside, in dist/
	$(BIN)/python -m build

lock: $(VENV)/.develop ## pin what is installed now in constraints.txt
	{ sed -n '/^#/p' constraints.txt; $(BIN)/pip freeze --all --exclude-editable --exclude setuptools; } >constraints.new
	mv constraints.new constraints.txt

clean: ## remove everything that make made
	rm -rf $(VENV) out dist src/dutyfree/_native .mypy_cache .ruff_cache .pytest_cache .hypothesis
	$(MAKE) -C native clean

$(VENV)/.stamp: pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] || { echo "dutyfree needs python3 >= 3.11 on PATH; on Debian: apt-get install -y python3 python3-venv" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) lacks the venv module; on Debian: apt-get install -y python3-venv" >&2; exit 1; }
	[ -x $(BIN)/pip ] || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'pip>=25.1'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group build
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[kubernetes,oci,report]'
	@touch $@

$(VENV)/.develop: $(VENV)/.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group dev
	@touch $@

# The inner make knows the headers and flags; programs are copied only when they changed.
$(PACKAGED) &: FORCE
	@command -v cc >/dev/null || { echo "dutyfree needs a C compiler; on Debian: apt-get install -y gcc libc6-dev" >&2; exit 1; }
	@$(MAKE) --no-print-directory -s -C native
	@mkdir -p src/dutyfree/_native
	@for p in $(PROGRAMS); do cmp -s native/build/$$p src/dutyfree/_native/$$p || install -m 755 native/build/$$p src/dutyfree/_native/$$p; done

# Whatever `help` lists is no file.
.PHONY: FORCE $(shell sed -n 's/^\([a-z-]*\):.*## .*/\1/p' $(firstword $(MAKEFILE_LIST)))

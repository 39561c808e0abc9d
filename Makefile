# From a checkout to a mounted tree, and to its tests.
#   make up     build into .venv, mount, make first calls     make down   unmount
#   make core   tests of values alone, in seconds      make fast   tests without mounts and hosts, in a minute
#   make test   tests                     make test-plugins   those of plugins and of hosts
#   make test-ask   what people do every day: providers, models, ask, chat, scripts, logs; README and tutorials
#   make test-mcp   the official conformance suite of MCP, both ways, and published servers and clients
#   make test-web   the page, in a real browser
#   make pictures   those of the page in the docs, taken anew
#   make dist   what others install, into dist/      make test-dist   installs it on a clean Debian
#   make test-debian   builds, mounts and tries the last commit on a bare Debian 13
#   make test-team  teams of machines, with servers of NATS
#   make test-confinement   what agents, their tools and other mounts are kept from
#   make lint   style and types           make types   types          make format  write the style
#   make bench  the figures of docs/figures.md          make lanes  measure what each file of tests takes
#   make mutation   changes core/, and looks whether its tests notice     make soak   long fuzzing
#   make lock   renew the pins            make clean   remove what was built
# PYTHON=/path/to/python3 chooses the interpreter, CTX_ROOT the mount point, LANES how many tests run at a time.

MAKEFLAGS += --no-print-directory
.PHONY: up down core core-first core-second fast test test-plugins test-ask test-mcp test-web pictures test-team test-confinement lanes lint types format bench mutation soak lock clean packages test-packages dist test-dist test-debian

PYTHON ?=
LANES ?= 3
export PYTHONDONTWRITEBYTECODE := # compile each file once: daemons, commands and tests start by the hundred
BIN := .venv/bin
MODULES := $(sort $(wildcard cortexfs/*.py cortexfs/*/*.py cortexfs/*/*/*.py cortexfs/*/*/*/*.py))
NPM := $(shell command -v npm >/dev/null || echo npm) # Node.js of others brings its own
PACKAGES := python3-venv python3-dev gcc pkg-config libfuse3-dev fuse3 musl-tools
TEST_PACKAGES := procps libcap2-bin rsync attr bubblewrap vim-tiny strace socat netcat-openbsd git tmux jq fish zsh valgrind \
	nodejs openssl gnupg gpgv g++ ed xz-utils iproute2 $(NPM)
WEB_PACKAGES := chromium $(NPM)

up: .venv/.built
	@.ci/up

down:
	@.ci/down

packages:
	@.ci/packages $(PACKAGES)

test-packages:
	@.ci/packages $(TEST_PACKAGES)

.venv/.pins: requirements-dev.lock | packages
	@echo "installing Python packages into .venv"
	@python=$$(.ci/interpreter $(PYTHON)) && $$python -m venv .venv
	@$(BIN)/pip install -qq --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

# Editable: a change of Python code needs no build. A module that is new or elsewhere does, and so does a change
# of the runner or of the packaging.
.venv/.modules: .venv/.pins FORCE
	@echo '$(MODULES)' | cmp -s - $@ || echo '$(MODULES)' >$@
FORCE:

.venv/.built: .venv/.pins .venv/.modules pyproject.toml cortexfs/version.py $(wildcard runner/*)
	@echo "building cortexfs into .venv"
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The model of this machine, with its engine: tests and figures use the real one.
.venv/.local: .venv/.built
	@$(BIN)/ctx provider add-local
	@touch $@

TESTS := $(BIN)/python -m pytest -q -n $(LANES) --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --durations=10

# What runs plugins needs their compilers, engines and servers, and as long as half of all else.
PLUGIN_TESTS := tests/shell/host tests/shell/plugins tests/mounted/test_hooks.py \
	$(sort $(wildcard $(addprefix tests/mounted/test_,*plugin*.py esm*.py manifestjson*.py mcp*.py)))

MCP_TESTS := $(addprefix tests/mounted/test_,conformance_mcp.py published_servers.py published_clients.py \
	published_starts.py)
ASK_TESTS := $(sort $(wildcard $(addprefix tests/mounted/test_,ask*.py believed.py chat*.py engine*.py log.py \
	own_models.py providers*.py readme.py scripts*.py tutorials.py usage_limits.py)))
TEAM_TESTS := tests/team
# Attacks by real programs, each in mounts, groups and filters of its own.
CONFINEMENT_TESTS := tests/shell/host/confine tests/shell/host/test_confinement.py tests/shell/agents/test_confinement_home.py \
	$(addprefix tests/mounted/test_,agents_dry_runs.py agents_escapes.py agents_hostile.py agents_places.py agents_view.py \
	confinement.py dry_run_labels.py second_mounts.py taken_over.py)
DIST_TESTS := tests/dist
# What has targets of its own.
SLOW_TESTS := $(PLUGIN_TESTS) $(ASK_TESTS) $(MCP_TESTS) $(TEAM_TESTS) $(CONFINEMENT_TESTS) $(DIST_TESTS) tests/web
DIST_PACKAGES := git dpkg-dev lintian mmdebstrap man-db

test: .venv/.local test-packages
	@.ci/running >.venv/.running
	@$(TESTS) $(addprefix --ignore=,$(SLOW_TESTS))
	@.ci/running .venv/.running

test-plugins: .venv/.local test-packages
	@.ci/running >.venv/.running
	@$(TESTS) $(PLUGIN_TESTS) $(addprefix --ignore=,$(CONFINEMENT_TESTS))
	@.ci/running .venv/.running

test-ask: .venv/.local test-packages
	@.ci/running >.venv/.running
	@$(TESTS) $(ASK_TESTS)
	@.ci/running .venv/.running

test-mcp: .venv/.local test-packages build/nodejs build/uv build/published build/langchain
	@.ci/running >.venv/.running
	@$(TESTS) $(MCP_TESTS)
	@.ci/running .venv/.running

test-team: .venv/.local test-packages build/team
	@.ci/running >.venv/.running
	@$(TESTS) $(TEAM_TESTS)
	@.ci/running .venv/.running

test-confinement: .venv/.local test-packages
	@.ci/running >.venv/.running
	@$(TESTS) $(CONFINEMENT_TESTS)
	@.ci/running .venv/.running

test-web: .venv/.local test-packages build/web build/team
	@.ci/packages $(WEB_PACKAGES)
	@.ci/running >.venv/.running
	@$(TESTS) tests/web
	@.ci/running .venv/.running

pictures: .venv/.local build/web
	@.ci/packages $(WEB_PACKAGES)
	@$(BIN)/python -m tests.web.pictures

build/dist-tools: .ci/dist/tools.lock | .venv/.pins
	@mkdir -p $@
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --require-hashes --target $@ --upgrade -r $<
	@touch $@

dist: .venv/.built build/dist-tools
	@.ci/packages $(DIST_PACKAGES)
	@.ci/dist/make build/dist-tools

build/clean-root: .ci/dist/clean-root
	@.ci/packages $(DIST_PACKAGES)
	@.ci/dist/clean-root $@
	@touch $@

test-dist: dist build/clean-root
	@$(BIN)/python -m pytest -q -n 2 $(DIST_TESTS)

test-debian:
	@.ci/packages mmdebstrap
	@.ci/debian-13 build/debian-13

build/web build/nodejs build/uv build/team: build/%: tests/%.lock | .venv/.pins
	@mkdir -p $@
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --require-hashes --target $@ --upgrade -r $<
	@touch $@

# Servers and clients of MCP that others have published, in environments of their own.
build/published build/langchain: build/%: tests/%.lock | .venv/.pins
	@python=$$(.ci/interpreter $(PYTHON)) && $$python -m venv $@
	@$@/bin/pip install -qq --disable-pip-version-check --require-hashes -r $<
	@touch $@

# The order of the files: lanes take the longest first.
lanes: .venv/.local test-packages build/web
	@$(TESTS) --measure --ignore=$(DIST_TESTS)

# Fork servers of their own make these slow.
HOST_TESTS := tests/shell/pool $(wildcard tests/shell/run/test_exec*.py) tests/shell/models/test_answers.py

# Lanes would each import and collect all files, which takes as long as a third of these tests. So two processes
# take half of the files each.
core: .venv/.built
	@$(MAKE) -j2 --output-sync=target core-first core-second

# Lanes are not used here, and both processes would import them.
CORE := $(BIN)/python -m pytest -q -p no:cacheprovider --disable-plugin-autoload -p _hypothesis_pytestplugin

core-first:
	@$(CORE) tests/core/[a-m]*/

core-second:
	@$(CORE) tests/core/[n-z]*

# The inner rings: values, and real processes and sockets, without a mount or hosts.
fast: .venv/.local test-packages
	@$(TESTS) tests/core tests/rules tests/shell tests/runner $(addprefix --ignore=,$(SLOW_TESTS) $(HOST_TESTS))

lint: .venv/.built
	@$(BIN)/ruff check -q . .ci
	@$(BIN)/ruff format -q --check . .ci
	@$(BIN)/mypy

types: .venv/.built
	@$(BIN)/mypy

format: .venv/.built
	@$(BIN)/ruff check -q --fix . .ci
	@$(BIN)/ruff format -q . .ci

# Programs that are measured beside ours, and needed for nothing else.
build/peers: tests/bench/peers.lock | .venv/.pins
	@mkdir -p $@
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --require-hashes --target $@ --upgrade -r $< \
		|| echo "without wasmtime's program, which is not to be had here: its row is left out"
	@touch $@

build/llm: tests/bench/llm.lock | .venv/.pins
	@mkdir -p $@
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --require-hashes --target $@ --upgrade -r $< \
		|| echo "without llm, which is not to be had here: its row is left out"
	@touch $@

bench: .venv/.local test-packages build/peers build/llm build/team build/web build/nodejs build/uv build/published
	@.ci/packages $(WEB_PACKAGES) openssh-server
	@$(BIN)/python -m tests.bench

# A program that changes the code, to see whether tests notice.
build/mutation: tests/mutation.lock | .venv/.pins
	@mkdir -p $@
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --require-hashes --target $@ --upgrade -r $<
	@touch $@

mutation: .venv/.built build/mutation
	@$(BIN)/python -m tests.mutation

soak: .venv/.local test-packages mutation build/web build/team
	@CTX_SOAK=600 $(BIN)/python -m pytest -q --ignore=$(DIST_TESTS)

lock: .venv/.pins
	@python3 -m venv .venv/lock && .venv/lock/bin/pip install -qq pip-tools
	@CUSTOM_COMPILE_COMMAND="make lock" .venv/lock/bin/pip-compile -q --upgrade --generate-hashes --strip-extras \
		--no-emit-options --extra local --extra mcp --extra plugins --extra dev -o requirements-dev.lock pyproject.toml
	@.venv/lock/bin/pip-compile -q --upgrade --generate-hashes --strip-extras --no-emit-options --no-header --no-annotate \
		--extra mcp --extra plugins -c requirements-dev.lock -o .ci/dist/runtime.lock pyproject.toml
	@.venv/lock/bin/pip-compile -q --upgrade --generate-hashes --allow-unsafe --strip-extras --no-emit-options \
		--no-header --no-annotate -o .ci/dist/tools.lock .ci/dist/tools.in

clean: down
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

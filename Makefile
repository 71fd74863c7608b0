# make run: a mesh on this machine. make test: the whole suite. Both need Python 3.11 and a way to the package index.

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# The first Python 3.11 that runs; PYTHON=/path/to/python3.11 names another one.
IS_3_11 := import sys; sys.exit(sys.version_info[:2] != (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	"$$p" -c '$(IS_3_11)' >/dev/null 2>&1 && command -v "$$p" && break; done)
# More arguments for `make run` and `make test`, such as ARGS="--shards 3" or ARGS="-k cache".
ARGS ?=
# Programs that the tests of clients run, with libraries of their own.
CLIENTS := var/clients-venv
CLIENTS_STAMP := $(CLIENTS)/.installed
# Says that what `mesh --engine ray` needs is in $(VENV) too.
RAY_STAMP := $(VENV)/.installed-ray
# What the browser tests drive; from Debian's package of that name.
CHROMIUM := /usr/bin/chromium
# What the database tests make a throw-away cluster with; from Debian's package `postgresql`.
INITDB := /usr/lib/postgresql/*/bin/initdb
# Tells Debian's package not to start a cluster for the whole machine when it is installed.
NO_CLUSTER := /etc/postgresql-common/createcluster.d/meshnet-tests.conf
# What the tests of several heads share, and what stands before them; from Debian's packages of those names.
REDIS_SERVER := /usr/bin/redis-server
NGINX := /usr/sbin/nginx
# Tells Debian's packages not to start services for the whole machine when they are installed.
NO_SERVICES := /usr/sbin/policy-rc.d
# How tests are shared out (docs/decisions/0015-test-workers.md); ARGS="-n 0" runs them in one process.
SPREAD := -n 3 --dist loadscope --no-loadscope-reorder

.PHONY: help setup clients chromium postgresql redis-and-nginx run node test test-long test-postgresql test-ray \
  test-bench test-scaling ray schema chaos soak bench simulate lint format
.NOTPARALLEL:

help:
	@echo "make run      install, fetch the default model once, start a local mesh (Ctrl-C ends it)"
	@echo "make node     lend this machine to a mesh: HEAD=https://mesh.example.org SECRET_FILE=/path [URL=…] [LAYERS=12:24]"
	@echo "make test     install, run the whole suite, on the default model, on PostgreSQL and in a browser too (as root"
	@echo "              on Debian it installs chromium, postgresql, redis-server and nginx when they are missing)"
	@echo "make schema   many random requests against the schema of /v1 (MESHNET_SCHEMA_EXAMPLES=500 to each endpoint)"
	@echo "make test-long  the long forms of some tests (MESHNET_LONG_TESTS=1), on the default model and in a browser too"
	@echo "make test-postgresql  every unit test of the database, on PostgreSQL, and all tests of several heads"
	@echo "make test-scaling     replicas of a running mesh come and go under load"
	@echo "make test-ray  the engine on a Ray cluster of three machines (5 minutes; docs/ray.md)"
	@echo "make ray      install what mesh --engine ray needs into $(VENV)"
	@echo "make chaos    every node of a route, at every kind of step, meets every fault (6 minutes; docs/chaos.md)"
	@echo "make soak     10 minutes of clients and random faults; ARGS=\"--seconds 60 --seed 7\""
	@echo "make bench    the mesh side by side with its peers on this machine (ARGS=--quick: within 4 minutes)"
	@echo "make simulate a thousand nodes, ten thousand sessions and failures in virtual time (ARGS=--quick: seconds)"
	@echo "make setup    install into $(VENV) only"
	@echo "make lint     ruff, mypy, Django's checks, missing migrations"
	@echo "make format   let ruff put the code into its form"

setup: $(STAMP)

$(STAMP): requirements.txt requirements-dev.txt
	@test -n "$(PYTHON)" && "$(PYTHON)" -c '$(IS_3_11)' || { \
	  echo "meshnet needs Python 3.11, and '$(or $(PYTHON),python3.11)' is not that: install it (with its venv module)," \
	       "or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "== Making $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv $(VENV) || { \
	  echo "The venv module of '$(PYTHON)' does not work (on Debian: apt install python3.11-venv)." >&2; exit 1; }
	@echo "== Installing the libraries (torch is the big one: some minutes the first time)"
	@$(PY) -m pip install --disable-pip-version-check -r requirements-dev.txt
	@touch $@

clients: $(CLIENTS_STAMP)

$(CLIENTS_STAMP): requirements-clients.txt $(STAMP)
	@echo "== Installing the programs that the tests of clients run"
	@$(PY) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --disable-pip-version-check --quiet -r requirements-clients.txt
	@touch $@

ray: $(RAY_STAMP)

$(RAY_STAMP): requirements-ray.txt $(STAMP)
	@echo "== Installing Ray"
	@$(PY) -m pip install --disable-pip-version-check -r requirements-ray.txt
	@touch $@

run: setup
	@exec $(PY) manage.py mesh $(ARGS)

# MODEL, PORT, BIND and MEMORY may be named too; MESHNET_ settings are taken from the environment.
node: setup
	@test -n "$(HEAD)" && test -n "$(SECRET_FILE)" || { \
	  echo "Name the mesh's head and its secret: make node HEAD=https://mesh.example.org SECRET_FILE=/path/to/secret" >&2; \
	  exit 1; }
	@exec $(PY) manage.py node --head "$(HEAD)" --secret-file "$(SECRET_FILE)" --url "$(URL)" --layers "$(LAYERS)" \
	  --port "$(or $(PORT),8001)" --bind "$(BIND)" --model "$(MODEL)" --memory "$(MEMORY)"

chromium:
	@if [ -x $(CHROMIUM) ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "== Installing Debian's chromium for the browser tests"; \
	  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y chromium; } || \
	    echo "== chromium could not be installed: the browser tests will fail" >&2; \
	else \
	  echo "== $(CHROMIUM) is missing and only root may install it (apt-get install chromium):" \
	       "the browser tests will fail" >&2; \
	fi

postgresql:
	@if ls $(INITDB) >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "== Installing Debian's postgresql for the database tests"; \
	  mkdir -p $(dir $(NO_CLUSTER)) && echo "create_main_cluster = false" >$(NO_CLUSTER); \
	  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y postgresql; } || \
	    echo "== postgresql could not be installed: the database tests will fail" >&2; \
	  rm -f $(NO_CLUSTER); \
	else \
	  echo "== PostgreSQL's server is missing and only root may install it (apt-get install postgresql):" \
	       "the database tests will fail" >&2; \
	fi

redis-and-nginx:
	@missing=$$(echo $$(test -x $(REDIS_SERVER) || echo redis-server) $$(test -x $(NGINX) || echo nginx)); \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "== Installing Debian's $$missing for the tests of several heads"; \
	  made=; test -e $(NO_SERVICES) || { made=1; printf '#!/bin/sh\nexit 101\n' >$(NO_SERVICES); chmod 755 $(NO_SERVICES); }; \
	  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y $$missing; } || \
	    echo "== $$missing could not be installed: the tests of several heads will fail" >&2; \
	  for name in $$missing; do update-rc.d $$name disable >/dev/null 2>&1 || true; done; \
	  test -z "$$made" || rm -f $(NO_SERVICES); \
	else \
	  echo "== $$missing: missing, and only root may install it (apt-get install $$missing):" \
	       "the tests of several heads will fail" >&2; \
	fi

test: setup clients chromium postgresql redis-and-nginx
	@echo "== The model for the tests"
	@$(PY) manage.py fetch_model "$${MESHNET_REAL_MODEL:-SmolLM2-135M-Instruct}"
	MESHNET_REAL_MODEL_TESTS=1 MESHNET_POSTGRESQL_TESTS=1 MESHNET_CLIENT_TESTS=1 $(PY) -m pytest $(SPREAD) $(ARGS)

# All unit tests that use the database, on PostgreSQL, and the long tests of several heads; `make test` has the others.
test-postgresql: setup postgresql redis-and-nginx
	MESHNET_POSTGRESQL_TESTS=all $(PY) -m pytest tests/integration/test_postgresql.py tests/heads $(ARGS)

# The suite has a short form of each of these, or other tests of the same thing.
test-long: setup clients chromium postgresql redis-and-nginx
	@$(PY) manage.py fetch_model "$${MESHNET_REAL_MODEL:-SmolLM2-135M-Instruct}"
	MESHNET_LONG_TESTS=1 MESHNET_REAL_MODEL_TESTS=1 MESHNET_POSTGRESQL_TESTS=1 MESHNET_CLIENT_TESTS=1 \
	  $(PY) -m pytest $(SPREAD) -m long $(ARGS)

# Clusters of Ray on this machine, one of three machines that die by SIGKILL.
test-ray: setup ray
	@$(PY) manage.py fetch_model
	MESHNET_RAY_TESTS=1 $(PY) -m pytest -n 0 -p no:randomly tests/ray $(ARGS)

# Many random requests to a toy mesh; MESHNET_SCHEMA_EXAMPLES says how many to each endpoint.
schema: setup
	MESHNET_SCHEMA_EXAMPLES=$${MESHNET_SCHEMA_EXAMPLES:-500} $(PY) -m pytest -q tests/integration/test_schema_over_http.py $(ARGS)

# A killed process leaves semaphores, and Python's resource tracker says so at the end.
CHAOS := $(PY) -W "ignore:resource_tracker" -m tests.chaos

chaos: setup
	$(CHAOS) matrix $(ARGS)
	MESHNET_CHAOS_TESTS=1 $(PY) -m pytest -q tests/chaos tests/integration/test_keep_alive.py tests/integration/test_handover.py

soak: setup
	$(CHAOS) soak $(ARGS)

# `manage.py mesh` and `mesh_scale` as an operator uses them, on a toy model: three minutes.
test-scaling: setup
	MESHNET_SCALING_TESTS=1 $(PY) -m pytest -q tests/integration/test_scaled_mesh.py $(ARGS)

# The whole benchmark on a toy model; no number is judged.
test-bench: setup
	MESHNET_BENCH_TESTS=1 $(PY) -m pytest tests/integration/test_bench.py $(ARGS)

bench: setup
	@$(PY) manage.py fetch_model
	@exec $(PY) manage.py bench $(ARGS)

simulate: setup
	@exec $(PY) manage.py simulate $(ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) manage.py check
	DATABASE_URL=sqlite://:memory: $(PY) manage.py makemigrations --check --dry-run

format: setup
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

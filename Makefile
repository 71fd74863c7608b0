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
# What the browser tests drive; from Debian's package of that name.
CHROMIUM := /usr/bin/chromium

.PHONY: help setup chromium run test bench lint format
.NOTPARALLEL:

help:
	@echo "make run      install, fetch the default model once, start a local mesh (Ctrl-C ends it)"
	@echo "make test     install, run the whole suite, on the default model and in a browser too (as root on Debian it"
	@echo "              installs chromium when that is missing)"
	@echo "make bench    milliseconds per token at a short and at a long text, on the running mesh or one of its own"
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

run: setup
	@exec $(PY) manage.py mesh $(ARGS)

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

test: setup chromium
	@echo "== The model for the tests"
	@$(PY) manage.py fetch_model "$${MESHNET_REAL_MODEL:-SmolLM2-135M-Instruct}"
	MESHNET_REAL_MODEL_TESTS=1 $(PY) -m pytest $(ARGS)

bench: setup
	@$(PY) manage.py bench $(ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) manage.py check
	DATABASE_URL=sqlite://:memory: $(PY) manage.py makemigrations --check --dry-run

format: setup
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

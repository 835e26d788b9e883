# All work goes through here. Each target sets up what it needs, once: a virtual environment with
# the pinned requirements, and in it the wheel built from this tree. The checks run against that
# wheel, never against the tree, because start-up files work only when they are really installed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Without byte-code every process would compile its imports again, and the tree must not be found
# by accident.
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONHOME PYTHONSTARTUP
# The variables of the plugin itself must come from the tests alone.
$(foreach name,$(filter SGLANG_%,$(.VARIABLES)),$(eval unexport $(name)))

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.requirements-installed
WHEEL := $(VENV)/.wheel-installed
REQUIREMENTS := tests/requirements.txt tests/requirements-host.txt
# Folders are listed too, so that a deleted file counts as a change.
SOURCES := pyproject.toml README.md LICENSE $(shell find hs_capture sitecustomize_shim -name __pycache__ -prune -o -not -name '*.pyc' -print)
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/pytest

.PHONY: help setup lint unit startup lowest contract e2e modes oldest trainers readers test matrix demo bench-extract bench-startup clean

help:  ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(WHEEL)  ## Make .venv with the requirements and the wheel of this tree

$(READY): $(REQUIREMENTS)
	@python=; \
	for candidate in python3.11 python3; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; \
	  then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make: Python 3.11 with its venv module is needed, as 'python3.11' or 'python3' on PATH;" >&2; \
	  echo "make: found: $$(python3 --version 2>&1 || true)" >&2; exit 1; \
	fi; \
	echo "== setting up $(VENV) with $$($$python --version) (some 6 GB, once)"; \
	"$$python" -m venv --clear $(VENV)
	$(PIP) install --progress-bar off -r tests/requirements.txt
	$(PIP) install --progress-bar off --no-deps -r tests/requirements-host.txt
	@touch $@

$(WHEEL): $(READY) $(SOURCES)
	@echo "== building the wheel and installing it into $(VENV)"
	@rm -rf build/wheel
	$(BIN)/pyproject-build --wheel --no-isolation --outdir build/wheel . >/dev/null
	$(PIP) install --quiet --no-index --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

lint: $(READY)  ## Style, format and types
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(WHEEL)  ## Tests of single modules, with properties
	@echo "== unit tests"
	$(PYTEST) tests/unit

startup: $(WHEEL)  ## Tests of activation in real interpreters
	@echo "== start-up tests"
	$(PYTEST) tests/startup

# The versions are the lower bounds in pyproject.toml, so none can be claimed that is not run.
LOWEST = $(shell sed -nE 's/^    "([a-z]+)>=([0-9.]+)",$$/\1==\2/p' pyproject.toml)
lowest: $(WHEEL)  ## Unit and start-up tests with the oldest dependencies that are allowed (not in test)
	@echo "== the lowest versions: $(LOWEST)"
	@rm -rf build/lowest
	$(PIP) install --quiet --no-deps --only-binary :all: --target build/lowest $(LOWEST)
	PYTHONPATH=$(CURDIR)/build/lowest $(PYTEST) tests/unit tests/startup

contract: $(WHEEL)  ## Tests that every supported SGLang has the names that the hooks rely on
	@echo "== contract with the released SGLangs"
	$(PYTEST) tests/contract

e2e: $(WHEEL)  ## Tests against a real SGLang server on the CPU
	@echo "== end-to-end tests"
	$(PYTEST) tests/e2e

modes: $(WHEEL)  ## Tests of serving modes on a real SGLang server on the CPU (not in test)
	@echo "== serving modes"
	$(PYTEST) tests/modes

oldest: $(WHEEL)  ## Tests against the oldest supported SGLang
	@echo "== the oldest supported SGLang"
	$(PYTEST) tests/oldest

trainers: $(WHEEL)  ## Every trainer, unmodified, reads exports of real captures (0.5 GB, once; not in test)
	@echo "== trainers"
	$(PYTEST) tests/trainers

readers: $(WHEEL)  ## The same for SpecForge and speculators alone
	@echo "== trainers: SpecForge and speculators"
	$(PYTEST) tests/trainers -k "specforge or (speculators and not v1) or targets"

test: lint unit startup contract e2e readers oldest  ## All checks but those marked (not in test)
	@echo "== all checks passed"

matrix: $(WHEEL)  ## Run every supported SGLang, and write docs/compatibility.md (not in test)
	cd tests && PYTHONPATH=. ../$(BIN)/python -m matrix

demo: $(WHEEL)  ## Capture from a real server on the CPU and compare with transformers (KEEP=folder keeps it)
	PYTHONPATH=tests $(BIN)/python tests/demo.py $(if $(KEEP),--keep "$(KEEP)")

bench-extract: $(WHEEL)  ## The memory of extract and export over 100,000 samples (an hour)
	PYTHONPATH=tests $(BIN)/python benchmarks/extract_memory.py

bench-startup: $(WHEEL)  ## What the plugin adds to the start of an interpreter
	$(BIN)/python benchmarks/startup.py

clean:  ## Remove everything that make made
	rm -rf $(VENV) .venv-trainers build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

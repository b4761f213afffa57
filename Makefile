# `make up` and `make test` need Python 3.11 or newer and nothing else.

.PHONY: up test check bench traps soak lock

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

up: $(STAMP)
	@exec $(BIN)/python manage.py up

test: check
	$(BIN)/python -m tests.run $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(STAMP)
	$(BIN)/python -m bench.spine

# Takes the cures out one by one: each time a named test must fail.
traps: $(STAMP)
	$(BIN)/python -m tests.traps.run

# What is too long for every run (KILLS=40 at each fault point among it), then the acceptance suite again and
# again: MINUTES=600 make soak
MINUTES ?= 60
soak: $(STAMP)
	$(BIN)/python -m pytest -m soak
	@end=$$(( $$(date +%s) + 60 * $(MINUTES) )); \
	while [ $$(date +%s) -lt $$end ]; do $(BIN)/python -m pytest tests/acceptance || exit 1; done

# Versions and hashes for every platform; the second file is what an image needs. Needs uv.
LOCK := uv pip compile pyproject.toml --universal --generate-hashes --no-header --no-emit-index-url -p 3.11
lock:
	$(LOCK) --group dev -o requirements.lock
	$(LOCK) --constraint requirements.lock -o requirements.runtime.lock

# The stamp carries the lock file's date: a second run has nothing to do, a changed lock installs again.
# Candidates are tried by running them, because a version manager puts shims of absent versions on the PATH.
$(STAMP): requirements.lock
	@for candidate in python3.11 python3.12 python3.13 python3; do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "Fencepost needs Python 3.11 or newer on the PATH." >&2; exit 1; fi; \
	test -x $(BIN)/python || $$python -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "Could not make $(VENV). On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing the locked packages into $(VENV) (again only when requirements.lock changes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	@touch $@

# make demo       the whole experiment: create .venv, train, measure, draw the figures, write the report
# make figures    draw the figures of the newest measurement of RUN (default runs/demo); train and measure first if necessary
# make report     write that measurement as one HTML file
# make RECIPE     run a recipe of experiments/: evidence, seeds, hypothesis, twin, synthetic, synthetic-10x, lengths, smollm2;
#                 SET="seeds=0,1" changes its settings, J=2 runs two commands at once, DRY=1 prints them; run again, it continues
# make test       create .venv; run lint, types and tests
# make check      the same in the .venv that is there
# make slow       the tests that take long, and the wheel in an empty environment
# make browser    install Debian's Chromium, if possible, for the tests of the pages; without it they are skipped
# make bench      compare the speed of measuring with captum and with the hardware limit
# make gpu-check  check training on this machine's GPU (bf16, compiled, resumed, all paths) and its speed; else on the CPU
# make mutants    change one line UNDER a folder (default all) at random, NUMBER times, drawn with SEED; list what no test notices
# make docs       build the documentation site in site/
# make format     correct what lint and format can correct by themselves
# make lock       write requirements.lock again
# make clean      remove .venv and caches; data/ and runs/ are kept

# The first Python whose version ai2-olmo supports.
PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.10 python; do \
	$$python -c 'import sys; raise SystemExit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
	&& { echo $$python; break; }; done)
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable
RUN ?= runs/demo
UNDER ?= olmo_sparsity analysis
NUMBER ?= 40
SEED ?= 0
RECIPES = $(basename $(notdir $(wildcard experiments/*.yaml)))
SMOLLM2 = data/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: demo figures report $(RECIPES) weights test check slow browser bench gpu-check mutants docs format lock clean

demo: $(READY)
	$(BIN)/olmo-sparsity train
	$(BIN)/olmo-sparsity influence --k 8
	@$(BIN)/olmo-sparsity figures --run runs/demo
	@$(BIN)/olmo-sparsity report --run runs/demo --overwrite

figures: $(READY)
	$(BIN)/olmo-sparsity figures --run $(RUN)

report: $(READY)
	$(BIN)/olmo-sparsity report --run $(RUN) --overwrite

$(RECIPES): $(READY)
	@$(BIN)/python -m experiments $@ $(foreach change,$(SET),--set '$(change)') $(if $(J),-j $(J)) $(if $(DRY),--dry-run)

smollm2: $(if $(DRY),,weights)

# Each time: the script compares the file with its known hash, and says nothing where it is the right one.
weights: $(READY)
	@$(BIN)/python scripts/fetch_smollm2.py $(SMOLLM2)

test: $(READY)
	@$(MAKE) --no-print-directory check

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

slow: $(READY)
	$(BIN)/pytest --numprocesses 0 -m 'slow or wheel'

browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get update -qq >/dev/null 2>&1 \
		&& DEBIAN_FRONTEND=noninteractive timeout 240 apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core \
		>/dev/null 2>&1; } || echo "Chromium is missing and cannot be installed: the tests of the pages are skipped"

bench: $(READY)
	$(INSTALL) '.[dev,bench]'
	$(BIN)/python -W ignore -m benchmarks.engine

gpu-check: $(READY)
	$(BIN)/python -W ignore -m benchmarks.gpu_check

mutants: $(READY)
	$(INSTALL) '.[dev,mutants]'
	$(BIN)/python -m benchmarks.mutants --under $(UNDER) --number $(NUMBER) --seed $(SEED)

docs: $(READY)
	$(INSTALL) '.[dev,docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra docs --universal --python-version 3.10 --no-header --quiet \
		--output-file requirements.lock
	sed -i '1i # Versions that work together on Python 3.10 to 3.12. Written by `make lock`; pip uses it as constraints.' requirements.lock

$(READY): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "make: no Python 3.10, 3.11 or 3.12 found; give one with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

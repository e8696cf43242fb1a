# make demo      run the whole experiment: create .venv, train, measure, draw the figures, write the report
# make real      download SmolLM2-135M-Instruct (93 MB) and measure it on DATA (default the built-in text), with figures and report
# make test      create .venv; run lint, types and tests
# make check     run lint, types and tests in the .venv that is there
# make browser   install Debian's Chromium, if possible, for the tests of the report; without it they are skipped
# make report    write the report of the newest measurement of RUN (default runs/demo) as one HTML file
# make figures   draw the figures of the newest measurement of RUN (default runs/demo), or of TABLES; measure first if necessary
# make evidence  measure the demo with every selector, draw all its figures, and make curve
# make curve     measure the four-way run: the demo, without PoSE, with RandPos, and the ceiling, and compare the demo with each
#                of the others; train what is missing; SEEDS="0 1 2" for three seeds of each
# make seeds     train and measure SEEDS (default "0 1 2") of the demo, and print their means; resumes after a stop
# make hypothesis  train and measure the runs of docs/reproduce.md (SEEDS, default 101 to 105, of the demo and the ceiling;
#                TARGETS_OF_TEST targets), print and draw whether sparsity predicts the gain; resumes after a stop
# make twin      train and evaluate the runs of the causal twin in docs/reproduce.md (SEEDS, default 101 to 106, of PoSE and the
#                ceiling, the first two without PoSE), print the accuracy inside the training row and beyond it; resumes after a stop
# make figures-synthetic  train and measure the synthetic tasks at CPU size (SEEDS, default 0), and draw them; resumes after a stop
# make bench     compare the influence engine with captum and with the hardware limit
# make gpu-check check training on this machine's GPU (bf16, compiled, resumed, all paths) and its speed; without a GPU, on the CPU
# make mutants  change one operator or number at a time in ROOM (statistics, measure, view or analysis), NUMBER times at random
#                (default 40), and list the changes that no test notices
# make docs      build the documentation site in site/
# make format    correct what lint and format can correct by themselves
# make lock      write requirements.lock again
# make clean     remove .venv and caches; data/ and runs/ are kept

# The first Python whose version ai2-olmo supports.
PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.10 python; do \
	$$python -c 'import sys; raise SystemExit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
	&& { echo $$python; break; }; done)
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
RUN ?= runs/demo
FOUR_WAY = $(patsubst %,configs/%.yaml,demo demo-no-pose demo-randpos demo-ceiling)
# The run of a configuration is FOLDER/NAME for seed 0 and FOLDER/NAME-seedN for seed N.
# $(call each_seed,COMMAND,CONFIGURATIONS,FOLDER[,SEEDS]): run the command for each configuration and each of SEEDS.
each_seed = @set -e; for seed in $(or $(4),$(SEEDS)); do for config in $(2); do \
	run=$(3)/$$(basename $$config .yaml); test $$seed = 0 || run=$$run-seed$$seed; \
	set -- $(1) --config $$config --run $$run --train training.seed=$$seed; \
	echo "olmo-sparsity $$*"; $(BIN)/olmo-sparsity "$$@"; done; done
# $(call runs_of,CONFIGURATIONS,FOLDER[,SEEDS]): the same runs as options, all seeds of a configuration together.
runs_of = $(foreach config,$(1),$(foreach seed,$(or $(3),$(SEEDS)),--run \
	$(2)/$(basename $(notdir $(config)))$(if $(filter-out 0,$(seed)),-seed$(seed))))

# The weights that `make real` measures.
SMOLLM2 = data/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: demo real figures figures-synthetic report browser evidence curve seeds hypothesis twin bench mutants gpu-check docs test check format lock clean

demo: $(READY)
	$(BIN)/olmo-sparsity train
	$(BIN)/olmo-sparsity influence --k 8
	@$(MAKE) --no-print-directory figures
	@$(MAKE) --no-print-directory report
	@echo "To print the results again: $(BIN)/olmo-sparsity summary"

figures: $(READY)
	$(BIN)/olmo-sparsity figures $(if $(TABLES),--tables $(TABLES),--run $(RUN))

FORCE:

evidence: $(READY)
	$(BIN)/olmo-sparsity influence --selector all --num-windows 3000
	$(BIN)/olmo-sparsity figures --all
	@$(MAKE) --no-print-directory curve

curve: SEEDS ?= 0
curve: $(READY)
	$(call each_seed,influence,$(FOUR_WAY),runs)
	@set -e; for seed in $(SEEDS); do end=-seed$$seed; test $$seed != 0 || end=; \
	for other in demo-no-pose demo-randpos demo-ceiling; do set -- compare runs/demo$$end runs/$$other$$end; \
	echo "olmo-sparsity $$*"; $(BIN)/olmo-sparsity "$$@"; done; done

seeds: SEEDS ?= 0 1 2
seeds: $(READY)
	$(call each_seed,influence,configs/demo.yaml,runs)
	$(BIN)/olmo-sparsity summary $(call runs_of,configs/demo.yaml,runs)

# The plan of docs/reproduce.md. As many local tokens as a training row has, so that all others lie beyond it.
HYPOTHESIS = $(patsubst %,configs/%.yaml,demo demo-ceiling)
TARGETS_OF_TEST ?= 100000
REACTIONS = influence --local-len 8 --selector kl --selector attention --selector random --k 1$(comma)2$(comma)4 \
	--num-windows $(TARGETS_OF_TEST) --seed 1 influence.max_windows_per_document=100 influence.resampled_draws=0 \
	training.precision=bf16
RUNS_OF_TEST = $(call runs_of,$(HYPOTHESIS),runs/hypothesis)
hypothesis: SEEDS ?= 101 102 103 104 105
hypothesis: $(READY)
	$(call each_seed,$(REACTIONS),$(HYPOTHESIS),runs/hypothesis)
	$(BIN)/olmo-sparsity hypothesis $(RUNS_OF_TEST)
	$(BIN)/python -m analysis hypothesis $(RUNS_OF_TEST) --out runs/hypothesis/figures
comma = ,

# The causal twin of it: of_NAME holds the task and the keys of the runs NAME-seedN. The seeds of a name are one model.
of_sum-pose = sum
of_sum-ceiling = sum context.train_len=32 pose.num_chunks=1 synthetic.train_lengths=[4,30]
of_sum-no-pose = sum pose.num_chunks=1
SEEDS_OF_TWIN_WITHOUT_POSE = $(wordlist 1,2,$(SEEDS))
# $(call with_seeds,NAMES[,SEEDS])
with_seeds = $(foreach seed,$(or $(2),$(SEEDS)),$(1:%=%-seed$(seed)))
TWIN = $(foreach name,sum-pose sum-ceiling,$(call with_seeds,$(name))) $(call with_seeds,sum-no-pose,$(SEEDS_OF_TWIN_WITHOUT_POSE))
# $(call evaluate,FOLDER/NAME-seedN): train and evaluate a run of a synthetic task; what is finished is skipped.
evaluate = set -- synth eval $(of_$(firstword $(subst -seed, ,$(notdir $(1))))) --run $(1) training.seed=$(lastword $(subst -seed, ,$(1))); \
	echo "olmo-sparsity $$*"; $(BIN)/olmo-sparsity "$$@";
twin: SEEDS ?= 101 102 103 104 105 106
twin: $(READY)
	@set -e; $(foreach run,$(TWIN:%=runs/twin/%),$(call evaluate,$(run)))
	$(BIN)/olmo-sparsity synth summary $(TWIN:%=--run runs/twin/%)

# Figure 1 has a run for each K_train; figures 2 and 3 have one for each way to give position IDs.
K_TRAIN ?= 2 4
METHODS ?= coupled predicted shifted pose shifted-answer pose-answer
of_predicted = synthetic.positions=predicted
of_shifted = synthetic.positions=shifted
of_pose = synthetic.positions=pose model.position_embedding=rope
$(foreach method,shifted pose,$(eval of_$(method)-answer = $(of_$(method)) synthetic.scratchpad=false))
$(foreach k,$(K_TRAIN),$(eval of_parity-K$(k) = parity synthetic.max_sparsity=$(k)))
$(foreach task,scratchpad variables,$(foreach method,$(METHODS),$(eval of_$(task)-$(method) = $(task) $(of_$(method)))))
SYNTHETIC = $(call with_seeds,$(K_TRAIN:%=parity-K%) $(METHODS:%=scratchpad-%) $(METHODS:%=variables-%))
figures-synthetic: SEEDS ?= 0
figures-synthetic: $(READY)
	@set -e; $(foreach run,$(SYNTHETIC:%=runs/synthetic/%),$(call evaluate,$(run)))
	$(BIN)/python -m analysis synthetic $(SYNTHETIC:%=--run runs/synthetic/%) --out runs/synthetic/figures

real: $(READY) $(SMOLLM2)
	$(BIN)/olmo-sparsity influence --config configs/smollm2.yaml $(if $(DATA),--data '$(DATA)')
	@set -e; tables=$$($(BIN)/python scripts/find_tables.py configs/smollm2.yaml $(if $(DATA),'$(DATA)')); \
	for command in figures 'report --overwrite'; do \
	set -- $$command --tables "$$tables"; \
	echo "olmo-sparsity $$*"; $(BIN)/olmo-sparsity "$$@"; done

# Runs even if the file is there: the script compares it with its known hash.
$(SMOLLM2): FORCE | $(READY)
	@$(BIN)/python scripts/fetch_smollm2.py $@

docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev,docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev,bench]'
	$(BIN)/python -W ignore -m benchmarks.engine

mutants: ROOM ?= statistics
mutants: NUMBER ?= 40
mutants: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev,mutants]'
	$(BIN)/python -m benchmarks.mutants --room $(ROOM) --number $(NUMBER)

gpu-check: $(READY)
	$(BIN)/python -W ignore -m benchmarks.gpu_check

report: $(READY)
	$(BIN)/olmo-sparsity report --run $(RUN) --overwrite

browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get update -qq >/dev/null 2>&1 \
		&& DEBIAN_FRONTEND=noninteractive timeout 240 apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core \
		>/dev/null 2>&1; } || echo "Chromium is missing and cannot be installed: the tests of the report in a browser are skipped"

test: $(READY)
	@$(MAKE) --no-print-directory check

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "make: no Python 3.10, 3.11 or 3.12 found; give one with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'
	@touch $@

lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra docs --universal --python-version 3.10 --no-header --quiet \
		--output-file requirements.lock
	@printf '%s\n' "# Versions that work together on Python 3.10 to 3.12. Written by \`make lock\`; pip uses it as constraints." \
		| cat - requirements.lock > requirements.lock.new && mv requirements.lock.new requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

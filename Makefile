# make demo      run the whole experiment: create .venv, train, measure, draw the figures, write the report
# make real      download SmolLM2-135M-Instruct (93 MB) and measure it on DATA (default the built-in text), with figures and report
# make test      create .venv; run lint, types and tests
# make check     run lint, types and tests in the .venv that is there
# make browser   install Debian's Chromium, if possible, for the tests of the report; without it they are skipped
# make report    write the report of the newest measurement of RUN (default runs/demo) as one HTML file
# make figures   draw the figures of the newest measurement of RUN (default runs/demo), or of TABLES; measure first if necessary
# make evidence  measure the demo with every selector, and context curves, and draw all figures
# make sweep     train and measure every size in LADDER (default configs/scale/cpu-*.yaml), and draw them; resumes after a stop
# make curve     draw the context curves of the four-way run: the demo, without PoSE, with RandPos, and the ceiling; print what
#                each gains beyond the training row; train what is missing; SEEDS="0 1 2" for three seeds of each
# make seeds     train and measure SEEDS (default "0 1 2") of the demo and of LADDER, print and draw them; resumes after a stop
# make hypothesis  train and measure the runs of docs/hypothesis.md (SEEDS, default 101 to 105, of the demo and the ceiling;
#                TARGETS_OF_TEST targets), print and draw whether sparsity predicts the gain; resumes after a stop
# make hypothesis-scale  the same with SIZES_OF_TEST of configs/scale and their ceilings (SEEDS, default 101 to 103;
#                TARGETS_BY_SIZE targets); prints, does not draw
# make twin      train and evaluate the runs of the causal twin in docs/hypothesis.md (SEEDS, default 101 to 106, of PoSE and the
#                ceiling, the first two without PoSE), print and draw the accuracy inside the training row and beyond it; resumes
#                after a stop
# make figures-synthetic  train and measure the synthetic tasks at CPU size (SEEDS, default 0), and draw them; resumes after a stop;
#                SIZE=cpu10x: to ten times the training length (SEEDS, default "0 1 2"); hours, which -j2 shares between two processes
# make lengths   measure SmolLM2 on DATA (long documents; default the built-in text) with full contexts of LENGTHS tokens (default
#                128 256), the same targets for all, and draw the dependency spectrum against the length; resumes after a stop
# make bench     compare the influence engine with captum and with the hardware limit
# make gpu-check check training on this machine's GPU (bf16, compiled, resumed, all paths) and its speed; without a GPU, on the CPU
# make mutants  change one operator or number at a time in ROOM (statistics, measure, view or analysis), NUMBER times at random
#                (default 40), and list the changes that no test notices
# make gallery   draw the figures and the report of RUN again, and copy the pictures in docs/images/ from the runs
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
LADDER ?= $(wildcard configs/scale/cpu-*.yaml)
RUNGS = $(LADDER:configs/scale/%.yaml=runs/scale/%)
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

.PHONY: demo real lengths figures figures-synthetic report browser evidence sweep curve seeds hypothesis hypothesis-scale twin bench mutants gpu-check gallery docs test check format lock clean

demo: $(READY)
	$(BIN)/olmo-sparsity train
	$(BIN)/olmo-sparsity influence --k 8
	@$(MAKE) --no-print-directory figures
	@$(MAKE) --no-print-directory report
	@echo "To print the results again: $(BIN)/olmo-sparsity summary"

figures: $(READY)
	$(BIN)/olmo-sparsity figures $(if $(TABLES),--tables $(TABLES),--run $(RUN))

sweep: $(READY) $(RUNGS)
	$(BIN)/python -m analysis.scale $(RUNGS:%=--run %) --out runs/scale/figures

runs/scale/%: configs/scale/%.yaml FORCE | $(READY)
	$(BIN)/olmo-sparsity influence --config $< --run $@ --train

FORCE:

evidence: $(READY)
	$(BIN)/olmo-sparsity influence --selector all --num-windows 3000
	@$(MAKE) --no-print-directory figures
	@$(MAKE) --no-print-directory curve

curve: SEEDS ?= 0
curve: $(READY)
	$(call each_seed,context-curve,$(FOUR_WAY),runs)
	$(BIN)/python -m analysis.context_curve $(call runs_of,$(FOUR_WAY),runs) --out runs/figures

seeds: SEEDS ?= 0 1 2
seeds: $(READY)
	$(call each_seed,influence,configs/demo.yaml,runs)
	$(call each_seed,influence,$(LADDER),runs/scale)
	$(BIN)/olmo-sparsity summary $(call runs_of,configs/demo.yaml,runs)
	$(BIN)/python -m analysis.scale $(call runs_of,$(LADDER),runs/scale) --out runs/scale/figures

# The plan of docs/hypothesis.md. As many local tokens as a training row has, so that all others lie beyond it.
HYPOTHESIS = $(patsubst %,configs/%.yaml,demo demo-ceiling)
TARGETS_OF_TEST ?= 100000
REACTIONS = influence --local-len 8 --selector kl --selector attention --selector random --k 1$(comma)2$(comma)4 \
	--num-windows $(TARGETS_OF_TEST) --seed 1 influence.max_windows_per_document=100 influence.resampled_draws=0 \
	training.precision=bf16
RUNS_OF_TEST = $(call runs_of,$(HYPOTHESIS),runs/hypothesis)
hypothesis: SEEDS ?= 101 102 103 104 105
hypothesis: $(READY)
	$(call each_seed,$(REACTIONS),$(HYPOTHESIS),runs/hypothesis)
	$(BIN)/olmo-sparsity hypothesis --every $(RUNS_OF_TEST)
	$(BIN)/python -m analysis.hypothesis $(RUNS_OF_TEST) --out runs/hypothesis/figures
comma = ,

# The same on two other sizes: each with a ceiling that differs from it as demo-ceiling.yaml does from demo.yaml.
TARGETS_BY_SIZE ?= 50000
SIZES_OF_TEST ?= cpu-d64 cpu-d256
AS_CEILING = context.train_len=16 pose.num_chunks=1 pose.vary_chunks=false training.batch_rows=512
REACTIONS_BY_SIZE = influence --local-len 8 --selector kl --k 1 --num-windows $(TARGETS_BY_SIZE) --seed 1 influence.max_windows_per_document=100 \
	influence.resampled_draws=0 training.precision=bf16
hypothesis-scale: SEEDS ?= 101 102 103
hypothesis-scale: $(READY)
	@set -e; for size in $(SIZES_OF_TEST); do runs=; \
	for seed in $(SEEDS); do for ceiling in "" -ceiling; do \
	run=runs/hypothesis-scale/$$size$$ceiling-seed$$seed; runs="$$runs --run $$run"; \
	set -- $(REACTIONS_BY_SIZE) --config configs/scale/$$size.yaml --run $$run --train training.seed=$$seed name=$$size$$ceiling; \
	test -z "$$ceiling" || set -- "$$@" $(AS_CEILING); \
	echo "olmo-sparsity $$*"; $(BIN)/olmo-sparsity "$$@"; done; done; \
	$(BIN)/olmo-sparsity hypothesis $$runs; done

# The causal twin of it. The seeds of a configuration are one model.
TWIN = sum-cpu-pose sum-cpu-ceiling
TWIN_WITHOUT_POSE = sum-cpu-no-pose
SEEDS_OF_TWIN_WITHOUT_POSE = $(wordlist 1,2,$(SEEDS))
# $(call runs_of_twin,CONFIGURATIONS,SEEDS)
runs_of_twin = $(foreach task,$(1),$(foreach seed,$(2),runs/twin/$(task)-seed$(seed)))
RUNS_OF_TWIN = $(call runs_of_twin,$(TWIN),$(SEEDS)) $(call runs_of_twin,$(TWIN_WITHOUT_POSE),$(SEEDS_OF_TWIN_WITHOUT_POSE))
twin: SEEDS ?= 101 102 103 104 105 106
twin: $(READY)
	@set -e; for run in $(RUNS_OF_TWIN); do name=$${run##*/}; \
	set -- synth eval $${name%-seed*} --run $$run training.seed=$${name##*-seed}; \
	echo "olmo-sparsity $$*"; $(BIN)/olmo-sparsity "$$@"; done
	$(BIN)/olmo-sparsity synth summary $(addprefix --run ,$(RUNS_OF_TWIN))
	$(BIN)/python -m analysis.inside_and_beyond $(addprefix --run ,$(RUNS_OF_TWIN)) --out runs/twin/figures

# Figure 1 has a run for each K_train; the other figures have a configuration for each kind of position IDs.
K_TRAIN ?= 2 4
SYNTHETIC = $(wildcard configs/synthetic/scratchpad-cpu-*.yaml configs/synthetic/variables-cpu-*.yaml)
PARITY_RUNS = $(foreach seed,$(SEEDS),$(foreach k,$(K_TRAIN),runs/synthetic/parity-cpu-K$(k)-seed$(seed)))
OTHER_RUNS = $(foreach seed,$(SEEDS),$(foreach config,$(SYNTHETIC),runs/synthetic/$(basename $(notdir $(config)))-seed$(seed)))

ifneq ($(filter-out cpu cpu10x,$(SIZE)),)
$(error SIZE = $(SIZE): figures-synthetic has the sizes cpu and cpu10x)
endif

# To ten times the training length: of_NAME holds the configuration and the keys of the runs NAME-seedN.
FOLDER_10X ?= runs/synthetic-cpu10x
of_parity-K2 = parity-cpu10x synthetic.max_sparsity=2 synthetic.test_sparsity=[1,2,3,4,6]
of_parity-K3 = parity-cpu10x synthetic.max_sparsity=3 synthetic.test_sparsity=[1,2,3,4,5,7]
of_parity-K4 = parity-cpu10x
of_parity-K6 = parity-cpu10x synthetic.max_sparsity=6 synthetic.test_sparsity=[1,2,4,6,7,8,10]
of_predicted =
of_coupled = synthetic.positions=coupled
of_shifted = synthetic.positions=shifted
of_pose = synthetic.positions=pose model.position_embedding=rope training.learning_rate=1.0e-3
of_rope = $(of_pose) pose.num_chunks=1
$(foreach method,shifted pose,$(eval of_$(method)-answer = $(of_$(method)) synthetic.scratchpad=false))
METHODS = predicted coupled shifted pose rope shifted-answer pose-answer
of_encoding-rope = parity-cpu10x pose.num_chunks=1
of_encoding-linear = $(of_encoding-rope) synthetic.rope_scaling=linear
of_encoding-yarn = $(of_encoding-rope) synthetic.rope_scaling=yarn
of_encoding-nope = $(of_encoding-rope) model.position_embedding=none
of_encoding-randpos = parity-cpu10x synthetic.positions=randpos
ENCODINGS = rope linear yarn nope randpos
$(foreach task,scratchpad variables,$(foreach method,$(METHODS),\
	$(eval of_$(task)-$(method) = $(task)-cpu10x $(of_$(method)))))
of_variables-coupled += training.learning_rate=1.0e-3
of_placed-any-1 = parity-cpu10x synthetic.max_sparsity=3 synthetic.test_sparsity=[2,3] synthetic.test_rows=100 \
	synthetic.test_lengths=[24,40,64,100,158,250] synthetic.test_placed=[8/1,8/3,16/1,16/3,32/1,32/3,32/10,any/1,any/3,any/10]
of_placed-any-3 = $(of_placed-any-1) synthetic.spread=3
$(foreach locality,8 16,$(foreach spread,1 3,\
	$(eval of_placed-$(locality)-$(spread) = $(of_placed-any-$(spread)) synthetic.locality=$(locality))))
IN_TEXT = parity-K2 parity-K4 placed-8-1 placed-any-1
$(foreach name,$(IN_TEXT),$(eval of_text-$(name) = $(of_$(name)) synthetic.background=text))
with_seeds = $(foreach seed,$(or $(SEEDS),0 1 2),$(1:%=$(FOLDER_10X)/%-seed$(seed)))
# The twins of scratchpad-pose and scratchpad-rope without a scratchpad are parity-K4 and encoding-rope.
RUNS_10X = $(call with_seeds,parity-K2 parity-K3 parity-K4 parity-K6) \
	$(call with_seeds,$(patsubst %,scratchpad-%,$(filter-out pose-answer,$(METHODS))) $(ENCODINGS:%=encoding-%)) \
	$(call with_seeds,$(METHODS:%=variables-%)) \
	$(call with_seeds,$(foreach locality,8 16 any,placed-$(locality)-1 placed-$(locality)-3)) $(call with_seeds,$(IN_TEXT:%=text-%))

# Finished evaluations are skipped; stopped ones continue.
$(FOLDER_10X)/%: FORCE | $(READY)
	@grep -qs '"status": "complete"' $@/synthetic/*/manifest.json || { name=$*; \
	set -- synth eval $(of_$(firstword $(subst -seed, ,$*))) --run $@ training.seed=$${name##*-seed}; \
	echo "olmo-sparsity $$*"; $(BIN)/olmo-sparsity "$$@"; }

ifneq ($(SIZE),cpu10x)
figures-synthetic: SEEDS ?= 0
figures-synthetic: $(READY)
	@set -e; for seed in $(SEEDS); do \
	for k in $(K_TRAIN); do $(BIN)/olmo-sparsity synth eval parity-cpu --run runs/synthetic/parity-cpu-K$$k-seed$$seed \
	training.seed=$$seed synthetic.max_sparsity=$$k; done; \
	for task in $(basename $(notdir $(SYNTHETIC))); do \
	$(BIN)/olmo-sparsity synth eval $$task --run runs/synthetic/$$task-seed$$seed training.seed=$$seed; done; done
	$(BIN)/python -m analysis.synthetic $(addprefix --run ,$(PARITY_RUNS) $(OTHER_RUNS)) --out runs/synthetic/figures
else
figures-synthetic: $(RUNS_10X)
	$(BIN)/olmo-sparsity synth summary $(RUNS_10X:%=--run %)
	$(BIN)/python -m analysis.synthetic $(RUNS_10X:%=--run %) --out $(FOLDER_10X)/figures
endif

real: $(READY) $(SMOLLM2)
	$(BIN)/olmo-sparsity influence --config configs/smollm2.yaml $(if $(DATA),--data '$(DATA)')
	@set -e; tables=$$($(BIN)/python scripts/find_tables.py configs/smollm2.yaml $(if $(DATA),'$(DATA)')); \
	for command in figures 'report --overwrite'; do \
	set -- $$command --config configs/smollm2.yaml --tables "$$tables"; \
	echo "olmo-sparsity $$*"; $(BIN)/olmo-sparsity "$$@"; done

# Every length has the same targets: those that the longest one allows. 64: the local tokens of the configuration.
lengths: LENGTHS ?= 128 256
lengths: RUN = runs/lengths
lengths: $(READY) $(SMOLLM2)
	@set -e; longest=$$(printf '%s\n' $(LENGTHS) | sort -n | tail -n 1); for length in $(LENGTHS); do \
	set -- influence --config configs/lengths.yaml --run $(RUN) --out $(RUN)/influence/64of$$length --full-len $$length \
	--k $$((length - 64)) influence.min_preceding=$$longest $(if $(DATA),--data '$(DATA)'); \
	echo "olmo-sparsity $$*"; $(BIN)/olmo-sparsity "$$@"; done
	$(BIN)/python -m analysis.spectrum_by_length $(foreach length,$(LENGTHS),--tables $(RUN)/influence/64of$(length)) \
		--out $(RUN)/figures

# Runs even if the file is there: the script compares it with its known hash.
$(SMOLLM2): FORCE | $(READY)
	@$(BIN)/python scripts/fetch_smollm2.py $@

gallery: figures report
	$(BIN)/python -m analysis.gallery --run $(RUN)

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

# `make train` and `make test` set up everything they need, on a fresh machine too.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
TORCH ?= torch==2.13.0
LIBTPU ?= libtpu>=0.0.42,<0.1
WORKERS ?= 2
RELEASE_TESTS ?= tests/cli/test_cli.py tests/cli/test_train_command.py tests/config/test_overrides.py tests/functional/test_import.py tests/functional/test_attention_properties.py tests/checkpoints/test_saved_run.py

# Bytecode of the hundreds of imported files is compiled only once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help train test test-more test-all test-tpu test-newest newest recordings mutations soak lint docs notebooks release-check clean

help:
	@echo "make train     set up and train the default model on the standard library's text"
	@echo "make test      set up, lint and run the quick tests: minutes, without PyTorch"
	@echo "make test-more set up PyTorch and transformers too, and run the tests that need them or take longer"
	@echo "make test-all  set up, lint and run every test"
	@echo "make test-tpu  compile a training step for a TPU pod, on this CPU (Linux, x86)"
	@echo "make test-newest  run a part of the quick suite with the newest JAX (Python 3.12 or newer; NEWEST=python3.13)"
	@echo "make recordings  record the outputs of transformers for make test"
	@echo "make mutations seed faults and check that the quick suite catches each"
	@echo "make soak      stress the library for minutes (SOAK='--kills 100 --damage 1000 ...' for longer)"
	@echo "make lint      ruff"
	@echo "make docs      build the site in build/site, with the notebooks of examples/ executed"
	@echo "make notebooks write the notebooks of examples/ as .ipynb, to open in Jupyter"
	@echo "make release-check  build the package and try the wheel in a clean environment"
	@echo "make clean     remove the virtual environment and the programs that tests compiled"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet -r requirements.txt -e .
	touch $@

# Without transformers, which `make test` does not need.
$(VENV)/.installed-test: requirements.txt requirements-test.txt pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --upgrade pip
	grep -v "^transformers" requirements.txt > $(VENV)/requirements.txt
	$(RUN) -m pip install --quiet -r $(VENV)/requirements.txt -r requirements-test.txt -e .
	touch $@

# PyTorch first and pinned: for a range, pip would take the newest build with all of CUDA.
$(VENV)/.installed-more: requirements-more.txt $(VENV)/.installed $(VENV)/.installed-test
	$(RUN) -m pip install --quiet "$(TORCH)"
	$(RUN) -m pip install --quiet -r requirements-more.txt
	touch $@

# On a CPU, glibc's huge pages avoid page faults of every step's temporaries: a tenth of its time.
train: $(VENV)/.installed
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(RUN) train.py configs/tiny_decoder.py

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# A file's tests stay in one process, which shares their compiled programs: docs/testing.md
PYTEST = $(RUN) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Compiled programs are kept for later runs; those that no test reads for two weeks are deleted.
COMPILED = $(CURDIR)/build/compiled
test test-more test-all: export JAX_COMPILATION_CACHE_DIR ?= $(COMPILED)

$(COMPILED):
	mkdir -p $@

test: lint | $(COMPILED)
	$(PYTEST)
	find $(COMPILED) -type f -atime +14 -delete

test-more: $(VENV)/.installed-more | $(COMPILED)
	$(PYTEST) -m "more and not slow"
	find $(COMPILED) -type f -atime +14 -delete

test-all: lint $(VENV)/.installed-more | $(COMPILED)
	$(PYTEST) -m ""
	find $(COMPILED) -type f -atime +14 -delete

# Outside of the environment, in which JAX would look for a TPU each time it starts.
$(VENV)/libtpu: $(VENV)/.installed-more
	$(RUN) -m pip install --quiet --no-deps --target $@ "$(LIBTPU)"

# Only files with such tests: collecting all others would take longer than most of these tests.
test-tpu: $(VENV)/libtpu
	PYTHONPATH=$(VENV)/libtpu $(RUN) -m pytest -m tpu_compiler $$(grep -rl tpu_compiler tests --include="test_*.py")

# The newest JAX needs a newer Python than 3.11, with which `make test` tests the oldest.
# For plans and sharding, only tests that read the programs of JAX and XLA are run.
NEWEST ?= $(firstword $(foreach python,python3.13 python3.12 $(wildcard $(HOME)/.pyenv/versions/3.1[23]*/bin/python),$(if $(shell $(python) --version 2>/dev/null),$(python))))
NEWEST_VENV ?= .venv-newest
NEWEST_TESTS ?= tests/nn tests/optim tests/doctor tests/plan/test_closed_form.py tests/plan/test_collectives.py tests/plan/test_layout.py \
	tests/models/test_decoder.py tests/models/test_pooling.py tests/training/test_step.py tests/checkpoints/test_checkpointer.py \
	$(addprefix tests/distributed/test_sharding.py::,test_every_device_holds_its_share_and_no_more test_rows_of_a_sharded_table \
	test_nothing_is_rematerialised_involuntarily test_sizes_of_the_mesh) \
	tests/functional/test_attention_sharded.py tests/functional/test_linear.py tests/generation/test_decode_program.py

newest:
	@echo $(NEWEST)

$(NEWEST_VENV)/.installed: requirements.txt
	@test -n "$(NEWEST)" || (echo "no Python 3.12 or newer: name one with NEWEST=python3.13" && false)
	$(NEWEST) -m venv $(NEWEST_VENV)
	$(NEWEST_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(NEWEST_VENV)/bin/python -m pip install --quiet -r requirements.txt $$(grep -E "^(pytest|hypothesis)" requirements-test.txt)
	touch $@

test-newest: $(NEWEST_VENV)/.installed
	$(NEWEST_VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(NEWEST_TESTS)

# The long version of the attacks in the test suite: docs/reliability.md
soak: $(VENV)/.installed-more
	PYTHONPATH=.:tests $(RUN) -m soak $(SOAK)

$(VENV)/.installed-docs: requirements-docs.txt $(VENV)/.installed
	$(RUN) -m pip install --quiet -r requirements-docs.txt
	touch $@

# With DOCS=--strict, as in CI, a warning is an error once the site is built: a notebook that fails, a
# broken link, a page that is not in the navigation.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build $(DOCS)

notebooks: $(VENV)/.installed-docs
	$(VENV)/bin/jupytext --to ipynb examples/[0-9]*.py

# Needs the package index. RELEASE_TESTS are the tests that run against the installed wheel.
release-check:
	PYTHON=$(PYTHON) .ci/release-check $(RELEASE_TESTS)

recordings: $(VENV)/.installed-more
	PYTHONPATH=.:tests $(RUN) -m recordings

# MUTATIONS='nn hub/rope' seeds only those faults.
mutations: $(VENV)/.installed-test
	PYTHONPATH=.:tests $(RUN) -m mutations $(MUTATIONS)

clean:
	rm -rf $(VENV) $(COMPILED)

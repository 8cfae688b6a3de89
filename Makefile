# `make demo` and `make test` are all that a fresh machine with Python >= 3.10 needs.

PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
PEERS := .venv-peers
# The lower bounds of the `demo` extra in pyproject.toml; tests/test_packaging.py keeps the two in step.
OLDEST_TORCH := 2.6.0
OLDEST_TORCHVISION := 0.21.0
# torch 2.6.0 was built against this major version of numpy and has wheels for Python 3.9 to 3.13.
OLDEST_NUMPY := 2.1.3
OLDEST_PYTHON ?= $(PYTHON)
# It has torch.profiler._pattern_matcher, which PyTorch 2.15 has removed.
PEERS_TORCH := 2.13.0
# Whose sessions may run two at a time with all threads: what their tests ask of a time holds beside another one, too.
SIDE_BY_SIDE := tests/accuracy tests/edit tests/fixtures tests/harness tests/improve \
	tests/test_gpu_tutorial.py tests/rules/test_framework_sessions.py
PIP := -m pip --disable-pip-version-check install --quiet
PYTEST := $(VENV)/bin/python -m pytest

.PHONY: demo test test-sessions lint test-oldest bench gpu readme clean

demo: $(VENV)/.demo
	$(VENV)/bin/advisor profile fixtures/cifar_resnet.py --accept none --python $(VENV)/bin/python
	@printf '\nThe report: %s\n' "$$(ls -td "$$PWD"/advisor_runs/cifar_resnet-*/report.html | head -n 1)"

test: $(VENV)/.dev lint
	$(PYTEST) -n 2 --dist loadgroup --durations 15 -m "not sessions"

# Whole sessions, and all whose figures are times: minutes. CI runs them after `make test`. Those of the rules have a core
# each: with two threads each they wait for one another, four times as long. One that fails is run twice more, and the
# summary counts each as a rerun: a shared machine's pause is not a fault, what fails three times is.
test-sessions: $(VENV)/.dev
	$(PYTEST) -n 2 --dist loadgroup --reruns 2 --durations 15 -m sessions $(SIDE_BY_SIDE)
	OMP_NUM_THREADS=1 $(PYTEST) -n 2 --dist loadgroup --reruns 2 --durations 15 -m sessions tests \
		$(addprefix --ignore=,$(SIDE_BY_SIDE))

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy

# The tool from the one environment, the scripts under the other's interpreter.
test-oldest: export ADVISOR_TEST_PYTHON = $(CURDIR)/$(OLDEST)/bin/python
test-oldest: $(VENV)/.dev $(OLDEST)/.ready
	$(PYTEST) -n 2 --dist loadgroup --reruns 2 --durations 15 -m oldest tests/harness

bench: $(VENV)/.dev
	for script in tests/benchmarks/*.py; do $(VENV)/bin/python $$script || exit; done

# How right the advice is, beside other tools; what was measured before is not measured again. ACCURACY_OPTIONS="--gains".
accuracy: $(VENV)/.dev $(PEERS)/.ready
	$(VENV)/bin/python -m tests.accuracy $(ACCURACY_OPTIONS)

# Asked before anything is installed: torch for CUDA is gigabytes. GPU_OPTIONS="--budget 30m", say.
gpu:
	@nvidia-smi -L >/dev/null 2>&1 || { echo 'make gpu needs a CUDA GPU, and nvidia-smi finds none here.' >&2; exit 2; }
	@$(MAKE) --no-print-directory $(VENV)/.demo
	PYTHONPATH=tests/benchmarks $(VENV)/bin/python -m gpu_tutorial $(GPU_OPTIONS)

# The README's catalogue of rules, from their docstrings; `make test` says when it is out of date.
readme: $(VENV)/.dev
	$(VENV)/bin/python -m tests.readme

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "advisor needs Python 3.10 or newer; this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(OLDEST)/.ready: Makefile
	$(OLDEST_PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python $(PIP) 'torch==$(OLDEST_TORCH)' 'torchvision==$(OLDEST_TORCHVISION)' 'numpy==$(OLDEST_NUMPY)' \
		accelerate safetensors
	@touch $@

# A peer that cannot be installed is missing from the table, and the table says so.
$(PEERS)/.ready: Makefile
	$(PYTHON) -m venv --clear $(PEERS)
	-$(PEERS)/bin/python $(PIP) 'torch==$(PEERS_TORCH)' numpy
	-$(PEERS)/bin/python $(PIP) 'torch==$(PEERS_TORCH)' transformers accelerate lightning click pyyaml
	-$(PEERS)/bin/python $(PIP) 'torch==$(PEERS_TORCH)' torchvision
	-$(PEERS)/bin/python $(PIP) torchfix
	-$(PEERS)/bin/python $(PIP) traceml-ai
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(PEERS) build dist *.egg-info advisor_runs

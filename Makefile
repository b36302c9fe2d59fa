# headway's commands. `make demo` and `make test` are the two to know; `make help` lists the rest.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The install is repeated only when what it depends on has changed, so a second run needs no network.
STAMP  := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q -n logical
# Training frameworks, on top of $(VENV): its site-packages are theirs, so torch and headway are installed once.
FRAMEWORKS := .venv-frameworks
# DALI and nvImageCodec, the same way.
DECODERS := .venv-decoders

.PHONY: help install typetree demo test lint types pure sanitize frameworks test-decoders ci full clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    install, make synthetic drives, pack them, stream them on two ranks, draw demo/overview.png"
	@echo "make test    install, run the core tests (under 10 minutes on 2 cores)"
	@echo "make lint    ruff;  make types   mypy --strict"
	@echo "make frameworks  install training frameworks beside it, run each on two ranks (about 5 minutes)"
	@echo "make test-decoders  install DALI, nvImageCodec and Triton beside it (900 MB), test them without a GPU"
	@echo "make ci      everything a change must pass (under 60 minutes)"
	@echo "make full    the reliability figures at full size, before a release"
	@echo "make clean   remove .venv, build and demo"

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard formats/native/*.c formats/native/*.h)
	@echo "== installing into $(VENV) (first time: a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

install: $(STAMP)

typetree: $(STAMP)
	@$(BIN)/python tests/typetree.py

demo: $(STAMP)
	@$(BIN)/python -m headway.tools.demo --directory demo

test: $(STAMP)
	@echo "== tests (real samples: $${HEADWAY_REAL_DATA:-not given, tests that need them say so and are skipped})"
	@$(PYTEST) -m "not full and not frameworks and not gpu"

lint: $(STAMP)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: typetree
	@$(BIN)/mypy -p headway -p tests

sanitize: $(STAMP)
	@$(BIN)/python tests/sanitize.py

$(FRAMEWORKS)/.installed: $(STAMP) tests/frameworks/requirements.txt
	@echo "== installing into $(FRAMEWORKS) (first time: a few minutes)"
	@test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> "$$($(FRAMEWORKS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/development.pth"
	@$(FRAMEWORKS)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -r tests/frameworks/requirements.txt
	@touch $@

frameworks: $(FRAMEWORKS)/.installed
	@echo "== training frameworks on two and four ranks"
	@$(FRAMEWORKS)/bin/python -m pytest -q -m frameworks tests/frameworks --durations=5

# DALI holds `packaging` back; the rest comes from $(VENV) through the .pth file, which is written once pip is done.
$(DECODERS)/.installed: | $(STAMP)
	@echo "== installing into $(DECODERS) (first time: a minute or two)"
	@rm -rf $(DECODERS) && $(PYTHON) -m venv $(DECODERS)
	@$(DECODERS)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt \
		'nvidia-dali-cuda120>=2.0' 'nvidia-nvimgcodec-cu12>=0.9' 'triton>=3.0'
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> "$$($(DECODERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/development.pth"
	@touch $@

test-decoders: $(DECODERS)/.installed
	@echo "== DALI and nvImageCodec without a GPU"
	@$(DECODERS)/bin/python -m pytest -q -m "not gpu" tests/gpu_decode/test_decoders.py \
		tests/gpu_decode/test_on_device.py tests/gpu_decode/test_oddities.py tests/gpu_decode/test_real_images.py \
		tests/gpu_decode/test_fused.py

pure: $(STAMP)
	@echo "== the loader without the native core"
	@HEADWAY_NATIVE=0 $(PYTEST) -m "not full and not frameworks and not gpu" tests/loader tests/gpu_decode

ci: lint types test pure sanitize test-decoders frameworks
	@echo "== the wheel, installed elsewhere, still imports and packs"
	@$(BIN)/python tests/wheel_smoke.py

full: $(STAMP)
	@$(PYTEST) -m "full"

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(DECODERS) build dist demo *.egg-info

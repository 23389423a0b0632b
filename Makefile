# make demo · make test · make lint · make rules · make bench · make clean
# Needs Python 3.11 or newer, make and git. Everything is installed into .venv/ (bench/.venv/ for the benches).

# The first of these that is new enough and can make a virtual environment; `make PYTHON=/path/to/python` overrides.
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
SUITS := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for each in $(CANDIDATES); do "$$each" -c '$(SUITS)' 2>/dev/null && echo "$$each" && break; done)

VENV := .venv
TORCH := torch==2.13.0
BENCH := bench/.venv
BENCH_TORCH := bench/.venv-torch
# The names differ on Windows; GNU make of Git Bash or MSYS2 sets OS.
ifeq ($(OS),Windows_NT)
BIN := Scripts
else
BIN := bin
endif
RUN := $(VENV)/$(BIN)/python
PIP := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO := $(VENV)/.installed
DEV := $(VENV)/.dev-installed
DOCS := $(VENV)/.docs-installed
# What is released is built with these alone, each by its hash; tests and their tools are not there.
PINNED := ci/requirements
BUILD := $(VENV)/build
SBOM := $(VENV)/sbom
BY_HASH := -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(PINNED)
MADE_FROM := pyproject.toml constraints.txt hatch_build.py

# A PYTHONPATH or a user's site-packages must not decide what is tested.
unexport PYTHONPATH
export PYTHONNOUSERSITE := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-exhaustive test-site quick lint format rules site serve bench bench-accuracy bench-grid bench-gpu bench-host bench-releases bench-site dist dist-rules sbom constraints hashes clean

help:
	@echo 'make demo         install into $(VENV)/ and check the configs in examples/'
	@echo 'make test         install what the tests need, then run them (ARGS="-k name" narrows; WORKERS=4 at once)'
	@echo 'make test-exhaustive  also the other cases of each kind, and more examples of each property'
	@echo 'make test-site    build the whole site for its tests and read every page, link and table of it'
	@echo 'make quick        the tests that need no torch, browser, wheel or process: under a minute'
	@echo 'make lint         ruff (lint and format), vulture (dead code) and mypy --strict'
	@echo 'make format       let ruff rewrite what it can'
	@echo 'make rules        check every rule file and run every rule example'
	@echo 'make site         build the guide in both languages into site/ (ARGS=--preview: soon); make serve shows it here'
	@echo 'make bench        time kb beside yamllint and check-jsonschema; results in bench/results/'
	@echo 'make bench-accuracy  predictions beside measurements, traces and other programs (ARGS="--truth DIR")'
	@echo 'make bench-grid   trace the grid that predictions are tested against; hours, can be stopped and started'
	@echo 'make bench-gpu    measure GPU memory on this machine'"'"'s GPU; hours, can be stopped and started (ARGS="--hours 2")'
	@echo 'make bench-host   measure host memory with real data loaders; half an hour'
	@echo 'make bench-releases  the memory engine beside the simulation under five releases of transformers; a quarter of an hour'
	@echo 'make bench-site   time the build of the site and the playground in Chromium; results in bench/results/'
	@echo 'make dist sbom    build wheel and sdist, the same bytes each time, and list what an installation consists of'
	@echo 'make dist-rules   build a release of the rules alone, for kb rules update'
	@echo 'make constraints  pin again what a fresh install gives; make hashes (UV=/path/to/uv) the files of what is released'
	@echo 'make clean        remove what the above made'

$(RUN):
	@test -n '$(PYTHON)' || { echo 'kb needs Python 3.11 or newer with venv and ensurepip; none of these is: $(CANDIDATES)'; \
	  echo 'On Debian and Ubuntu: apt-get install python3-venv. Elsewhere: make PYTHON=/path/to/python3.11'; exit 2; } >&2
	$(PYTHON) -m venv $(VENV)

# The build tools come first and are pinned like the rest; pip's isolated builds would take the newest of each.
$(DEMO): $(MADE_FROM) | $(RUN)
	$(RUN) $(PIP) hatchling jsonschema pyyaml
	$(RUN) $(PIP) --no-build-isolation --editable .
	@touch $@

# The simulator's tests need torch; spelled exactly, since an index may hold a CPU build beside CUDA's gigabytes.
$(DEV): $(DEMO)
	$(RUN) $(PIP) $(TORCH)
	$(RUN) $(PIP) --no-build-isolation --editable '.[dev,docs,torch]'
	@touch $@

$(DOCS): $(DEMO)
	$(RUN) $(PIP) --no-build-isolation --editable '.[docs]'
	@touch $@

demo: $(DEMO)
	@echo '$$ kb check examples/ --gpu rtx-3090 --host-memory 60GB --cpus 16'
	@$(RUN) -c 'import kb.check'  # Python itself ends with 1 where this fails
	@$(RUN) -m kb.check examples/ --gpu rtx-3090 --host-memory 60GB --cpus 16; code=$$?; echo; \
	if [ $$code -eq 1 ]; then \
	  echo 'Findings are expected here (exit code 1): most of the examples are wrong on purpose. The demo worked.'; \
	  echo 'Now yours: $(VENV)/$(BIN)/kb check your-config.yaml --gpu rtx-3090'; \
	else echo "The demo failed: findings and exit code 1 were expected, not $$code." >&2; exit 1; fi

# A file's tests stay together, since some share what takes long to make, in the order that tests/conftest.py gives; those
# of all files that need torch too.
# Many wait, for a program or a page: three workers keep two cores busy; each more collects all tests once more.
WORKERS ?= 3
SPREAD = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
test: $(DEV)
	$(RUN) -m pytest -ra $(SPREAD) $(ARGS)

# Also what is marked exhaustive; every recorded run of the real code is made again, and properties draw more examples.
# Gemma's own code goes through a set of words, whose order the seed decides: that of the records is 1.
test-exhaustive: export PYTHONHASHSEED = 1
test-exhaustive: $(DEV)
	$(RUN) -m pytest -ra --exhaustive $(SPREAD) $(ARGS)

# The other tests look at a preview of the site. Needs neither torch nor a browser.
test-site: $(DOCS)
	$(RUN) $(PIP) pytest hypothesis filelock
	$(RUN) -m pytest -ra --exhaustive tests/guide/site/test_built_site.py tests/guide/site/test_prose.py $(ARGS)

# Without torch, a browser, a wheel, processes and what is marked long: what a change of code or rules meets first.
quick: $(DEV)
	$(RUN) -m pytest --quick --numprocesses 2 --dist loadfile $(ARGS)

lint: $(DEV)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m vulture
	$(RUN) -m mypy

format: $(DEV)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# Needs Node.js with npm: what pages load comes from there, by docs/npm/package-lock.json.
site: $(DOCS)
	$(RUN) -m kb.site build $(ARGS)

serve: $(DOCS)
	$(RUN) -m kb.site serve $(ARGS)

rules: $(DEMO)
	$(RUN) -m kb.rules validate
	$(RUN) -m kb.rules test

$(BENCH)/.installed: $(MADE_FROM) bench/requirements.txt
	@test -n '$(PYTHON)' || { echo 'kb needs Python 3.11 or newer; make PYTHON=/path/to/python3.11' >&2; exit 2; }
	$(PYTHON) -m venv --clear $(BENCH)
	$(BENCH)/$(BIN)/python $(PIP) --requirement bench/requirements.txt
	@touch $@

# kb is installed anew each time: the wheel, as a user has it.
bench: $(BENCH)/.installed
	$(BENCH)/$(BIN)/python $(PIP) --no-build-isolation --force-reinstall --no-deps .
	$(BENCH)/$(BIN)/python bench/speed.py $(ARGS)

# The other programs get an environment of their own, bench/.venv-rivals, which the script makes.
bench-accuracy: $(BENCH)/.installed
	$(BENCH)/$(BIN)/python $(PIP) --no-build-isolation --force-reinstall --no-deps .
	$(BENCH)/$(BIN)/python bench/accuracy.py $(ARGS)

bench-grid: $(BENCH)/.installed
	$(BENCH)/$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement bench/requirements-simulation.txt
	$(BENCH)/$(BIN)/python $(PIP) --no-build-isolation --force-reinstall --no-deps .
	$(BENCH)/$(BIN)/python bench/grid.py $(ARGS)

$(BENCH_TORCH)/.installed: bench/gpu/requirements.txt
	@test -n '$(PYTHON)' || { echo 'kb needs Python 3.11 or newer; make PYTHON=/path/to/python3.11' >&2; exit 2; }
	$(PYTHON) -m venv --clear $(BENCH_TORCH)
	$(BENCH_TORCH)/$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement bench/gpu/requirements.txt
	@touch $@

bench-gpu: $(BENCH_TORCH)/.installed
	$(BENCH_TORCH)/$(BIN)/python bench/gpu/campaign.py $(ARGS)

bench-host: $(BENCH_TORCH)/.installed
	$(BENCH_TORCH)/$(BIN)/python bench/host.py $(ARGS)

bench-releases: $(DEV)
	$(RUN) bench/releases.py $(ARGS)

bench-site: $(DEV)
	$(RUN) bench/site.py $(ARGS)

$(BUILD)/.installed: $(PINNED)/build.txt | $(RUN)
	$(PYTHON) -m venv --clear $(BUILD)
	$(BUILD)/$(BIN)/python $(BY_HASH)/build.txt
	@touch $@

# Twice the same bytes from the same commit: the archives' times are those of the commit.
dist: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
dist: $(BUILD)/.installed
	rm -rf dist
	$(BUILD)/$(BIN)/python -m hatchling build -d dist
	cd dist && sha256sum *.whl *.tar.gz > SHA256SUMS

# The rules alone, for `kb rules update`: a release of their own, without a new kb.
dist-rules: $(BUILD)/.installed
	rm -rf dist
	cd packages/gpu-memory-kb-rules && $(abspath $(BUILD)/$(BIN)/python) -m hatchling build -t wheel -d ../../dist
	cd dist && sha256sum *.whl > SHA256SUMS

# What an installation consists of, as CycloneDX: of the wheel alone, in an environment of its own.
sbom: | $(RUN)
	rm -rf $(SBOM) && $(PYTHON) -m venv $(SBOM)/tool && $(PYTHON) -m venv --without-pip $(SBOM)/kb
	$(SBOM)/tool/$(BIN)/python $(BY_HASH)/sbom.txt
	$(SBOM)/tool/$(BIN)/python -m pip --python $(SBOM)/kb/$(BIN)/python $(subst -m pip,,$(BY_HASH))/run.txt
	$(SBOM)/tool/$(BIN)/python -m pip --python $(SBOM)/kb/$(BIN)/python install --quiet --no-index --no-deps dist/*.whl
	$(SBOM)/tool/$(BIN)/python -m cyclonedx_py environment --output-reproducible --pyproject pyproject.toml --output-file dist/gpu-memory-kb.cdx.json $(SBOM)/kb/$(BIN)/python
	rm -rf $(SBOM)

# In a fresh environment, with no constraints, so that what is pinned is what was installed and nothing else.
constraints:
	rm -rf $(VENV)/constraints && $(PYTHON) -m venv $(VENV)/constraints
	$(VENV)/constraints/$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(VENV)/constraints/$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[dev,docs,torch]'
	@{ echo '# What `make constraints` installed: kb with every extra, and the tools for tests, lint and the site.'; \
	  $(VENV)/constraints/$(BIN)/python -m pip freeze --exclude gpu-memory-kb | sed 's/+cpu//'; } > constraints.txt
	$(VENV)/constraints/$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(MAKE) hashes UV=$(VENV)/constraints/$(BIN)/uv
	rm -rf $(VENV)/constraints

# The same versions with the hash of every file that an index has of them, for each system and Python that kb runs on.
UV ?= uv
LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --constraint constraints.txt --custom-compile-command 'make constraints'
hashes:
	$(LOCK) --output-file $(PINNED)/run.txt pyproject.toml
	$(RUN) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(LOCK) --output-file $(PINNED)/build.txt -
	echo cyclonedx-bom | $(LOCK) --output-file $(PINNED)/sbom.txt -

clean:
	rm -rf $(VENV) $(BENCH) $(BENCH_TORCH) bench/.venv-rivals build dist site rules/.bundle .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Two commands do all the set-up on a machine with only Python and make:
#   make demo   trains, evaluates, generates and draws with the sample text
#   make test   runs the tests
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
COMPILED := .venv/compiled
# Modules are compiled when they are first imported, as most of what is installed never is; and what was compiled
# is kept, wherever this runs.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
# constraints-newest.txt for the newest versions, which need Python 3.12 or later.
CONSTRAINTS ?= constraints.txt
INSTALL := $(PIP) --constraint $(CONSTRAINTS)
# Test files that run at the same time. Most of their time is spent waiting for processes, but each process of pytest
# collects all files, which takes ten seconds of the processor.
JOBS ?= 3

# What the site is made of, and the page that tells when it was made.
SITE_SOURCES = $(shell find docs giaann_dask notebooks mkdocs.yml pyproject.toml *.md -name __pycache__ -prune -o -type f -print)
SITE := build/docs/index.html

.DELETE_ON_ERROR:
.PHONY: demo test test-all rewritten check lint types extras second-python second-python-installed run-notebooks notebooks site docs memory-check bench bench-user bench-compare bench-peers bench-train bench-infer bench-links bench-islands bench-serve bench-device soak hostile gpu-check dist clean

# uv resolves and installs in 12 s what takes pip 95 s. torch is left to pip, which also looks where the machine's
# configuration of pip says; without uv pip does it all. dask-cuda prescribes another version of Dask than is installed,
# and libraries of CUDA; a test starts its cluster with stubs of these, from a folder that nothing else looks in.
$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv .venv
	$(INSTALL) torch uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint $(CONSTRAINTS) --editable ".[dev,docs,hub]" \
		|| $(INSTALL) --editable ".[dev,docs,hub]"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable examples/skip_bigrams \
		|| $(PIP) --no-deps --editable examples/skip_bigrams
	$(PIP) --no-deps --target .venv/dask-cuda "dask-cuda$$(sed -n 's/^dask-cuda//p' constraints-cuda.txt)"
	touch $(READY)

# Once, and not by every process of the tests at the same time.
$(COMPILED): $(READY)
	$(BIN)/giaann-dask compile
	touch $(COMPILED)

demo: $(READY)
	rm -rf demo && mkdir demo
	$(BIN)/giaann-dask train giaann_dask/data/sample.txt --network demo/village --workers 2
	$(BIN)/giaann-dask evaluate demo/village giaann_dask/data/sample_test.txt --workers 2
	$(BIN)/giaann-dask generate demo/village "The old miller carried the flour" --max-tokens 12 --explain
	$(BIN)/giaann-dask draw demo/village --out demo/village.svg
	$(BIN)/giaann-dask inspect demo/village

test: $(COMPILED)
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow" tests examples

# Assertions of all files are rewritten by pytest and kept; on a fresh clone each process of the tests would do it, for
# six seconds.
rewritten: $(READY)
	$(BIN)/pytest --collect-only --quiet --quiet tests examples

test-all: $(COMPILED)
	$(BIN)/pytest --hypothesis-profile thorough
	GIAANN_DOCS_PROCESSES=1 $(BIN)/pytest docs

check: lint types extras run-notebooks docs

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports --no-cache

types: $(READY)
	$(BIN)/mypy

# Whether every extra can be installed with its constraints; asks the package index, installs nothing.
extras: $(READY)
	$(BIN)/python .ci/extras.py

# On the newest other Python of this machine: commands on a network that both write, and a few tests.
second-python-installed: $(READY)
	$(BIN)/python .ci/second_python.py install

second-python: $(COMPILED)
	$(BIN)/python .ci/second_python.py

# Whether the notebooks run, in one kernel; what they show is stored by the next target.
run-notebooks: $(COMPILED)
	$(BIN)/python .ci/notebooks.py --check

notebooks: $(COMPILED)
	$(BIN)/python .ci/notebooks.py

# Compiled code checks no bounds. Here it does, and memory has other contents than zeros before it is written.
memory-check: $(READY)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.venv/bounds-checked MALLOC_PERTURB_=165 $(BIN)/pytest -m "not slow and not cluster" \
		tests/runs tests/increments tests/text tests/encoding tests/inference tests/training tests/test_gpu.py

# In build/docs: python -m http.server --directory build/docs
site: $(SITE)
$(SITE): $(READY) $(SITE_SOURCES)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Code blocks of pages and examples of docstrings, by one process: another would spend as long on imports as on its half.
docs: $(COMPILED) $(SITE)
	$(BIN)/pytest --doctest-modules giaann_dask docs

bench: $(READY)
	$(BIN)/python benchmarks/stages.py $(BENCH)

# BENCH="book.txt" for large networks, too.
bench-user: $(COMPILED)
	$(BIN)/python benchmarks/user.py $(BENCH)

# make bench-compare OLD=v0.1 NEW=HEAD BENCH="book.txt"
bench-compare: $(READY)
	$(BIN)/python benchmarks/user.py $(BENCH) --compare $(OLD) $(NEW)

# make bench-peers TEXT="a.txt b.txt" TEST=c.txt BENCH="--kenlm FOLDER"; says what is not installed.
bench-peers: $(COMPILED)
	$(BIN)/python benchmarks/peers.py $(TEXT) --test $(TEST) $(BENCH)

bench-infer: $(READY)
	$(BIN)/python benchmarks/inference.py $(BENCH)

bench-train: $(READY)
	$(BIN)/python benchmarks/training.py $(BENCH)

# Linux only, as root or where user namespaces are allowed.
bench-links: $(READY)
	$(BIN)/python benchmarks/links.py $(BENCH)

# BENCH="../shared/data/books --profile contexts"
bench-islands: $(READY)
	$(BIN)/python benchmarks/islands.py $(BENCH)

bench-serve: $(READY)
	$(BIN)/python benchmarks/serving.py $(BENCH)

soak: $(READY)
	$(BIN)/python benchmarks/soak.py $(BENCH)

# Half an hour or more. GIAANN_HOSTILE_SEED=N tries other positions, moments and combinations.
hostile: $(COMPILED)
	$(BIN)/pytest tests/hostile

# Carries to any machine with a GPU: uses the Python that is there, with these packages and nothing else of this project.
# GPU_TESTS="-n 10" runs the tests in ten processes, with pytest-xdist.
GPU_CHECK := dask google_crc32c icechunk numba numba_cuda numcodecs numpy pytest torch zarr
gpu-check:
	@$(PYTHON) -c 'import importlib.util as u, sys; lost = [each for each in sys.argv[1:] if u.find_spec(each) is None]; \
		sys.exit("gpu-check needs these packages: %s" % " ".join(lost) if lost else 0)' $(GPU_CHECK)
	PYTHONPATH=. $(PYTHON) -m pytest -m gpu -rs -o addopts= -o timeout=0 -p no:cacheprovider --noconftest $(GPU_TESTS) tests/test_gpu.py
	PYTHONPATH=. $(PYTHON) benchmarks/device.py

# make bench-device TEXT="a.txt b.txt" WORKERS=14, with the extra cuda; the first text is exported, the last evaluated.
WORKERS ?= 4
bench-device: gpu-check
	mkdir -p build
	PYTHONPATH=. $(PYTHON) benchmarks/device.py --prompts 64 1024 8192 --processes $(WORKERS) --results build/device.jsonl
	PYTHONPATH=. $(PYTHON) benchmarks/device_cluster.py $(TEXT) --workers $(WORKERS) 1 --results build/device.jsonl $(BENCH)

# Wheel and source distribution in dist, checked as a package index does, and the recipe of the package for conda; in an
# environment of their own.
VERSION = $$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
RECIPE := from rattler_build import Stage0Recipe, VariantConfig; \
	print(*(each.recipe.package for each in Stage0Recipe.from_file("conda/recipe.yaml").render(VariantConfig())))
dist:
	rm -rf dist
	$(PYTHON) -m venv build/packager
	build/packager/bin/pip install --quiet --disable-pip-version-check build py-rattler-build twine
	build/packager/bin/python -m build
	build/packager/bin/twine check --strict dist/*
	GIAANN_VERSION=$(VERSION) build/packager/bin/python -c '$(RECIPE)'

clean:
	rm -rf .venv demo build dist *.egg-info

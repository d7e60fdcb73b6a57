# Every target sets up .venv by itself; when nothing changed, setting up takes no time.
PYTHON ?= python3
# Threads that spin while they wait would take the cores from the other test process.
export OMP_WAIT_POLICY ?= PASSIVE
VENV := .venv
BIN := $(VENV)/bin
FILES := pyproject.toml constraints.txt

.PHONY: demo test lint hunt bench bench-gpu docs wheel clean notebook browser ray

demo: $(VENV)/.plots
	$(BIN)/rankfold demo
	$(BIN)/rankfold demo --grammar

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu and not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Random problems and damaged files, with a new seed each time: docs/reliability.md.
SECONDS ?= 600
hunt: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python -m tests.hunt --seconds $(SECONDS)

# The benchmark page: other libraries, gradient steps, grammars of one's own, questions, one table a structure.
# On a machine with no other work, so threads wait as they do by default.
# The allocator keeps its pages: else hmmlearn takes new ones at every step of a long sequence, for half of its time.
ALONE = env -u OMP_WAIT_POLICY $(BIN)/python
bench: export MALLOC_MMAP_THRESHOLD_ = 1073741824
bench: export MALLOC_TRIM_THRESHOLD_ = 4294967295
bench: $(VENV)/.bench
	$(ALONE) -m benchmarks libraries
	$(ALONE) -m benchmarks steps --device cpu --json > docs/results/steps-cpu.json
	$(ALONE) -m benchmarks fgg --json docs/results/timed-fgg-cpu.json
	$(ALONE) -m benchmarks questions
	$(ALONE) -m benchmarks structures

# The same of a GPU: which prepared ways serve (build/gpu/decisions.json), records, then the tables.
bench-gpu: $(VENV)/.bench
	-$(BIN)/python -m benchmarks gpu --out build/gpu
	for name in million frames grammars; do $(BIN)/python -m benchmarks steps --table $$name --json > docs/results/steps-$$name.json || exit 1; done
	$(BIN)/python -m benchmarks long --json docs/results/timed-long.json
	$(BIN)/python -m benchmarks segments --json docs/results/timed-segments.json
	$(BIN)/python -m benchmarks fgg 30 60 4 40 --json docs/results/timed-fgg-gpu.json
	$(BIN)/python -m benchmarks structures

# The notebook of the first hour, in a kernel of its own.
notebook: $(VENV)/.dev $(VENV)/.notebook
	$(BIN)/python -m pytest -s -m slow tests/docs/test_notebook.py

# Corpora by actors of Ray Data, on this machine.
ray: $(VENV)/.dev $(VENV)/.ray
	$(BIN)/python -m pytest -s -m slow tests/corpora/test_ray.py

# The page of rankfold explore in Chromium, with the network cut; Debian's chromium and chromium-driver.
browser: $(VENV)/.dev $(VENV)/.browser
	$(BIN)/python -m pytest -s -m browser tests/explore

# The site, into build/site; any warning stops it. Nothing is fetched while it is built or read.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel, into build/wheel, and in an empty environment: its version, a small model, sentences and states.
EMPTY := build/wheel/empty/bin
wheel: export PYTHONPATH =
wheel: $(VENV)/.dev
	rm -rf build/wheel
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel
	$(PYTHON) -m venv build/wheel/empty
	$(EMPTY)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(EMPTY)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build/wheel/rankfold-*.whl
	$(EMPTY)/rankfold --version
	$(EMPTY)/rankfold doctor --seconds 5
	cat docs/*.md > build/wheel/book.txt
	cd build/wheel && empty/bin/rankfold train --data book.txt --out run --set train.updates=100
	cd build/wheel && empty/bin/rankfold sample run --num 3
	cd build/wheel && empty/bin/rankfold states run --top 3
	cd build/wheel && empty/bin/rankfold explore run -o page.html

clean:
	rm -rf $(VENV)

$(VENV)/.%: $(FILES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rankfold needs Python 3.11 or newer")'
	# torch first and alone: an open range elsewhere would fetch another build.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@

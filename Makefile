# Every target makes its own environment with pip alone; PYTHON chooses the interpreter.
PYTHON ?= python3
PYTEST_WORKERS ?= 2
COVERED := ops core engine results

DEMO := .venv-demo
TEST := .venv-test
BIN := $(TEST)/bin
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# Workers begin with half of the tests each, so that the fixtures of a file are made once, and end together.
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo environment check test ci slow ray adapters docs notebooks package coverage bench fortress clean
.NOTPARALLEL:

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

demo: ## install into a fresh environment, evaluate the embedded model, write its report to build/demo.html
	rm -rf $(DEMO)
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet -c constraints.txt .
	@mkdir -p build
	$(DEMO)/bin/brinell demo --out $(DEMO)/run --report build/demo.html

# Made anew once per make command: `make check test` shares it.
environment:
	rm -rf $(TEST)
	$(PYTHON) -m venv $(TEST)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'

check: environment ## fresh environment, then ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: environment ## fresh environment, then every test that is not slow, and the doctests
	$(PYTEST) -n $(PYTEST_WORKERS)

ci: check test ## check and test in one fresh environment

slow: environment ## fresh environment, then the slow tests
	$(PYTEST) -n $(PYTEST_WORKERS) -m slow

ray: environment ## fresh environment with Ray, then the tests that start real workers
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,ray]'
	$(PYTEST) -m ray

adapters: environment ## fresh environment with JAX, scikit-learn, ONNX and TensorFlow, then the tests on models of theirs
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,jax,sklearn,onnx,tensorflow]'
	$(PYTEST) -m adapters tests/adapters

docs: environment ## fresh environment, then the documentation site in build/docs; a warning is an error
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/sphinx-build -W --keep-going -q -c docs . build/docs
	@echo "build/docs/index.html"

notebooks: environment ## fresh environment, then run the notebooks in examples and store what they show
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(ONE_THREAD) $(BIN)/python docs/notebooks.py

package: environment ## wheel and sdist in dist/, their metadata checked, the wheel installed into a fresh environment
	rm -rf dist $(DEMO)
	$(BIN)/python -m pip install --quiet twine
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	$(DEMO)/bin/brinell doctor

coverage: environment ## fresh environment, then the tests; fails under 95 % of ops, core, engine and results
	$(PYTEST) -n $(PYTEST_WORKERS) $(COVERED:%=--cov=src/brinell/%) --cov-branch --cov-report=term --cov-fail-under=95

bench: environment ## fresh environment, then every benchmarks/bench_*.py
	@set -e; for file in benchmarks/bench_*.py; do \
	  if [ ! -e "$$file" ]; then echo "no benchmarks/bench_*.py yet"; exit 0; fi; \
	  echo "== $$file"; $(BIN)/python "$$file"; \
	done

fortress: environment ## fresh environment, then kill, corrupt, forge and fuzz with a seed; the table of what held
	$(ONE_THREAD) $(BIN)/python benchmarks/fortress.py

clean: ## remove environments, caches and build products
	rm -rf $(DEMO) $(TEST) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage .coverage.* .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

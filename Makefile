# SPDX-License-Identifier: Apache-2.0
#
#   make run      a broker, this host's telemetry and a Spark job, end to end, with real data
#   make run-remote  the same with an object store in a folder: half-way the broker loses its machine, and nothing else
#   make test     every test but tests/packaging and tests/interop, which VIBEMQ_INTEROP=1 or CI=true adds
#   make interop  the clients of others, all of them built; writes the matrices of the doors' READMEs
#   make check    ruff, mypy, and the tests of the house rules
#   make san      the C core under the address, undefined and thread sanitizers
#   make fuzz     every fuzz target for FUZZ_SECONDS each
#   make kills    brokers killed in a commit at every call, and under load at random moments, SOAK_ROUNDS times each
#   make spark-soak  drivers and brokers of a Spark query killed at random, SOAK_ROUNDS times
#   make remote-soak  brokers of an object store lose processes, power and machines at random, SOAK_ROUNDS times
#   make spark-versions  the Spark tests' core with each older Spark that is supported
#   make spark-connect  the same source and sink over Spark Connect
#   make screenshots  the pictures of the management page in docs/page, of some minutes of load
#   make bench    the figures of benchmarks/README.md on this machine, RabbitMQ beside it if installed
#   make docs     the documentation site, in build/docs
#   make clean    remove everything that was built, and the virtual environment
#
# Each makes the virtual environment first if need be.  It takes Python 3.11 or newer with its venv
# module and headers, a C compiler, and a package registry; what else is missing is said.

PYTHON ?= python3
VENV ?= .venv
FUZZ_SECONDS ?= 60
SPARK_VERSIONS := 4.0 4.1 4.2
SPARK_TESTS := $(addprefix tests/spark/test_spark_,commands.py jobs.py sink.py sink_queries.py)
PYTEST_ARGS ?=
BENCH_ARGS ?=
RUN_ARGS ?=
SOAK_ROUNDS ?= 30
COMMA := ,
CC := $(shell command -v gcc || command -v cc || echo gcc)

# What Cython has translated, for every build of the same sources: the tests make a wheel.
export VIBEMQ_CYTHON_CACHE ?= $(CURDIR)/build/translated

BIN := $(VENV)/bin
SOURCES := $(shell find csrc vibemq pyspark_vibemq -name '*.[ch]' -not -path 'vibemq/*.c' -o -name '*.pyx' -o -name '*.pxd')

.PHONY: run run-remote test interop check san fuzz kills damage spark-soak remote-soak spark-versions spark-connect screenshots bench docs clean requirements
.DELETE_ON_ERROR:
.NOTPARALLEL:

run: $(VENV)/.run $(VENV)/.built
	$(BIN)/python examples/ingest/ingest.py $(RUN_ARGS)
	@echo "Next: $(BIN)/vibemq serve is a broker that stays, and http://localhost:2926/ shows what is in it (user and password: guest)"

run-remote: RUN_ARGS += --lose-machine
run-remote: run

test: $(VENV)/.test $(VENV)/.built build/spark.jsa
	$(MAKE) -C csrc -j $(shell nproc) test CC=$(CC)
	$(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

interop: $(VENV)/.test $(VENV)/.built
	VIBEMQ_INTEROP=all VIBEMQ_INTEROP_WRITE=1 $(BIN)/python -m pytest -q tests/interop $(PYTEST_ARGS)

check: $(VENV)/.test $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy examples/ingest
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_tidy.py

san:
	$(MAKE) -C csrc san CC=$(CC)

fuzz: $(VENV)/.test $(VENV)/.built
	$(MAKE) -C csrc fuzz FUZZ_SECONDS=$(FUZZ_SECONDS)
	VIBEMQ_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -q -m fuzz tests

kills: $(VENV)/.test $(VENV)/.built
	VIBEMQ_KILL_EACH_CALL=1 $(BIN)/python -m pytest -q tests/broker/test_transactions_kill.py
	VIBEMQ_KILL_ROUNDS=$(SOAK_ROUNDS) $(BIN)/python -m pytest -q tests/broker/test_kill.py tests/broker/test_queue_kill.py

damage: $(VENV)/.test $(VENV)/.built
	VIBEMQ_DAMAGE=all $(MAKE) -C csrc test CC=$(CC) TESTS=ledger_damage TEST_SECONDS_MAX=3600
	VIBEMQ_DAMAGE=all $(BIN)/python -m pytest -q -n auto tests/server/test_damage_table.py tests/remote/test_damage.py

spark-soak: $(VENV)/.test $(VENV)/.built
	VIBEMQ_SOAK_ROUNDS=$(SOAK_ROUNDS) $(BIN)/python -m pytest -q -s tests/spark/test_spark_killed.py

remote-soak: $(VENV)/.test $(VENV)/.built
	VIBEMQ_SOAK_ROUNDS=$(SOAK_ROUNDS) $(BIN)/python -m pytest -q -s tests/remote/test_lost_machine.py

# Java's archive of Spark's classes: the tests start Spark some thirty times (tests/conftest.py).
build/spark.jsa: $(VENV)/.test | $(VENV)/.built
	PYTHONPATH=tests $(BIN)/python tests/spark/spark_classes.py $@

# Half a gigabyte each, fetched once.
build/spark-%: | $(VENV)/.test
	rm -rf $@.part
	$(BIN)/python -m pip install -q --no-deps --target $@.part "pyspark~=$*.0" py4j
	mv $@.part $@

# What writes Delta and Iceberg is fetched by Spark itself, from Maven Central, into a folder of its own.
spark-versions: $(VENV)/.test $(VENV)/.built $(SPARK_VERSIONS:%=build/spark-%)
	for version in $(SPARK_VERSIONS); do \
	    PYTHONPATH=$(CURDIR)/build/spark-$$version VIBEMQ_SPARK_JARS=build/spark-jars \
	    $(BIN)/python -m pytest -q -m "spark and not rabbitmq" $(SPARK_TESTS) || exit 1; done

# What a client of Spark Connect needs: in a folder of its own, because pandas in the environment would hide what works
# without it. Spark says itself that it does not know pandas 3 yet.
build/connect: | $(VENV)/.made
	rm -rf $@.part
	$(BIN)/python -m pip install -q --target $@.part grpcio grpcio-status "pandas>=2.2,<3"
	mv $@.part $@

spark-connect: $(VENV)/.test $(VENV)/.built build/connect
	$(BIN)/python -m pytest -q tests/spark/test_spark_connect.py

screenshots: $(VENV)/.test $(VENV)/.built
	VIBEMQ_SCREENSHOTS=$(CURDIR)/docs/page $(BIN)/python -m pytest -q tests/admin/test_page.py -k pictures

bench: $(VENV)/.test $(VENV)/.built
	$(BIN)/python benchmarks/setup.py -q build_ext --inplace
	$(MAKE) -C csrc bench CC=$(CC)
	$(BIN)/python -m pytest -q benchmarks
	$(BIN)/python -m benchmarks signalr --rounds 3
	$(BIN)/python -m benchmarks micromsg2 --rounds 3
	$(BIN)/python -m benchmarks streams $(BENCH_ARGS)

# A README is the first page of a site too, and servers look for index.html.
docs: $(VENV)/.docs $(VENV)/.built
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/docs
	cp build/docs/README.html build/docs/index.html

clean:
	$(MAKE) -C csrc clean
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks $(VENV)
	find vibemq pyspark_vibemq examples tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	find vibemq benchmarks -name '*.so' -delete

# ---- the environment; a stamp for each step, so that a second run takes no time ----

requirements:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing (Debian: apt-get install python3)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: $$($(PYTHON) --version) is too old: 3.11 or newer is needed (make PYTHON=python3.12 ...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "make: Python's venv module is missing (Debian: apt-get install python3-venv)"; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
	    { echo "make: Python's headers are missing (Debian: apt-get install python3-dev)"; exit 1; }
	@command -v $(CC) >/dev/null || { echo "make: a C compiler is missing (Debian: apt-get install gcc libc6-dev)"; exit 1; }

# What a stage is called, and its commands: one line with its time.  Their output goes to a file in build/, whose end is
# shown if they fail.
define stage
	@mkdir -p build; log=build/make-$(patsubst .%,%,$(notdir $@)).log; began=$$(date +%s); \
	if ($(2)) >$$log 2>&1; then echo "$(1): $$(($$(date +%s) - began)) s"; \
	else echo "$(1) failed; the end of $$log:"; tail -n 40 $$log; exit 1; fi
	@touch $@
endef
INSTALL := VIBEMQ_ONLY_REGISTER=1 $(BIN)/python -m pip install --no-build-isolation
EXAMPLE := -r examples/ingest/requirements.txt

$(VENV)/.made:
	@$(MAKE) --no-print-directory requirements
	$(call stage,virtual environment in $(VENV),$(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --upgrade pip \
	    && $(BIN)/python -m pip install "setuptools>=80" "cython>=3.1")

$(VENV)/.run: $(VENV)/.made pyproject.toml setup.py examples/ingest/requirements.txt
	$(call stage,packages that it needs,$(INSTALL) -e ".[spark-local$(COMMA)remote]" $(EXAMPLE))

$(VENV)/.test: $(VENV)/.made pyproject.toml setup.py examples/ingest/requirements.txt
	$(call stage,packages that the tests need,$(INSTALL) -e ".[spark-local$(COMMA)test]" $(EXAMPLE))

$(VENV)/.docs: $(VENV)/.made pyproject.toml setup.py
	$(call stage,packages that the documents need,$(INSTALL) -e ".[docs]")

# Only what has changed is built again.
$(VENV)/.built: $(SOURCES) setup.py | $(VENV)/.made
	@echo "compiling, which takes two to four minutes on two cores the first time"
	$(call stage,compiling,$(BIN)/python setup.py build_ext --inplace)

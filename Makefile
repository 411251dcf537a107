# Three commands matter to a newcomer: `make demo`, `make test` and `make try`.
SHELL := /bin/bash
PYTEST = .venv/bin/python -m pytest
WORKERS ?= $(shell expr 2 \* $$(nproc))
# Units of tests run longest first, and as many that burn a core as there are cores: tests/schedule.py.
SPREAD = -n $(WORKERS) --dist loadgroup --dearest 30

# Thousands of tests are compiled once, and hundreds of processes that they start not at all; the
# folders stay clean.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX = $(CURDIR)/build/pycache

.PHONY: first-day venv dev ldap build widgets npm bytecode prepared kills server-kills chaos sim demo test test-all try test-fast ledger attack check bench mutants science matrix manual deb rpm run lab-down clean system-demo system-test

# What the program runs on; the tools of tests and checks come with `dev`.
venv: .venv/installed

.venv/installed: pyproject.toml
	.ci/install-system demo
	python3 -m venv .venv
	.venv/bin/pip install --quiet --upgrade pip
	.venv/bin/pip install --quiet -e .
	touch $@

dev: .venv/developing

.venv/developing: .venv/installed
	.venv/bin/pip install --quiet -e '.[dev]'
	touch $@

system-demo:
	.ci/install-system demo

system-test:
	.ci/install-system demo test deb bench

# What the lab boots: the trampoline's ramdisk and the demo's images. Both skip what is up to date.
build: venv system-demo widgets
	.venv/bin/python -m trampoline.build lab
	.venv/bin/python -m images.build hello-a hello-b opaque

# What the portal's consoles and charts are drawn by: packages of npm's registry, checked by their
# digests. Where they cannot be had, the portal does without them.
widgets: venv
	.venv/bin/python .ci/widgets.py

# Debian's package does not go beside another Node.js: where that came without npm, the portal does
# without widgets.
npm:
	command -v npm >/dev/null || .ci/install-system npm || true

demo: build
	.venv/bin/python -m cod.demo.story

# The demo's lab and server, left running for a person, until Ctrl-C.
try: build
	.venv/bin/python -m cod.demo.tour

# The manual, into build/manual; the portal serves it at /docs. Links that lead nowhere are errors.
manual: dev
	rm -rf build/manual
	.venv/bin/python -m sphinx -q -E -W --keep-going -b dirhtml -d build/manual.trees docs build/manual

# The Debian package, for the release that it is made on, or for another: make deb RELEASE=trixie
deb: manual npm widgets
	.ci/install-system deb
	.ci/deb/$(if $(RELEASE),release $(RELEASE),build)

# The packages for Enterprise Linux 9, where they are made.
rpm:
	.ci/rpm/build

# Built from source: only where its tests are run.
ldap: system-test dev
	.venv/bin/python -c "import ldap" 2>/dev/null || .venv/bin/pip install --quiet -e '.[ldap]'

# Bytecode of files that are gone stays: beyond 500 MB all of it is made anew.
bytecode:
	[ ! -d build/pycache ] || [ "$$(du -sm build/pycache | cut -f1)" -lt 500 ] || rm -rf build/pycache

# What the whole suite needs; the checks use one core, the builds the other.
prepared: bytecode system-test dev npm
	$(MAKE) --jobs 2 --output-sync=target check build ldap

# On MariaDB a sample of the day, and no nightly tests; few that failed are run once more: docs/testing.md.
test: USUAL := -m "not nightly" --sample $(shell date -u +%F)
test: prepared
	$(PYTEST) $(SPREAD) $(USUAL) --cache-clear || .venv/bin/python -m tests.again $$? $(USUAL)

test-all: prepared
	.ci/install-system night
	$(PYTEST) $(SPREAD)

# What the last run cost, into tests/ledger.tsv, from which the next run has its order; and docs/testing.md of it.
ledger: dev
	.venv/bin/python -m tests.ledger
	.venv/bin/python -m tests.ledger --page

# One worker a core: little waits here, and each worker collects all tests for itself.
test-fast: system-test dev
	$(PYTEST) -n $(shell nproc) --dist loadgroup -m "not system and not mariadb and not slow and not nightly" -q --hypothesis-profile fast

check: dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	$(PYTEST) -q tests/unit/test_imports.py tests/unit/test_layout.py tests/unit/test_cli_keys.py \
	    tests/unit/test_body_fields.py tests/unit/test_docstrings.py \
	    tests/net/test_template_attributes.py

# What a hostile host, VCM or owner can do, at length: a million messages of each protocol, five
# minutes of attack on a running server, everything as everybody, images that lie. `make test` has a
# share of each. At the end a table: what one member or one node can do, before and now.
attack: system-test dev build
	COD_ATTACK=1000000 COD_ATTACK_SECONDS=300 $(PYTEST) --timeout 3600 tests/attack \
	    tests/net/test_rights_walk.py tests/net/test_rights_pages.py tests/net/test_rights_forms.py \
	    tests/net/test_hostile_owner.py tests/net/test_nmp_attack.py tests/net/test_schemathesis.py \
	    tests/net/test_ingester.py tests/unit/test_images.py tests/unit/test_xmldoc.py \
	    tests/store/test_dhcp_starvation.py tests/system/test_dhcp_clients.py tests/system/test_impostors.py
	COD_ATTACK=1000000 .venv/bin/python -m tests.attack.table

# Ten test runs that are killed at random moments, and what they leave: make kills SEED=7
kills: system-test dev build
	.venv/bin/python -m tests.kills $(SEED)

# Two servers on one database (GALERA=1: on three nodes of a cluster; PAIR=1: on a semi-synchronous pair whose replica is
# promoted when the primary was killed) under faults drawn by a seed, and a check of all
# that was acknowledged and of all rows of nodes throughout: make chaos SEED=1 MINUTES=60. Of one server on SQLite whose
# parts and machines are killed: make server-kills
MINUTES ?= 60
CHAOS = .venv/bin/python -m tests.chaos --seed $(SEED) --minutes $(MINUTES) $(if $(JSON),--json)
chaos: system-test dev
	$(CHAOS) $(if $(GALERA),--galera) $(if $(PAIR),--pair)

server-kills: system-test dev
	$(CHAOS) --hosts 1 --machines 6 --faults part server machine

# The server's own code in worlds of virtual time, by seed; docs/simulated-world. One world and its story: make sim
# SEED=7; until it is stopped, or for MINUTES, each seed with a line in build/worlds.jsonl: make sim FOREVER=1. SEEDS: at
# most so many, begun in 90 seconds. Nine of ten worlds are short; LONG=1 makes all long.
SEEDS ?= 200
sim: dev
	.venv/bin/python -m tests.world --seeds $(SEEDS) $(if $(FOREVER),--forever $(if $(MINUTES),--minutes $(MINUTES))) \
	    $(if $(filter command line environment,$(origin SEED)),--seed $(SEED)) $(if $(LONG),--long)

# One benchmark: make bench ONLY=dhcp
bench: build dev
	.ci/install-system demo test bench
	.venv/bin/python -m tests.bench $(ONLY)

# Faults planted by a seed in copies of the code, each run against the quick tests that execute its line: the share that
# is caught is printed, with each fault that is not, and kept in build/mutants.json (docs/decisions/0049). The same seed
# plants the same faults. make mutants SEED=2 COUNT=20 ONLY=cod/policy; of whole machines: make mutants BY_HAND=1.
# SECONDS_EACH: of processor time, of the tests that one fault is run against.
SEED ?= 1
COUNT ?= 200
SECONDS_EACH ?= 30
mutants: dev $(if $(BY_HAND),system-test build)
	.venv/bin/python -m tests.mutants --seed $(SEED) --count $(COUNT) --seconds $(SECONDS_EACH) \
	    --workers $(WORKERS) $(if $(ONLY),--only $(ONLY)) $(if $(BY_HAND),--by-hand)

# An administrator's first day, with its commands, what they say, and minutes (docs/start/first-day.md); as root.
first-day: build dev system-test
	$(PYTEST) -q -s tests/system/test_first_day.py

# Machines of every shape, one after another, and docs/hardware.md of them: make matrix
# ONLY="uefi-virtio bios-usb"
matrix: build dev system-test
	.venv/bin/python -m tests.system.matrix $(if $(JOBS),--jobs $(JOBS)) $(ONLY)

# What the literature shows, in the simulator, and docs/science of it; hours of it on a real Slurm, as root.
science: dev system-test
	.venv/bin/python -m tests.bench.science
	.venv/bin/python -m tests.bench.bench_slice

run: venv widgets
	.venv/bin/cod --site $${COD_SITE:-/etc/cod/site.toml} serve

lab-down: venv
	.venv/bin/cod lab down --all

clean:
	rm -rf build .venv

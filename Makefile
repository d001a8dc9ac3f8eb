# Two commands do everything: make demo, make test. The rest is for developers.
SECONDS ?= 0
CARGO ?= cargo

.PHONY: build release demo test test-browser test-kernel lint loom simulate fuzz soak
.DEFAULT_GOAL := build

build:
	scripts/deps.sh build
	$(CARGO) build --release --locked -p simoom

# the same and simoom-bench by profile, in target/profiled: faster, for four times the build; CPU=native for this machine's processor alone
CPU ?=
release:
	scripts/deps.sh demo
	CARGO="$(CARGO)" scripts/release.sh $(CPU)

# a two-host laboratory, the server over AF_XDP, a few queries and pages, live counters; SECONDS=10 ends by itself
demo:
	scripts/deps.sh demo
	$(CARGO) build --release --locked -p simoom
	scripts/demo.sh target/release/simoom $(SECONDS)

# every test, the laboratory's included; needs root for network namespaces and AF_XDP
test:
	scripts/deps.sh test
	$(CARGO) test --workspace --locked --no-fail-fast
	$(MAKE) loom

# a browser loads a page in the laboratory; apart, since Chromium is some hundred MB
test-browser:
	scripts/deps.sh browser
	$(CARGO) test --locked -p simoom --features browser --test browser

# the programs in the oldest kernel that we mean to run on, Debian 12's 6.1, emulated: whether its verifier takes them, and the
# laboratory's tests of what they do, but for two that depend on speed; apart, since it is a kernel to fetch and some minutes
test-kernel:
	scripts/deps.sh kernel
	$(CARGO) build --locked -p simoom
	exe=$$($(CARGO) test --locked --no-run -p simoom --test lab 2>&1 | sed -n 's/.*(\(target.*\))/\1/p'); \
	scripts/kernel.sh $$exe --test-threads=1 --skip rates --skip sleeps driver:: steering::

lint:
	scripts/deps.sh build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# the rings under every interleaving of their threads
loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test --release --locked --target-dir target/loom -p base --lib loom

# TCP in a simulated world, against itself, with connections that move between threads too, and against smoltcp; a seed that fails is
# told with the command that runs it again
SEEDS ?= 10000
simulate:
	$(CARGO) run --release --locked -p sim -- --against self --seeds 0..$(SEEDS)
	$(CARGO) run --release --locked -p sim -- --against self --seeds 0..$(SEEDS) --moves
	$(CARGO) run --release --locked -p sim -- --against smoltcp --seeds 0..$(SEEDS)

# each fuzz target for FUZZ_SECONDS, from the corpus; what it finds goes to fuzz/artifacts
FUZZ_SECONDS ?= 60
fuzz:
	command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	for target in frames http_request kv question segment stream zone_file; do \
	  mkdir -p target/fuzz-corpus/$$target; \
	  $(CARGO) +nightly fuzz run --features libfuzzer $$target target/fuzz-corpus/$$target fuzz/corpus/$$target \
	    -- -max_total_time=$(FUZZ_SECONDS) -max_len=8192 -rss_limit_mb=2048 || exit 1; \
	done

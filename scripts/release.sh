#!/usr/bin/env bash
# A release build by profile: built to be watched, run under the loads that it is for, and built again with what was seen.
# usage: release.sh [CPU]     CPU: the least processor that it is to run on, as rustc's target-cpu has it: x86-64-v3, native
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo} cpu=${1:-} host=$(rustc -vV | sed -n 's/^host: //p')
work=$PWD/target/profile seen=$PWD/target/profile/seen

profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
if [ ! -x "$profdata" ] && ! { command -v rustup >/dev/null && rustup component add llvm-tools; }; then
  echo "missing llvm-profdata of Rust's own LLVM: with rustup, rustup component add llvm-tools" >&2
  exit 1
fi

build() {
  # for a target of its own, so that the flags are not for what runs while it is built
  RUSTFLAGS="$1" "$cargo" build --release --locked -p simoom -p bench --target "$host" --target-dir "$work/$2"
}

# counters in a file that is mapped from the start: a confined server can open none at its end
build "-Cprofile-generate -Cllvm-args=-runtime-counter-relocation" watched
rm -rf "$seen"
mkdir -p "$seen"
watched=$work/watched/$host/release
export LLVM_PROFILE_FILE=$seen/%p%c.profraw

run() {
  echo "\$ simoom-bench $*"
  "$watched/simoom-bench" "$@"
}
for scenario in ping-pong "ping-pong --connections 100000" churn bulk; do
  # shellcheck disable=SC2086
  run pipe-tcp $scenario --rounds 1
done
run pipe-http --rounds 1
run pipe-kv --rounds 1
run pipe-dns --rounds 1
if [ "$(id -u)" = 0 ]; then
  # the whole server over AF_XDP, in a laboratory of two hosts
  run soak --seconds 10 --rate 20000 --out "$seen"
  run soak-web --seconds 10 --out "$seen"
else
  echo "not root: what is seen is the stack and the services, without the server around them"
fi

"$profdata" merge -o "$work/profile.profdata" "$seen"/*.profraw
unset LLVM_PROFILE_FILE
build "-Cprofile-use=$work/profile.profdata${cpu:+ -Ctarget-cpu=$cpu}" built
for program in simoom simoom-bench; do
  install -D -m 755 "$work/built/$host/release/$program" "target/profiled/$program"
done
echo "made target/profiled/simoom and target/profiled/simoom-bench"

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

build -Cprofile-generate watched
rm -rf "$seen"
mkdir -p "$seen"
# one file a program: who ends adds to it
LLVM_PROFILE_FILE=$seen/%m.profraw scripts/train.sh "$work/watched/$host/release/simoom" "$work/watched/$host/release/simoom-bench"

"$profdata" merge -o "$work/profile.profdata" "$seen"/*.profraw
build "-Cprofile-use=$work/profile.profdata${cpu:+ -Ctarget-cpu=$cpu}" built
for program in simoom simoom-bench; do
  install -D -m 755 "$work/built/$host/release/$program" "target/profiled/$program"
done
echo "made target/profiled/simoom and target/profiled/simoom-bench"

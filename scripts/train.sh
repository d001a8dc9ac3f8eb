#!/usr/bin/env bash
# Runs what a build by profile is for: the stack and the services with no kernel in it, and as root the server with every service on both
# engines, under load.     usage: train.sh SIMOOM SIMOOM-BENCH
set -euo pipefail
simoom=$(realpath "$1") bench=$(realpath "$2")
# shellcheck source=scripts/lab.sh
. "$(dirname "$0")/lab.sh"

run() {
  echo "\$ ${*##*/}"
  "$@"
}
for scenario in ping-pong "ping-pong --connections 100000" churn bulk; do
  # shellcheck disable=SC2086
  run "$bench" pipe-tcp $scenario --rounds 1
done
run "$bench" pipe-http --rounds 1
run "$bench" pipe-kv --rounds 1
run "$bench" pipe-dns --rounds 1
if [ "$(id -u)" != 0 ]; then
  echo "not root: the server around the stack and the services is not run"
  exit 0
fi

work=$(mktemp -d)
cleanup() {
  trap - EXIT INT TERM
  server_down
  lab_down
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
lab_up train

"$bench" zone --names 1000 --out "$work/zone"
mkdir "$work/www"
urls=()
for bytes in 1024 4096 16384 65536 262144 1048576; do
  head -c "$bytes" /dev/urandom >"$work/www/$bytes"
  urls+=("http://198.18.0.1/$bytes")
done

# unconfined: what was seen is written at the end, into a file that a confined server could not open
for engine in xdp sockets; do
  cat >"$work/simoom.toml" <<END
[dataplane]
interface = ["vs"]
backend = "$engine"
listen = ["198.18.0.1:53"]
[control]
path = "$work/control"
sandbox = "off"
[dns]
tier = "xdp"
[[dns.zone]]
origin = "example.com"
file = "$work/zone"
[web]
root = "$work/www"
listen = ["198.18.0.1:80"]
drain = 1
[kv]
listen = ["198.18.0.1:11211"]
[echo]
listen = ["198.18.0.1:7"]
END
  [ $engine = xdp ] || sed -i '/^interface\|^backend\|^tier/d' "$work/simoom.toml"
  server_up "$simoom" "$work/simoom.toml" "$work/control"
  own=(--interface vc --address 198.18.0.3-198.18.0.18)
  run "${on_client[@]}" "$bench" dns --interface vc --server 198.18.0.1 --names 1000 --zone example.com --rate 30k --seconds 3
  run "${on_client[@]}" "$bench" http "${own[@]}" --seconds 3 "${urls[@]}"
  run "${on_client[@]}" "$bench" http "${own[@]}" --seconds 3 --requests-per-connection 1 "${urls[0]}"
  # a kernel's client, which takes super-segments
  run "${on_client[@]}" curl -sS --remote-name-all --output-dir "$work" "${urls[@]}" "${urls[@]}" "${urls[@]}"
  run "${on_client[@]}" "$bench" kv "${own[@]}" --server 198.18.0.1:11211 --store --records 10000 --rate 30k --seconds 3
  run "${on_client[@]}" "$simoom" ping 198.18.0.1 --seconds 2
  run "${on_client[@]}" "$simoom" ping 198.18.0.1 --interface vc --seconds 2
  # one that ends badly has not written what was seen
  kill -TERM "$pid"
  wait "$pid"
  pid=
done

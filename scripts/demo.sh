#!/usr/bin/env bash
# Shows simoom at work and leaves nothing behind. As root: two hosts made of network namespaces, the server over AF_XDP.
# Otherwise: kernel sockets at 127.0.0.1, ports 5300 and 8080.     usage: demo.sh SIMOOM [SECONDS]     (0: until Ctrl-C)
set -euo pipefail
simoom=$(realpath "$1") seconds=${2:-0}
demo=$(realpath "$(dirname "$0")/../demo")
# shellcheck source=scripts/lab.sh
. "$(dirname "$0")/lab.sh"
work=$(mktemp -d)

cleanup() {
  trap - EXIT INT TERM
  server_down
  lab_down
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 0' INT TERM

if [ "$(id -u)" = 0 ]; then
  lab_up demo
  dataplane='interface = ["vs"]
listen = ["198.18.0.1:53", "[2001:db8:18::1]:53"]' web='"198.18.0.1:80", "[2001:db8:18::1]:80"'
  target=(@198.18.0.1) target6=(@2001:db8:18::1) url=http://198.18.0.1 url6=http://[2001:db8:18::1]
else
  dataplane='listen = ["127.0.0.1:5300"]' web='"127.0.0.1:8080"'
  target=(@127.0.0.1 -p 5300) target6=(@127.0.0.1 -p 5300) url=http://127.0.0.1:8080 url6=http://127.0.0.1:8080
fi

control=$work/control
cat >"$work/simoom.toml" <<END
[dataplane]
$dataplane
[control]
path = "$control"
[[dns.zone]]
origin = "example.com"
file = "$demo/example.com.zone"
[web]
root = "$demo/site"
listen = [$web]
END
echo "\$ simoom serve --config simoom.toml    # with this in it:"
sed 's/^/    /' "$work/simoom.toml"
server_up "$simoom" "$work/simoom.toml" "$control"

ask() {
  echo "\$ dig $*"
  "${on_client[@]}" dig +noall +answer +comments +time=10 +tries=1 "$@" | grep -E 'status|IN' || { echo "no answer" >&2; exit 1; }
}
if command -v dig >/dev/null; then
  ask "${target[@]}" www.example.com A
  ask "${target6[@]}" anything.wild.example.com TXT
  ask +tcp "${target[@]}" no-such-name.example.com A
else
  echo "dig is not installed (Debian: bind9-dnsutils), so no query is shown"
fi

fetch() {
  echo "\$ curl $*"
  "${on_client[@]}" curl -gsS --max-time 10 "$@" | grep -E '^(HTTP|ETag|Content-Length)|<h1>' || { echo "no answer" >&2; exit 1; }
}
if command -v curl >/dev/null; then
  fetch "$url/"
  fetch -I "$url6/simoom.svg"
else
  echo "curl is not installed, so no page is fetched"
fi

counters() {
  "$simoom" ctl --control "$control" stats | awk '
    $1 == "dns_questions_total" && /transport=udp/ { udp += $NF }
    $1 == "dns_questions_total" && /transport=tcp/ { tcp += $NF }
    $1 == "dns_answers_total" { sub("rcode=", "", $2); answers = answers ", " $2 " " $NF }
    $1 == "web_answers_total" { pages += $NF }
    $1 == "dataplane_frames_total" && /direction=in/ { taken = "; AF_XDP " $NF " frames in" }
    $1 == "dataplane_frames_total" && /direction=out/ { sent = ", " $NF " out" }
    END { printf "questions: UDP %d, TCP %d; answers: %s; pages: %d%s%s", udp, tcp, substr(answers, 3), pages, taken, sent }'
}

# The server does not answer, or has ended. Ctrl-C goes to it too, and a shell whose child ends well at that moment hears nothing of
# it; a server that was told to end says so by its status.
over() {
  sleep 1
  if kill -0 "$pid" 2>/dev/null; then echo "the server does not answer" >&2; exit 1; fi
  if wait "$pid"; then pid=; exit 0; fi
  pid=
  echo "the server ended" >&2
  exit 1
}

echo "counters (Ctrl-C ends the demo):"
started=$SECONDS
while [ "$seconds" = 0 ] || [ $((SECONDS - started)) -lt "$seconds" ]; do
  line=$(counters) || over
  # on a terminal the line stays where it is
  if [ -t 1 ]; then printf '\r%s\033[K' "$line"; else echo "$line"; fi
  sleep 1
  kill -0 "$pid" 2>/dev/null || over
done

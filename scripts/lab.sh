# For who sources this: as root two hosts made of network namespaces and a veth pair between them, by lab_up NAME; a server on its host, or
# without lab_up on this one, by server_up SIMOOM CONFIG CONTROL; server_down and lab_down, also where there is none.
# The server's side is vs with 198.18.0.1, the client's vc with 198.18.0.2; "${on_server[@]}" and "${on_client[@]}" run a command there.
# shellcheck shell=bash
pid='' lab_server='' lab_client='' on_server=() on_client=()

lab_up() {
  lab_server=simoom-$1-$$-server lab_client=simoom-$1-$$-client
  on_server=(ip netns exec "$lab_server") on_client=(ip netns exec "$lab_client")
  ip netns add "$lab_server"
  ip netns add "$lab_client"
  ip -n "$lab_server" link add vs type veth peer name vc netns "$lab_client"
  local side host interface number
  for side in "$lab_server vs 1" "$lab_client vc 2"; do
    read -r host interface number <<<"$side"
    ip -n "$host" link set lo up
    ip -n "$host" addr add "198.18.0.$number/24" dev "$interface"
    ip -n "$host" addr add "2001:db8:18::$number/64" dev "$interface" nodad
    ip -n "$host" link set "$interface" up
    # veth delivers what XDP sends only to a side that has NAPI: receive offload switches it on
    ip netns exec "$host" ethtool -K "$interface" gro on >/dev/null
  done
}

# until it answers; 60 s at most
server_up() {
  "${on_server[@]}" "$1" serve --config "$2" &
  pid=$!
  for _ in $(seq 600); do
    if "$1" ctl --control "$3" status >/dev/null 2>&1; then return; fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  echo "the server did not start" >&2
  exit 1
}

server_down() {
  if [ -z "$pid" ]; then return; fi
  kill -TERM "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  pid=
}

lab_down() {
  if [ -z "$lab_server" ]; then return; fi
  ip netns del "$lab_server" 2>/dev/null || true
  ip netns del "$lab_client" 2>/dev/null || true
}

# Two hosts made of network namespaces and a veth pair between them, for who sources this: lab_up NAME, lab_down. As root.
# The server's side is vs with 198.18.0.1, the client's vc with 198.18.0.2; "${on_server[@]}" and "${on_client[@]}" run a command there.
# shellcheck shell=bash
lab_server='' lab_client='' on_server=() on_client=()

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

lab_down() {
  ip netns del "$lab_server" 2>/dev/null || true
  ip netns del "$lab_client" 2>/dev/null || true
}

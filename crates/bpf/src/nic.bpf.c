// What a NIC's receive-side scaling does, for a veth pair: at the sender's clsact egress, each packet gets the queue that its
// Toeplitz hash names through a table of 128 entries, and veth puts it into that queue of its other end.
//
// veth_xmit() takes skb->queue_mapping, but after this hook the core chooses a transmit queue again (netdev_core_pick_tx): of a
// packet with a socket it is the one that the socket has remembered, whatever stands in queue_mapping, unless nothing of the
// connection is under way. Only a packet without a socket goes where queue_mapping says (skb_tx_hash). So a packet that has one
// is cloned, which leaves the socket behind, sent to this device once more, and the original taken away; the clone comes by
// here again and is given its queue. (act_skbedit could keep the core from choosing, but few kernels for virtual machines
// have it.)
//
// Lost by the clone: the sender's accounting of bytes in the device, and its departure time.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "toeplitz.bpf.h"

// Mirrored in nic.rs.
enum { ENTRIES = 128, NOT_HASHED = ENTRIES };

const volatile __u32 queues = 1;
// Whether the ports of UDP count.
const volatile __u32 udp_ports = 1;

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, ENTRIES);
  __type(key, __u32);
  __type(value, __u32);
} table SEC(".maps");

struct seen {
  __u64 packets;
  __u64 hash; // of the last
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, ENTRIES + 1);
  __type(key, __u32);
  __type(value, struct seen);
} entries SEC(".maps");

INLINE __u32 ports(struct __sk_buff *skb, __u32 at, __u8 protocol, __u32 addresses) {
  __u8 ports[4];
  if (protocol != IPPROTO_TCP && !(protocol == IPPROTO_UDP && udp_ports))
    return 0;
  return bpf_skb_load_bytes(skb, at, ports, sizeof ports) ? 0 : sum(ports, addresses, sizeof ports);
}

INLINE int ipv4(struct __sk_buff *skb, __u32 at, __u32 *hash) {
  struct iphdr ip;
  __u8 addresses[8];
  if (bpf_skb_load_bytes(skb, at, &ip, sizeof ip))
    return 0;
  __builtin_memcpy(addresses, &ip.saddr, 4);
  __builtin_memcpy(addresses + 4, &ip.daddr, 4);
  *hash = sum(addresses, 0, sizeof addresses);
  if (!(ip.frag_off & bpf_htons(0x3fff))) // MF and the offset
    *hash ^= ports(skb, at + ip.ihl * 4, ip.protocol, sizeof addresses);
  return 1;
}

INLINE int ipv6(struct __sk_buff *skb, __u32 at, __u32 *hash) {
  struct ipv6hdr ip;
  __u8 addresses[32];
  if (bpf_skb_load_bytes(skb, at, &ip, sizeof ip))
    return 0;
  __builtin_memcpy(addresses, &ip.saddr, 16);
  __builtin_memcpy(addresses + 16, &ip.daddr, 16);
  *hash = sum(addresses, 0, sizeof addresses) ^ ports(skb, at + sizeof ip, ip.nexthdr, sizeof addresses);
  return 1;
}

INLINE int hash_of(struct __sk_buff *skb, __u32 *hash) {
  __u32 at = ETH_HLEN;
  __be16 protocol;
  if (bpf_skb_load_bytes(skb, ETH_HLEN - 2, &protocol, 2))
    return 0;
  if (protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD)) {
    if (bpf_skb_load_bytes(skb, ETH_HLEN + 2, &protocol, 2))
      return 0;
    at += 4;
  }
  if (protocol == bpf_htons(ETH_P_IP))
    return ipv4(skb, at, hash);
  if (protocol == bpf_htons(ETH_P_IPV6))
    return ipv6(skb, at, hash);
  return 0;
}

SEC("classifier")
int spread(struct __sk_buff *skb) {
  if (skb->sk)
    return bpf_clone_redirect(skb, skb->ifindex, 0) ? TC_ACT_SHOT : TC_ACT_STOLEN;
  __u32 hash = 0, queue = 0, index = NOT_HASHED;
  if (hash_of(skb, &hash)) {
    index = hash % ENTRIES;
    __u32 *entry = bpf_map_lookup_elem(&table, &index);
    if (entry && *entry < queues)
      queue = *entry;
    // the receiver sees it as it would see a NIC's
    bpf_set_hash(skb, hash);
  }
  struct seen *seen = bpf_map_lookup_elem(&entries, &index);
  if (seen) {
    __sync_fetch_and_add(&seen->packets, 1);
    seen->hash = hash;
  }
  skb->queue_mapping = queue + 1; // 0 is "none recorded"
  return TC_ACT_OK;
}

char _license[] SEC("license") = "Apache-2.0";

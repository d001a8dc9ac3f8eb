// The reuseport selector: which socket of a group gets a connection or a datagram, by flow group.
//
// A flow group is a bucket of the hash that the kernel has made of both addresses and ports with a secret of its own, so nobody
// outside can aim at a group. Where a NIC's table is to follow the groups, a group is an entry of that table instead, by the
// Toeplitz hash that the NIC makes: the kernel has that hash only of some NICs, and not here, so it is made once more.
//
// A table says which thread a group belongs to. Where the threads are pinned and packets arrive on all of their processors, user
// space switches on "here": then a group that nobody has taken over goes to the thread of the processor that the packet arrived
// on, which is where the rest of its connection will arrive, too.
//
// It runs for each new connection and for each datagram. It must stay within what the verifier of Linux 6.1 accepts.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "toeplitz.bpf.h"

// Mirrored in reuseport.rs. In a group's entry beside the thread: it was taken over, so it goes there from wherever.
enum { TAKEN_OVER = 1u << 31 };
// Bits of `ports`, mirrored there, too: of which packets the NIC hashes the ports.
enum { TCP4 = 1, UDP4 = 2, TCP6 = 4, UDP6 = 8 };

// Groups there are.
const volatile __u32 groups = 1;
// Whether the threads are pinned, so that it matters where packets arrive.
const volatile __u32 pinned = 0;
// Whether groups are entries of a NIC's table; then there is a power of two of them.
const volatile __u32 nic = 0;
const volatile __u32 ports = 0;

struct settings {
  __u32 here;
  // some group was taken over
  __u32 away;
};

volatile struct settings settings SEC(".data") = {};

// By group: the thread, and TAKEN_OVER.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u32);
} owners SEC(".maps");

// By thread.
struct {
  __uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u32);
} sockets SEC(".maps");

// By processor: its thread plus one, or 0.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u32);
} processors SEC(".maps");

// By thread: the group plus one that was last sent there, for each processor that sends.
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u32);
} recent SEC(".maps");

// How much arrived on each processor.
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u64);
} arrivals SEC(".maps");

// By group: the processor plus one on which it last arrived; only where groups are a NIC's.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u32);
} places SEC(".maps");

// The ports stand first in the headers of both protocols, and so in what the kernel shows of the packet.
INLINE __u32 hash_of_ports(struct sk_reuseport_md *md, __u32 tcp, __u32 udp, __u32 at) {
  __u8 bytes[4];
  if (!(ports & (md->ip_protocol == IPPROTO_TCP ? tcp : udp)) || bpf_skb_load_bytes(md, 0, bytes, sizeof bytes))
    return 0;
  return sum(bytes, at, sizeof bytes);
}

// The NIC's hash of the packet; of one that is not what it should be, anything.
INLINE __u32 toeplitz(struct sk_reuseport_md *md) {
  __u8 addresses[32];
  if (md->eth_protocol == bpf_htons(ETH_P_IP)) {
    if (bpf_skb_load_bytes_relative(md, 12, addresses, 8, BPF_HDR_START_NET))
      return 0;
    return sum(addresses, 0, 8) ^ hash_of_ports(md, TCP4, UDP4, 8);
  }
  if (bpf_skb_load_bytes_relative(md, 8, addresses, 32, BPF_HDR_START_NET))
    return 0;
  return sum(addresses, 0, 32) ^ hash_of_ports(md, TCP6, UDP6, 32);
}

INLINE __u32 group_of(struct sk_reuseport_md *md) {
  if (nic)
    return toeplitz(md) & (groups - 1);
  return ((__u64)md->hash * groups) >> 32;
}

// Written only when it changes, so that processors share the line for reading.
INLINE void note(__u32 group, __u32 processor) {
  __u32 *place = bpf_map_lookup_elem(&places, &group);
  if (place && *place != processor + 1)
    *place = processor + 1;
}

// The thread plus one whose processor this is, where groups go by that; or 0.
INLINE __u32 arrived_at(__u32 group) {
  __u32 zero = 0, processor = bpf_get_smp_processor_id();
  __u64 *arrived = bpf_map_lookup_elem(&arrivals, &zero);
  if (arrived)
    *arrived += 1;
  if (nic)
    note(group, processor);
  if (!settings.here)
    return 0;
  __u32 *own = bpf_map_lookup_elem(&processors, &processor);
  return own ? *own : 0;
}

SEC("sk_reuseport")
int choose(struct sk_reuseport_md *md) {
  __u32 group = group_of(md), here = pinned ? arrived_at(group) : 0, thread = here - 1;
  // where all groups go by it the table is not asked: of its lines hardly one is in a cache from one connection to the next
  if (!here || settings.away) {
    __u32 *owner = bpf_map_lookup_elem(&owners, &group);
    if (!owner)
      return SK_PASS;
    if (!here || *owner & TAKEN_OVER)
      thread = *owner & ~TAKEN_OVER;
  }
  __u32 *last = bpf_map_lookup_elem(&recent, &thread);
  if (last)
    *last = group + 1;
  // without a socket in that place the kernel goes by its own hash
  bpf_sk_select_reuseport(md, &sockets, &thread, 0);
  return SK_PASS;
}

char _license[] SEC("license") = "Apache-2.0";

// The reuseport selector: which socket of a group gets a connection or a datagram, by flow group.
//
// A flow group is a bucket of the hash that the kernel has made of both addresses and ports with a secret of its own, so nobody
// outside can aim at a group. A table says which thread a group belongs to. Where the threads are pinned and packets arrive on
// all of their processors, user space switches on "here": then a group that nobody has taken over goes to the thread of the
// processor that the packet arrived on, which is where the rest of its connection will arrive, too.
//
// It runs for each new connection and for each datagram. It must stay within what the verifier of Linux 6.1 accepts.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// Mirrored in reuseport.rs. In a group's entry beside the thread: it was taken over, so it goes there from wherever.
enum { TAKEN_OVER = 1u << 31 };

// Groups there are.
const volatile __u32 groups = 1;
// Whether the threads are pinned, so that it matters where packets arrive.
const volatile __u32 pinned = 0;

struct settings {
  __u32 here;
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

SEC("sk_reuseport")
int choose(struct sk_reuseport_md *md) {
  __u32 group = ((__u64)md->hash * groups) >> 32;
  __u32 *owner = bpf_map_lookup_elem(&owners, &group);
  if (!owner)
    return SK_PASS;
  __u32 entry = *owner;
  __u32 thread = entry & ~TAKEN_OVER;
  if (pinned) {
    __u32 zero = 0, processor = bpf_get_smp_processor_id();
    __u64 *arrived = bpf_map_lookup_elem(&arrivals, &zero);
    if (arrived)
      *arrived += 1;
    if (settings.here && !(entry & TAKEN_OVER)) {
      __u32 *own = bpf_map_lookup_elem(&processors, &processor);
      if (own && *own)
        thread = *own - 1;
    }
  }
  __u32 *last = bpf_map_lookup_elem(&recent, &thread);
  if (last)
    *last = group + 1;
  // without a socket in that place the kernel goes by its own hash
  bpf_sk_select_reuseport(md, &sockets, &thread, 0);
  return SK_PASS;
}

char _license[] SEC("license") = "Apache-2.0";

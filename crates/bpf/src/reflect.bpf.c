// The yardstick of the driver tier: datagrams to one port go back from the driver with their addresses and ports swapped, and
// nothing else is read, looked up or counted but how many they were. What a driver answers cannot cost less.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// In network byte order.
const volatile __be16 port = 0;
// The interface's index, when frames go back by a redirect to it, without which veth wakes only a peer that has a program; else 0.
const volatile __u32 back = 0;

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u64);
} reflected SEC(".maps");

static __always_inline void swap(__u32 *one, __u32 *other) {
  __u32 word = *one;
  *one = *other;
  *other = word;
}

SEC("xdp")
int reflect(struct xdp_md *ctx) {
  void *end = (void *)(long)ctx->data_end;
  struct ethhdr *ethernet = (void *)(long)ctx->data;
  if ((void *)(ethernet + 1) > end)
    return XDP_PASS;
  __be16 *ports;
  if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
    struct iphdr *ip = (void *)(ethernet + 1);
    ports = (void *)(ip + 1);
    if ((void *)(ports + 2) > end || *(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_UDP || ports[1] != port)
      return XDP_PASS;
    swap(&ip->saddr, &ip->daddr);
  } else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
    struct ipv6hdr *ip = (void *)(ethernet + 1);
    ports = (void *)(ip + 1);
    if ((void *)(ports + 2) > end || ip->nexthdr != IPPROTO_UDP || ports[1] != port)
      return XDP_PASS;
    for (int n = 0; n < 4; n++)
      swap(&ip->saddr.in6_u.u6_addr32[n], &ip->daddr.in6_u.u6_addr32[n]);
  } else {
    return XDP_PASS;
  }
  __be16 from = ports[0];
  ports[0] = ports[1];
  ports[1] = from;
  __u8 hardware[ETH_ALEN];
  __builtin_memcpy(hardware, ethernet->h_dest, ETH_ALEN);
  __builtin_memcpy(ethernet->h_dest, ethernet->h_source, ETH_ALEN);
  __builtin_memcpy(ethernet->h_source, hardware, ETH_ALEN);
  __u32 zero = 0;
  __u64 *count = bpf_map_lookup_elem(&reflected, &zero);
  if (count)
    *count += 1;
  return back ? bpf_redirect(back, 0) : XDP_TX;
}

char _license[] SEC("license") = "Apache-2.0";

// The steering program: our traffic to the AF_XDP socket of the queue it came in on, everything else to the kernel.
//
// What is ours: an unfragmented IPv4 or IPv6 packet without options or extension headers to a taken (address, protocol,
// port); an ICMP error that quotes a packet from one; and, for an address that is wholly ours ("own"), everything, with
// the ARP and NDP messages about it, and listener queries where user space says so. A frame may carry one VLAN tag (802.1Q).
// Prefix lists are asked only about what is ours.
// The second program in this file also answers questions (answer.bpf.h); the third takes every frame, for who passes them on.
//
// It runs on the processor that also serves (veth) or per packet in the driver, so the usual packet costs one comparison
// (one listener) or one hash lookup (several). It must stay within what the verifier of Linux 6.1 accepts.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Mirrored in steering.rs, in this order.
enum counter {
  TAKEN,
  NO_SOCKET,
  DENIED,
  NOT_ALLOWED,
  TCP_FRAGMENT,
  PASSED_NOT_OURS,
  PASSED_NOT_IP,
  PASSED_OPTIONS,
  PASSED_FRAGMENT,
  PASSED_SHORT,
  ANSWERED_V4,
  ANSWERED_V6,
  ANSWERED_TRUNCATED,
  ANSWER_LIMITED,
  ANSWER_DROPPED,
  ANSWERED_PROVEN,
  ANSWER_LEFT,
  TCP_NOT_KERNELS,
  COUNTERS,
};

enum { ALLOW = 1, DENY = 2 };
// What a taken key is: somebody's, or a DNS service's.
enum { ANY_SERVICE = 1, DNS_SERVICE = 2 };

// An address as 16 bytes, IPv4 as ::ffff:a.b.c.d.
struct address {
  __u32 words[4];
};

struct key {
  struct address to;
  __be16 port;
  __u8 protocol;
  __u8 zero;
};

struct prefix {
  __u32 bits; // 8 for the family, then the prefix's own
  __u8 family; // 4 or 6
  __u8 address[16]; // IPv4: the first four
} __attribute__((packed));

// What user space may change while the program runs. Reading it is a load, not a lookup.
struct settings {
  struct key sole; // the one taken key; port and protocol zero when there is none or several
  __u32 own; // own addresses there are
  __u32 lists; // ALLOW, DENY: that such prefixes exist
  __u32 tcp; // taken TCP ports there are
  __u32 mac; // the interface's hardware address, first four bytes; all zero: not looked at
  __u16 mac_rest;
  __u16 service; // the sole key's
  __u32 queries; // listener queries are ours, since the kernel does not report own addresses' groups
};

volatile struct settings settings SEC(".data") = {};

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, 64);
  __type(key, __u32);
  __type(value, __u32);
} sockets SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 4096);
  __type(key, struct key);
  __type(value, __u8);
} taken SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 256);
  __type(key, struct address);
  __type(value, __u8);
} own SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(max_entries, 65536);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, struct prefix);
  __type(value, __u32);
} prefixes SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, COUNTERS);
  __type(key, __u32);
  __type(value, __u64);
} counters SEC(".maps");

#define INLINE static __attribute__((always_inline)) inline

#include "answer.bpf.h"

INLINE int verdict(__u32 what, int action) {
  __u64 *count = bpf_map_lookup_elem(&counters, &what);
  if (count)
    *count += 1;
  return action;
}

INLINE int pass(__u32 why) {
  return verdict(why, XDP_PASS);
}

// An empty slot passes; a full ring or a socket of another queue drops, which the socket's own statistics count.
INLINE int redirect(struct xdp_md *ctx) {
  return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

INLINE int redirected(int action) {
  return verdict(action == XDP_REDIRECT ? TAKEN : NO_SOCKET, action);
}

INLINE int take(struct xdp_md *ctx) {
  return redirected(redirect(ctx));
}

INLINE void map_v4(struct address *to, __be32 from) {
  to->words[0] = 0;
  to->words[1] = 0;
  to->words[2] = bpf_htonl(0xffff);
  to->words[3] = from;
}

INLINE void copy_v6(struct address *to, const void *from) {
  const __u32 *words = from;
  to->words[0] = words[0];
  to->words[1] = words[1];
  to->words[2] = words[2];
  to->words[3] = words[3];
}

// Whether a frame is for this interface or a group. One for another unicast address may be for a macvlan or VRRP interface on
// top of it, whose addresses are the machine's, too, and whose frames only the kernel can answer.
INLINE int is_for_us(const struct ethhdr *ethernet) {
  __u32 first;
  __u16 rest;
  __builtin_memcpy(&first, ethernet->h_dest, 4);
  __builtin_memcpy(&rest, ethernet->h_dest + 4, 2);
  __u32 mac = settings.mac;
  __u16 mac_rest = settings.mac_rest;
  return (first == mac && rest == mac_rest) || (ethernet->h_dest[0] & 1) || !(mac | mac_rest);
}

// Whose a packet is; 0 when it is not ours.
INLINE int is_taken(const struct key *key) {
  __u16 port = settings.sole.port;
  if (port) {
    int same = port == key->port && settings.sole.protocol == key->protocol &&
               settings.sole.to.words[3] == key->to.words[3] && settings.sole.to.words[2] == key->to.words[2] &&
               settings.sole.to.words[1] == key->to.words[1] && settings.sole.to.words[0] == key->to.words[0];
    return same ? settings.service : 0;
  }
  __u8 *service = bpf_map_lookup_elem(&taken, key);
  return service ? *service : 0;
}

INLINE int is_own(const struct address *address) {
  return settings.own && bpf_map_lookup_elem(&own, address) != 0;
}

// The counter under which the lists drop a packet of this sender, or TAKEN. `needs_allow`: an allow list must name it.
INLINE __u32 listed(int family, const void *from, int needs_allow) {
  __u32 lists = settings.lists;
  if (!lists)
    return TAKEN;
  struct prefix prefix = {.bits = 8 + (family == 4 ? 32 : 128), .family = family};
  __builtin_memcpy(prefix.address, from, family == 4 ? 4 : 16);
  __u32 *found = bpf_map_lookup_elem(&prefixes, &prefix);
  if (found)
    return *found == DENY ? DENIED : TAKEN;
  return needs_allow && (lists & ALLOW) ? NOT_ALLOWED : TAKEN;
}

INLINE int take_listed(struct xdp_md *ctx, int family, const void *from, int needs_allow) {
  __u32 why = listed(family, from, needs_allow);
  if (why != TAKEN)
    return verdict(why, XDP_DROP);
  return take(ctx);
}

// A datagram of ours whose network header is at `ip_at`; `answers`: those to a DNS service may be answered here.
INLINE int take_datagram(struct xdp_md *ctx, int family, const void *from, int service, __u32 ip_at, int answers) {
  __u32 why = listed(family, from, 1);
  if (why != TAKEN)
    return verdict(why, XDP_DROP);
  if (answers && service == DNS_SERVICE) {
    int action = answer(ctx, ip_at, family == 6);
    if (action)
      return action == XDP_DROP ? verdict(ANSWER_DROPPED, action) : action;
  }
  return take(ctx);
}

// Whether the kernel has a use for a segment to a queue without a socket: it begins a connection, or is of one that began so. To any other
// the kernel would answer with a reset, which is right for nobody: connections of other threads come by this queue, too, and the one
// whose queue it is may come back. (A connection of which the kernel keeps nothing but its SYN cookie is not known yet.)
INLINE int is_kernels(struct xdp_md *ctx, const void *tcp, const void *end, struct bpf_sock_tuple *tuple, __u32 bytes) {
  enum { FLAGS_AT = 13, SYN = 2, ACK = 16 };
  const __u8 *flags = tcp + FLAGS_AT;
  if ((const void *)(flags + 1) > end)
    return 0;
  if ((*flags & (SYN | ACK)) == SYN)
    return 1;
  struct bpf_sock *found = bpf_skc_lookup_tcp(ctx, tuple, bytes, BPF_F_CURRENT_NETNS, 0);
  if (!found)
    return 0;
  int knows = found->state != BPF_TCP_LISTEN;
  bpf_sk_release(found);
  return knows;
}

// A segment to a taken port of an address that is the kernel's, too.
INLINE int take_segment(struct xdp_md *ctx, int family, const void *from, const __be16 *ports, const void *end) {
  __u32 why = listed(family, from, 1);
  if (why != TAKEN)
    return verdict(why, XDP_DROP);
  int action = redirect(ctx);
  if (action == XDP_PASS) {
    struct bpf_sock_tuple tuple = {};
    __u32 bytes = family == 4 ? sizeof tuple.ipv4 : sizeof tuple.ipv6;
    // both addresses, then both ports, as they stand in the packet
    __builtin_memcpy(&tuple, from, bytes - 4);
    __builtin_memcpy((void *)&tuple + bytes - 4, ports, 4);
    if (!is_kernels(ctx, ports, end, &tuple, bytes))
      return verdict(TCP_NOT_KERNELS, XDP_DROP);
  }
  return redirected(action);
}

// Requests and answers about an own address, and claims to it by others (RFC 5227 2.4).
INLINE int arp(struct xdp_md *ctx, void *at, void *end) {
  struct {
    __be16 hardware, protocol;
    __u8 hardware_bytes, protocol_bytes;
    __be16 operation;
    __u8 sender_mac[6], sender[4], target_mac[6], target[4];
  } __attribute__((packed)) *arp = at;
  struct address address;
  if ((void *)(arp + 1) > end)
    return pass(PASSED_SHORT);
  __u32 word;
  __builtin_memcpy(&word, arp->target, 4);
  map_v4(&address, word);
  if (is_own(&address))
    return take(ctx);
  __builtin_memcpy(&word, arp->sender, 4);
  map_v4(&address, word);
  return is_own(&address) ? take(ctx) : pass(PASSED_NOT_IP);
}

// What an ICMP error quotes is a packet that we sent: its source is ours.
INLINE int quotes_ours_v4(void *at, void *end) {
  struct iphdr *quoted = at;
  __be16 *port = (void *)(quoted + 1);
  if ((void *)(port + 2) > end || *(__u8 *)quoted != 0x45 || (quoted->frag_off & bpf_htons(0x1fff)))
    return 0;
  struct key key = {.port = *port, .protocol = quoted->protocol};
  if (key.protocol != IPPROTO_UDP && key.protocol != IPPROTO_TCP)
    return 0;
  map_v4(&key.to, quoted->saddr);
  return is_taken(&key);
}

INLINE int quotes_ours_v6(void *at, void *end) {
  struct ipv6hdr *quoted = at;
  __be16 *port = (void *)(quoted + 1);
  if ((void *)(port + 2) > end || (*(__u8 *)quoted >> 4) != 6)
    return 0;
  struct key key = {.port = *port, .protocol = quoted->nexthdr};
  if (key.protocol != IPPROTO_UDP && key.protocol != IPPROTO_TCP)
    return 0;
  copy_v6(&key.to, &quoted->saddr);
  return is_taken(&key);
}

INLINE int ipv4(struct xdp_md *ctx, void *at, void *end, __u32 ip_at, int answers) {
  struct iphdr *ip = at;
  __be16 *ports = (void *)(ip + 1);
  if ((void *)(ports + 2) > end)
    return pass(PASSED_SHORT);
  struct key key = {.port = ports[1], .protocol = ip->protocol};
  map_v4(&key.to, ip->daddr);
  if (is_own(&key.to))
    return take_listed(ctx, 4, &ip->saddr, 1);
  if (*(__u8 *)ip != 0x45)
    return pass(PASSED_OPTIONS);
  __u16 fragment = ip->frag_off & bpf_htons(0x3fff); // MF and the offset
  if (key.protocol == IPPROTO_UDP) {
    if (fragment)
      return pass(PASSED_FRAGMENT);
    int service = is_taken(&key);
    return service ? take_datagram(ctx, 4, &ip->saddr, service, ip_at, answers) : pass(PASSED_NOT_OURS);
  }
  if (key.protocol == IPPROTO_TCP && settings.tcp) {
    // the first fragment shows the port; without it the kernel never completes the rest
    if (fragment & bpf_htons(0x1fff))
      return pass(PASSED_FRAGMENT);
    if (!is_taken(&key))
      return pass(PASSED_NOT_OURS);
    return fragment ? verdict(TCP_FRAGMENT, XDP_DROP) : take_segment(ctx, 4, &ip->saddr, ports, end);
  }
  if (key.protocol == IPPROTO_ICMP && !fragment) {
    __u8 type = *(__u8 *)ports;
    // destination unreachable, time exceeded, parameter problem (RFC 792)
    if ((type == 3 || type == 11 || type == 12) && quotes_ours_v4((void *)ports + 8, end))
      return take_listed(ctx, 4, &ip->saddr, 0);
  }
  return pass(PASSED_NOT_OURS);
}

// A solicitation for, or an advertisement of, an own address that came by multicast. The solicited-node group may be
// shared with an address of the kernel's, so the target decides (RFC 4861 4.3, 4.4).
INLINE int ndp_is_ours(void *at, void *end) {
  struct {
    __u8 type, code;
    __be16 checksum;
    __u32 flags;
    __u8 target[16];
  } *ndp = at;
  if ((void *)(ndp + 1) > end || (ndp->type != 135 && ndp->type != 136))
    return 0;
  struct address target;
  copy_v6(&target, ndp->target);
  return is_own(&target);
}

// A listener query, which always has a router alert in front (RFC 3810 5).
INLINE int is_listener_query(const struct ipv6hdr *ip, void *end) {
  enum { LISTENER_QUERY = 130 };
  struct {
    __u8 next, more; // the header's 8 octets, more of them
    __u8 options[6];
    __u8 type;
  } *hop_by_hop = (void *)(ip + 1);
  return ip->nexthdr == IPPROTO_HOPOPTS && *(const __u8 *)&ip->daddr == 0xff && (void *)(hop_by_hop + 1) <= end &&
         hop_by_hop->next == IPPROTO_ICMPV6 && !hop_by_hop->more && hop_by_hop->type == LISTENER_QUERY;
}

INLINE int ipv6(struct xdp_md *ctx, void *at, void *end, __u32 ip_at, int answers) {
  struct ipv6hdr *ip = at;
  __be16 *ports = (void *)(ip + 1);
  if ((void *)(ports + 2) > end)
    return pass(PASSED_SHORT);
  struct key key = {.port = ports[1], .protocol = ip->nexthdr};
  copy_v6(&key.to, &ip->daddr);
  __u8 type = *(__u8 *)ports;
  if (settings.own) {
    if (key.protocol == IPPROTO_ICMPV6 && type >= 133 && type <= 137) {
      // neighbour discovery is never listed: without it an allowed sender could not reach us
      if (is_own(&key.to) || (*(__u8 *)&ip->daddr == 0xff && ndp_is_ours(ports, end)))
        return take(ctx);
    } else if (is_own(&key.to)) {
      return take_listed(ctx, 6, &ip->saddr, 1);
    } else if (settings.queries && ip_at == sizeof(struct ethhdr) && is_listener_query(ip, end)) {
      // of a VLAN it is about another link, whose kernel answers it
      return take(ctx);
    }
  }
  switch (key.protocol) {
  case IPPROTO_TCP:
    if (!settings.tcp)
      return pass(PASSED_NOT_OURS);
    return is_taken(&key) ? take_segment(ctx, 6, &ip->saddr, ports, end) : pass(PASSED_NOT_OURS);
  case IPPROTO_UDP: {
    int service = is_taken(&key);
    return service ? take_datagram(ctx, 6, &ip->saddr, service, ip_at, answers) : pass(PASSED_NOT_OURS);
  }
  case IPPROTO_ICMPV6:
    // the four errors of RFC 4443
    if (type >= 1 && type <= 4 && quotes_ours_v6((void *)ports + 8, end))
      return take_listed(ctx, 6, &ip->saddr, 0);
    return pass(PASSED_NOT_OURS);
  case IPPROTO_FRAGMENT: {
    struct {
      __u8 next, zero;
      __be16 offset;
      __u32 id;
      __be16 from, to;
    } *fragment = (void *)ports;
    if (settings.tcp && (void *)(fragment + 1) <= end && fragment->next == IPPROTO_TCP &&
        !(fragment->offset & bpf_htons(0xfff8))) {
      key.protocol = IPPROTO_TCP;
      key.port = fragment->to;
      if (is_taken(&key))
        return verdict(TCP_FRAGMENT, XDP_DROP);
    }
    return pass(PASSED_FRAGMENT);
  }
  default:
    return pass(PASSED_OPTIONS);
  }
}

INLINE int steer_frame(struct xdp_md *ctx, int answers) {
  void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
  struct ethhdr *ethernet = at;
  if ((void *)(ethernet + 1) > end)
    return pass(PASSED_SHORT);
  if (!is_for_us(ethernet))
    return pass(PASSED_NOT_OURS);
  __be16 protocol = ethernet->h_proto;
  __u32 ip_at = sizeof *ethernet;
  at = ethernet + 1;
  // the stack knows a customer's tag; a provider's (802.1ad) is the kernel's
  if (protocol == bpf_htons(ETH_P_8021Q)) {
    __be16 *tag = at;
    if ((void *)(tag + 2) > end)
      return pass(PASSED_SHORT);
    protocol = tag[1];
    ip_at += 4;
    at = tag + 2;
  }
  if (protocol == bpf_htons(ETH_P_IP))
    return ipv4(ctx, at, end, ip_at, answers);
  if (protocol == bpf_htons(ETH_P_IPV6))
    return ipv6(ctx, at, end, ip_at, answers);
  if (protocol == bpf_htons(ETH_P_ARP) && settings.own)
    return arp(ctx, at, end);
  return pass(PASSED_NOT_IP);
}

SEC("xdp")
int steer(struct xdp_md *ctx) {
  return steer_frame(ctx, 0);
}

SEC("xdp")
int answer_and_steer(struct xdp_md *ctx) {
  return steer_frame(ctx, 1);
}

SEC("xdp")
int take_everything(struct xdp_md *ctx) {
  return take(ctx);
}

char _license[] SEC("license") = "Apache-2.0";

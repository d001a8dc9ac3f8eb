// Answers from the driver: a DNS question whose answer user space has put into the maps below leaves again from here.
//
// Answered is: a datagram to an address that a DNS service has, over IPv4 without options or IPv6 without extension
// headers, with at most one VLAN tag, that holds one question of class IN and either no OPT record or one of version 0
// without DO and without options but a cookie (cookie.bpf.h). Everything else is left as it came, and goes on to the AF_XDP
// socket: so does what is malformed, what has a wrong checksum or an impossible sender, since the stack there counts and
// judges it.
//
// An answer is the question's header and name, in the letters that came, and then what no letter of the question changes:
// the record sets and our OPT record. How long the name is follows from the datagram's length; that it is a name and not
// compressed follows from its being, in lower case, octet for octet the one that is stored. A length octet is at most 63
// and so no letter, which is why the whole can be folded as text. Which OPT record there is shows at the datagram's end; one
// that is taken for another leaves what is no stored name.
//
// An answer is sent back (XDP_TX), but over veth, which does not wake a peer for such frames that has receive offload and no
// program: there it is a redirect to the interface itself.
//
// What the verifier is asked for: bpf_xdp_adjust_head (Linux 4.10), bounded loops (5.3), bpf_xdp_adjust_tail that grows (5.8),
// bpf_xdp_load_bytes and bpf_xdp_store_bytes (5.18). The length of a message or name is read anew after each loop that ends with
// it: otherwise it would keep the bounds which each end of the loop gave it, and what follows be looked at once for each.
//
// Names may come and go while the program answers: user space waits for who runs between one step and the next, so that
// nobody finds the entry for all other types who has missed that of a type, and no entry is used again that is still read.

#include "cookie.bpf.h"

// Flags of an entry. NOT_ANY, NOT_DS: though it is for all types that the name does not have, it is not for these. LONG: it
// is only the place of one among the long ones. BELOW: it is also for names below that have no entry nearer (below.bpf.h); ABSENT:
// those do not exist; WHOLE: only if all names have entries; LEFT: they are left to the socket.
enum { NOT_ANY = 1, NOT_DS = 2, LONG = 4, BELOW = 8, ABSENT = 16, WHOLE = 32, LEFT = 64 };

enum {
  HEADER_BYTES = 12,
  NAME_BYTES = 255,
  FIXED_BYTES = 4, // type and class
  OPT_BYTES = 11,
  PLAIN_BYTES = 512,
  MESSAGE_BYTES = HEADER_BYTES + NAME_BYTES + FIXED_BYTES + COOKIE_OPT_BYTES,
  MESSAGE_ROOM = 512, // a power of two that it fits in
  BEFORE_BYTES = 14 + 4 + 40 + 8, // of the largest headers in front of a message
  BEFORE_ROOM = 128, // a power of two that they fit in
  SHORT_NAME_WORDS = 6,
  SHORT_BODY_BYTES = 88,
  LONG_NAME_WORDS = 32,
  LONG_BODY_BYTES = 1216,
  LONG_CUTS = 4,
  NAME_WORD = 2,
  TYPES = 260,
  TYPE_DS = 43,
  TYPE_IXFR = 251,
  TYPE_AXFR = 252,
  TYPE_ANY = 255,
  NXDOMAIN = 3,
  HOPS = 64,
  ACCOUNTS_A_LINE = 4,
  HEATS_A_PAGE = 1024,
  ANSWERS_A_SAMPLE = 16,
  SUFFIXES = 8, // looked at for a name without an entry
  MOVES = 32,
  SECOND_NS = 1000000000,
};

// User space changes `generation`, `sampled` and `cookies` alone while the program runs.
struct answering {
  __u64 seed;
  __u64 cost_ns; // of an answer, to an account; 0: rates are not limited
  __u32 generation; // of the entries that count; 0: none
  __u32 lines; // of accounts for each queue, a power of two
  __u16 edns_bytes; // the largest answer, which is what we announce
  __u16 most_v4, most_v6; // octets of a message that a frame carries
  __u8 partial; // an answer may go out for a question whose checksum was left to a device
  __u8 sampled; // it is counted how often names are asked for
  __u8 cookies; // what becomes of questions with one
  __u8 zero[3];
  __u32 back; // the interface's index when answers go out by a redirect to it; 0: they are sent back
};

struct answer_key {
  __u64 name; // its hash
  __u32 generation;
  __u16 type; // as sent; 0: every type that has no entry
  __u16 zero;
};

// An answer of some size: what of the body is sent, and what then stands in the header.
struct cut {
  __u16 bytes;
  __u16 sum; // the folded sum of those octets, from an even place
  __be16 answer, authority, additional;
  __u8 first, second; // the flags' octets without RD
};

struct answer_head {
  __u8 name_bytes;
  __u8 cuts; // 0: left to the socket
  __u8 flags;
  __u8 nxdomain; // or NOERROR
  __u32 zone; // for the counters
};

struct short_answer {
  struct answer_head head;
  struct cut cuts[1];
  __u32 seat; // of its name among the heats
  __u64 name[SHORT_NAME_WORDS];
  __u8 body[SHORT_BODY_BYTES];
};

struct long_answer {
  struct answer_head head;
  struct cut cuts[LONG_CUTS];
  __u64 name[LONG_NAME_WORDS];
  __u8 body[LONG_BODY_BYTES];
};

// Where things are in the frame, and what is around the body of an answer to it.
struct place {
  __u32 limit; // of the answer's octets
  __u32 sum; // of the name, type and class
  __u64 network; // who asks: /24 or /56
  __u16 edns_bytes; // what we announce; 0: no OPT record
  __u8 opt_bytes; // of the answer's OPT record
  __u8 proven; // a cookie shows that the address is the sender's
  __u8 ip; // where the network header is
  __u8 message;
  __u8 v6;
  __u8 name_bytes;
  __u8 below_bytes; // by which the name is longer than that of the entry that answers
  __u8 absent; // it does not exist
};

// A question outside of the packet, so that an index into it needs no comparison with the packet's end.
struct question {
  // four octets of zero, the message, so that its name begins with a word, and zero behind it
  __u64 words[(4 + MESSAGE_ROOM + 8) / 8 + 1];
  __u64 lower[2 * LONG_NAME_WORDS]; // the name, or the suffix of it that is looked for; behind it anything
  struct cookie cookie;
  __u8 before[BEFORE_ROOM]; // what stands in front of the message, while it is moved
  struct place place; // for forget()
  __u64 draw; // the last random number of this processor
  __u32 skip; // answers before the next sample
  __u32 moved; // what the sum of an answer's pointers has grown by
  __u16 bytes; // of the message
  __u8 name_bytes;
  __u8 held_bytes; // of what is in `lower`
  __u8 suffixes;
  __u8 suffix_at[SUFFIXES];
};

// What a network may still be sent about a name: when that would be even if nothing more came (the generic cell rate
// algorithm).
struct account {
  __u32 print; // 0: nobody's
  __u32 zero;
  __u64 even_ns;
};

struct accounts {
  struct account of[ACCOUNTS_A_LINE];
};

// How often names were asked for, by seat: samples, which wrap.
struct heats {
  __u32 of[HEATS_A_PAGE];
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct answering);
} answering SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct question);
} questions SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, struct answer_key);
  __type(value, struct short_answer);
} short_answers SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 1);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, struct answer_key);
  __type(value, struct long_answer);
} long_answers SEC(".maps");

// A table for each queue, since a queue may move to another processor and keeps its share of the rate there. In the driver one
// processor at a time works on a queue; in the kernel's receive path there may be several.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct accounts);
} limits SEC(".maps");

// All processors write to one place, and of two that do so at once one may be lost: what they write is a sample anyway, and a place
// for each of them would be megabytes for each of them.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct heats);
} heats SEC(".maps");

// Questions by type, the last place for all the others.
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, TYPES);
  __type(key, __u32);
  __type(value, __u64);
} asked SEC(".maps");

// Two places a zone: NOERROR and NXDOMAIN.
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 2);
  __type(key, __u32);
  __type(value, __u64);
} zone_answers SEC(".maps");

// Updating its slot waits until no program that began before still runs: that is what user space wants of it.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
  __uint(max_entries, 1);
  __type(key, __u32);
  __array(values, struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
  });
} barrier SEC(".maps");

#define OPAQUE(value) asm volatile("" : "+r"(value))

INLINE void add_one(void *map, __u32 at) {
  __u64 *count = bpf_map_lookup_elem(map, &at);
  if (count)
    *count += 1;
}

INLINE __u32 fold(__u64 sum) {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  return (sum & 0xffff) + (sum >> 16);
}

// A folded sum of octets that begin at an odd place.
INLINE __u32 placed(__u32 sum, __u32 at) {
  return at & 1 ? (sum & 0xff) << 8 | sum >> 8 : sum;
}

// ASCII letters of eight octets in lower case, the other octets as they are.
INLINE __u64 lower(__u64 word) {
  const __u64 ones = 0x0101010101010101;
  __u64 low = word & 0x7f * ones;
  __u64 from_a = low + (0x80 - 'A') * ones, past_z = low + (0x7f - 'Z') * ones;
  return word | ((from_a ^ past_z) & ~word & 0x80 * ones) >> 2;
}

// The first `bytes` octets (1 to 7) of a word.
INLINE __u64 front(__u64 word, __u32 bytes) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return word & (1ull << 8 * bytes) - 1;
#else
  return word & ~(~0ull >> 8 * bytes);
#endif
}

// The hash of a name: its length and then its words in lower case. Mirrored in answers/form.rs.
INLINE __u64 begin_hash(__u64 seed, __u32 bytes) {
  return seed ^ bytes;
}

INLINE __u64 add_to_hash(__u64 hash, __u64 word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

INLINE __u64 end_hash(__u64 hash) {
  hash *= 0xa0761d6478bd642f;
  return hash ^ hash >> 29;
}

// Folds the name to lower case; gives its hash.
INLINE __u64 fold_name(struct question *question, __u64 seed) {
  __u32 bytes = *(volatile __u8 *)&question->name_bytes;
  __u64 hash = begin_hash(seed, bytes);
  question->held_bytes = bytes;
  for (__u32 n = 0; n < LONG_NAME_WORDS; n++) {
    if (8 * n >= bytes)
      break;
    __u64 word = lower(question->words[NAME_WORD + n]);
    if (8 * n + 8 > bytes)
      word = front(word, bytes - 8 * n);
    question->lower[n] = word;
    hash = add_to_hash(hash, word);
  }
  return end_hash(hash);
}

INLINE int same_name(const struct question *question, const struct answer_head *head, const __u64 *name, __u32 words) {
  __u32 bytes = *(volatile __u8 *)&question->held_bytes;
  if (head->name_bytes != bytes || 8 * words < bytes)
    return 0;
  for (__u32 n = 0; n < words; n++) {
    if (8 * n >= bytes)
      break;
    if (name[n] != question->lower[n])
      return 0;
  }
  return 1;
}

#include "below.bpf.h"

// The largest answer that may be sent, in `chosen`.
INLINE int choose(const struct place *place, const struct answer_head *head, const struct cut *cuts, __u32 count,
                  struct cut *chosen) {
  __u32 around = HEADER_BYTES + place->name_bytes + FIXED_BYTES + place->opt_bytes;
  int found = 0;
  // without a value the compiler may keep any register's for one, and the verifier refuse to have that put away
  *chosen = (struct cut){};
  for (__u32 n = 0; n < count; n++)
    if (n < head->cuts && around + cuts[n].bytes <= place->limit) {
      *chosen = cuts[n];
      found = 1;
    }
  if (place->absent)
    chosen->second = NXDOMAIN;
  return found;
}

// The pseudo-header's sum, which turning the packet round does not change, without the length.
INLINE __u64 sum_ends(const void *ip, int v6) {
  const __u32 *words = ip + (v6 ? 8 : 12);
  __u64 sum = bpf_htons(IPPROTO_UDP) + (__u64)words[0] + words[1];
  if (v6)
    sum += (__u64)words[2] + words[3] + words[4] + words[5] + words[6] + words[7];
  return sum;
}

INLINE __u32 sum_opt(__u32 edns_bytes) {
  return fold((__u64)bpf_htons(41 << 8 | edns_bytes >> 8) + bpf_htons((edns_bytes & 0xff) << 8));
}

// Whether a sender can be answered at all: what the stack would drop is left to it, to be counted.
INLINE int is_sound(const struct ethhdr *ethernet, const void *ip, int v6) {
  if ((ethernet->h_dest[0] | ethernet->h_source[0]) & 1)
    return 0;
  const __u32 *words = ip;
  if (!v6) {
    __u8 first = ((const __u8 *)ip)[12];
    return first != 0 && first != 127 && first < 224 && words[3] != words[4];
  }
  const __u32 *from = words + 2, *to = words + 6;
  if (from[0] == to[0] && from[1] == to[1] && from[2] == to[2] && from[3] == to[3])
    return 0;
  // groups; unspecified, loopback and mapped IPv4, which are below ::1:0:0:0
  return *(const __u8 *)from != 0xff && (from[0] | from[1]);
}

// Writes the headers of an answer of `bytes` octets; `sum` is that of the message but for its header's fields.
INLINE int write_headers(struct xdp_md *ctx, const struct place *place, const struct cut *cut, __u32 bytes, __u64 sum) {
  void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
  struct ethhdr *ethernet = data;
  __u32 *words = data + place->ip;
  __u16 *udp = (void *)words + (place->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
  __u16 *header = udp + 4;
  if ((void *)(ethernet + 1) > end || (void *)(header + HEADER_BYTES / 2) > end)
    return XDP_DROP;
  __u16 turned[3];
  __builtin_memcpy(turned, ethernet->h_dest, 6);
  __builtin_memcpy(ethernet->h_dest, ethernet->h_source, 6);
  __builtin_memcpy(ethernet->h_source, turned, 6);
  __u32 udp_bytes = 8 + bytes;
  sum += sum_ends(words, place->v6);
  if (place->v6) {
    words[0] = bpf_htonl(0x60000000);
    words[1] = bpf_htonl(udp_bytes << 16 | IPPROTO_UDP << 8 | HOPS);
    for (int n = 2; n < 6; n++) {
      __u32 word = words[n];
      words[n] = words[n + 4];
      words[n + 4] = word;
    }
  } else {
    __u32 from = words[3];
    words[0] = bpf_htonl(0x45000000 | (udp_bytes + sizeof(struct iphdr)));
    words[1] = bpf_htonl(0x4000); // an atomic datagram (RFC 6864)
    words[2] = bpf_htonl(HOPS << 24 | IPPROTO_UDP << 16);
    words[3] = words[4];
    words[4] = from;
    __u32 check = ~fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]);
    ((__u16 *)words)[5] = check;
  }
  __u16 port = udp[0];
  udp[0] = udp[1];
  udp[1] = port;
  udp[2] = bpf_htons(udp_bytes);
  __u8 *flags = (__u8 *)(header + 1);
  flags[0] = cut->first | (flags[0] & 1); // RD as asked
  flags[1] = cut->second;
  header[2] = bpf_htons(1);
  header[3] = cut->answer;
  header[4] = cut->authority;
  header[5] = place->edns_bytes ? bpf_htons(bpf_ntohs(cut->additional) + 1) : cut->additional;
  // the length stands in the pseudo-header, too
  sum += (__u64)udp[0] + udp[1] + udp[2] + udp[2];
  for (int n = 0; n < HEADER_BYTES / 2; n++)
    sum += header[n];
  __u32 check = ~fold(sum) & 0xffff;
  udp[3] = check ? check : 0xffff; // zero would say that there is none (RFC 768)
  return XDP_TX;
}

// Makes the frame longer or shorter at its end, or, where the driver has left no room there, longer in front, with everything up to
// the question's end moved there. 0: the frame is as it was; negative: it is not, and cannot be used.
INLINE int make_room(struct xdp_md *ctx, const struct place *place, struct question *question, __u32 frame_bytes) {
  long had_bytes = (void *)(long)ctx->data_end - (void *)(long)ctx->data;
  OPAQUE(had_bytes);
  int more = (int)frame_bytes - (int)had_bytes;
  if (!bpf_xdp_adjust_tail(ctx, more))
    return 1;
  if (more <= 0 || bpf_xdp_adjust_head(ctx, -more))
    return 0;
  __u32 message = HEADER_BYTES + *(volatile __u8 *)&question->name_bytes + FIXED_BYTES;
  __u32 before = place->message;
  OPAQUE(before);
  before = ((before - 1) & (BEFORE_ROOM - 1)) + 1;
  if (bpf_xdp_load_bytes(ctx, more, question->before, before) ||
      bpf_xdp_store_bytes(ctx, 0, question->before, before) ||
      bpf_xdp_store_bytes(ctx, place->message, (__u8 *)question->words + 4, message))
    return -1;
  return 1;
}

// Turns the question round with one of the cuts of a body of at most `most` octets; 0 when the frame is as it was.
INLINE int reply(struct xdp_md *ctx, const struct place *place, struct question *question, const struct cut *cut,
                 const void *body, __u32 most) {
  __u32 opt_bytes = place->opt_bytes;
  __u32 body_at = place->message + HEADER_BYTES + place->name_bytes + FIXED_BYTES;
  __u32 frame_bytes = body_at + cut->bytes + opt_bytes;
  int room = make_room(ctx, place, question, frame_bytes);
  if (room <= 0)
    return room ? XDP_DROP : 0;
  __u64 sum = place->sum + placed(cut->sum, place->name_bytes);
  // 1 to `most`, in a way that the verifier of 6.1 follows, too
  __u32 below = cut->bytes - 1;
  OPAQUE(below);
  if (below < most && bpf_xdp_store_bytes(ctx, body_at, (void *)body, below + 1))
    return XDP_DROP;
  if (place->below_bytes) {
    if (move_pointers(ctx, place, question, cut, body, most))
      return XDP_DROP;
    sum += *(volatile __u32 *)&question->moved;
  }
  if (opt_bytes == COOKIE_OPT_BYTES) {
    sum += placed(fold(sum_record(&question->cookie)), place->name_bytes + cut->bytes + 1);
    if (bpf_xdp_store_bytes(ctx, body_at + cut->bytes, (__u8 *)question->cookie.record + 1, COOKIE_OPT_BYTES))
      return XDP_DROP;
  } else if (opt_bytes) {
    __u8 opt[OPT_BYTES] = {0, 0, 41, place->edns_bytes >> 8, place->edns_bytes};
    sum += placed(sum_opt(place->edns_bytes), place->name_bytes + cut->bytes);
    if (bpf_xdp_store_bytes(ctx, body_at + cut->bytes, opt, OPT_BYTES))
      return XDP_DROP;
  }
  return write_headers(ctx, place, cut, frame_bytes - place->message, sum);
}

// Whether this is an OPT record at the root, of version 0, without flags and options.
INLINE int is_plain_opt(const __u8 *opt) {
  return !(opt[0] | opt[1] | (opt[2] ^ 41) | opt[5] | opt[6] | opt[7] | opt[8] | opt[9] | opt[10]);
}

// Leaves all in its place, and the verifier without what it knows of it: which path led to it and how often a loop ran. What
// follows is then looked at once, and not for each.
INLINE void forget(struct place *place, struct question *question) {
  __u8 v6 = place->v6;
  question->place = *place;
  asm volatile("" ::: "memory");
  *place = question->place;
  place->v6 = v6;
}

// Reads the message's head and its end, and says so in `place`; gives the question's type, or -1 when it is not one that is
// answered here.
INLINE int read_message(struct xdp_md *ctx, const struct answering *how, struct place *place, struct question *question,
                        __u64 sum) {
  const __u8 *message = (const __u8 *)question->words + 4;
  __u32 bytes = *(volatile __u16 *)&question->bytes;
  if (bytes < HEADER_BYTES + 1 + FIXED_BYTES || bytes > MESSAGE_BYTES)
    return -1;
  const __u16 *header = (const __u16 *)message;
  // a question with opcode QUERY; the other flags mean nothing
  if (message[2] & 0xf8 || header[2] != bpf_htons(1) || header[3] | header[4] || header[5] & ~bpf_htons(1))
    return -1;
  __u32 opt_bytes = 0, offered_bytes = 0, opt_sum = 0, answer_opt_bytes = 0;
  if (header[5]) {
    const __u8 *opt = message + bytes - OPT_BYTES;
    answer_opt_bytes = opt_bytes = OPT_BYTES;
    if (is_plain_opt(opt)) {
      offered_bytes = opt[3] << 8 | opt[4];
      opt_sum = sum_opt(offered_bytes);
    } else {
      // once, since it may change
      __u8 cookies = *(volatile __u8 *)&how->cookies;
      if (cookies == COOKIES_LEFT || !read_cookie(ctx, &question->cookie, place->message + bytes))
        return -1;
      opt_bytes = question->cookie.opt_bytes;
      offered_bytes = question->cookie.edns_bytes;
      // from an even place
      opt_sum = placed(fold(question->cookie.sum), 1);
      if (cookies == COOKIES_MADE)
        answer_opt_bytes = COOKIE_OPT_BYTES;
    }
    place->edns_bytes = how->edns_bytes;
  }
  __u32 name_bytes = bytes - (HEADER_BYTES + FIXED_BYTES + opt_bytes);
  OPAQUE(name_bytes);
  if (name_bytes < 1 || name_bytes > NAME_BYTES)
    return -1;
  OPAQUE(name_bytes);
  name_bytes &= NAME_BYTES; // for the verifier of 6.1
  place->opt_bytes = answer_opt_bytes;
  place->name_bytes = question->name_bytes = name_bytes;
  for (int n = 0; n < HEADER_BYTES / 2; n++)
    sum += header[n] ^ 0xffff;
  if (opt_bytes)
    sum += placed(opt_sum, name_bytes) ^ 0xffff;
  place->sum = fold(sum);
  __u32 limit = PLAIN_BYTES, most = place->v6 ? how->most_v6 : how->most_v4;
  if (offered_bytes > limit)
    limit = offered_bytes < how->edns_bytes ? offered_bytes : how->edns_bytes;
  place->limit = limit < most ? limit : most;
  const __u8 *fixed = message + HEADER_BYTES + name_bytes;
  __u32 type = fixed[0] << 8 | fixed[1];
  // class IN, no transfer
  if (fixed[2] || fixed[3] != 1 || type == TYPE_AXFR || type == TYPE_IXFR)
    return -1;
  return type;
}

// Reads the datagram; gives the question's type, or -1 when it is not one that is answered here.
INLINE int read_datagram(struct xdp_md *ctx, const struct answering *how, struct place *place,
                         struct question *question) {
  void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
  const __u32 *words = data + place->ip;
  int v6 = place->v6;
  const __u16 *udp = (void *)words + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
  if ((void *)(udp + 4) > end || !is_sound(data, words, v6) || !udp[0])
    return -1;
  __u32 udp_bytes = bpf_ntohs(udp[2]);
  if (v6) {
    if (*(__u8 *)words >> 4 != 6 || ((const __u16 *)words)[2] != udp[2])
      return -1;
  } else {
    if (bpf_ntohs(((const __u16 *)words)[1]) != udp_bytes + sizeof(struct iphdr) ||
        fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]) != 0xffff)
      return -1;
  }
  __u64 pseudo = sum_ends(words, v6) + udp[2];
  __u64 around = pseudo + udp[0] + udp[1] + udp[2] + udp[3];
  __u32 check = udp[3];
  __u64 high;
  __builtin_memcpy(&high, words + 2, 8);
  place->network = v6 ? bpf_be64_to_cpu(high) >> 8 | 1ull << 63 : bpf_ntohl(words[3]) >> 8;
  place->message = place->ip + 8 + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));

  __u32 bytes = udp_bytes - 8;
  OPAQUE(bytes);
  if (bytes < HEADER_BYTES + 1 + FIXED_BYTES || bytes > MESSAGE_BYTES)
    return -1;
  // made smaller than it can be, since the verifier of 6.1 forgets what a number was compared with when it lay on the stack
  OPAQUE(bytes);
  bytes = ((bytes - 1) & (MESSAGE_ROOM - 1)) + 1;
  question->bytes = bytes;
  __u8 *message = (__u8 *)question->words + 4;
  // fails when the datagram is longer than the frame
  if (bpf_xdp_load_bytes(ctx, place->message, message, bytes))
    return -1;
  for (int n = 0; n < 8; n++)
    message[bytes + n] = 0;
  __u64 sum = 0;
  for (__u32 n = 0; n < sizeof question->words / 8; n++) {
    if (8 * n >= 4 + bytes)
      break;
    __u64 word = question->words[n];
    sum += (word & 0xffffffff) + (word >> 32);
  }
  // none is an error over IPv6 (RFC 8200 8.1)
  if (!check && v6)
    return -1;
  // The pseudo-header's sum alone is one that was left to a device. In the kernel's receive path the frame still says so, and
  // what is sent would get another sum over its own.
  if (check && check == fold(pseudo)) {
    if (!how->partial)
      return -1;
  } else if (check && fold(sum + around) != 0xffff) {
    return -1;
  }
  return read_message(ctx, how, place, question, sum);
}

// Response rate limiting: whether an answer about this name may go to the network; it is then charged. What is beyond is left
// to the socket, which has a rate of its own, and the exemptions, and says who is told to come over TCP.
INLINE int is_within_rate(struct xdp_md *ctx, const struct answering *how, const struct place *place, __u64 name) {
  const __u64 k0 = 0x9e3779b97f4a7c15, k1 = 0xa0761d6478bd642f;
  if (!how->cost_ns)
    return 1;
  // names that do not exist have an account of their own
  if (place->absent)
    name = ~name;
  __u64 hash = (place->network ^ how->seed) * k0;
  hash = (hash ^ hash >> 32 ^ name) * k1;
  hash ^= hash >> 29;
  __u32 line = ctx->rx_queue_index * how->lines + ((hash >> 32) & (how->lines - 1)), print = (__u32)hash | 1;
  struct accounts *accounts = bpf_map_lookup_elem(&limits, &line);
  if (!accounts)
    return 0;
  // a newcomer takes the place of who was even first
  struct account *mine = &accounts->of[0];
  for (int n = 0; n < ACCOUNTS_A_LINE; n++) {
    struct account *account = &accounts->of[n];
    if (account->print == print) {
      mine = account;
      break;
    }
    if (account->even_ns < mine->even_ns)
      mine = account;
  }
  __u64 now = bpf_ktime_get_ns();
  __u64 even = mine->even_ns, from = even > now ? even : now;
  // a second's worth may come at once; who owes something is not forgotten for a newcomer; and of two processors that found the
  // same account one charges it
  if ((even > now && mine->print != print) || from + how->cost_ns > now + SECOND_NS ||
      __sync_val_compare_and_swap(&mine->even_ns, even, from + how->cost_ns) != even) {
    add_one(&counters, ANSWER_LIMITED);
    return 0;
  }
  mine->print = print;
  return 1;
}

// Whether an answer may go out; its cookie is then made. Who has shown that the address is his is not limited.
INLINE int is_admitted(struct xdp_md *ctx, const struct answering *how, struct place *place, struct question *question,
                       __u64 name) {
  if (place->opt_bytes == COOKIE_OPT_BYTES) {
    int says = bake(ctx, &question->cookie, place->ip, place->v6, place->edns_bytes);
    if (says == UNSURE)
      return 0;
    place->proven = says == PROVEN;
    if (place->proven)
      return 1;
  }
  return is_within_rate(ctx, how, place, name);
}

INLINE void count_answer(const struct place *place, const struct answer_head *head, const struct cut *cut, __u32 type) {
  add_one(&counters, place->v6 ? ANSWERED_V6 : ANSWERED_V4);
  if (cut->first & 2)
    add_one(&counters, ANSWERED_TRUNCATED);
  if (place->proven)
    add_one(&counters, ANSWERED_PROVEN);
  add_one(&asked, type < TYPES - 1 ? type : TYPES - 1);
  add_one(&zone_answers, 2 * head->zone + (cut->second != 0));
}

// Counts one of ANSWERS_A_SAMPLE answers on average for its name's seat. At random, since questions may come in a pattern.
INLINE void sample(const struct answering *how, struct question *question, __u32 seat) {
  if (!how->sampled)
    return;
  if (question->skip) {
    question->skip -= 1;
    return;
  }
  __u64 draw = question->draw * 0x5851f42d4c957f2d + (how->seed | 1);
  question->draw = draw;
  question->skip = (draw >> 33) % (2 * ANSWERS_A_SAMPLE - 1);
  __u32 page = seat / HEATS_A_PAGE;
  struct heats *of_page = bpf_map_lookup_elem(&heats, &page);
  if (of_page)
    of_page->of[seat % HEATS_A_PAGE] += 1;
}

// How an answer leaves.
INLINE int send_back(const struct answering *how) {
  return how->back ? bpf_redirect(how->back, 0) : XDP_TX;
}

// Answers the datagram whose network header is at `ip_at`: the verdict, or 0 when the frame is as it was and somebody else's.
INLINE int answer(struct xdp_md *ctx, __u32 ip_at, int v6) {
  __u32 zero = 0;
  struct answering *how = bpf_map_lookup_elem(&answering, &zero);
  struct question *question = bpf_map_lookup_elem(&questions, &zero);
  if (!how || !question)
    return 0;
  struct place place = {.ip = ip_at, .v6 = v6};
  struct answer_key key = {.generation = how->generation};
  if (!key.generation)
    return 0;
  int type = read_datagram(ctx, how, &place, question);
  if (type < 0)
    return 0;
  forget(&place, question);
  key.name = fold_name(question, how->seed);
  key.type = bpf_htons(type);
  const struct short_answer *found = bpf_map_lookup_elem(&short_answers, &key);
  if (!found) {
    key.type = 0;
    found = bpf_map_lookup_elem(&short_answers, &key);
    if (found) {
      if ((type == TYPE_ANY && found->head.flags & NOT_ANY) || (type == TYPE_DS && found->head.flags & NOT_DS))
        return 0;
    } else {
      found = find_above(how, question, &key);
      if (!found)
        return 0;
      place.below_bytes = place.name_bytes - question->held_bytes;
      place.absent = (found->head.flags & ABSENT) != 0;
    }
  }
  struct cut cut = {};
  int verdict;
  if (found->head.flags & LONG) {
    const struct long_answer *all = bpf_map_lookup_elem(&long_answers, &key);
    if (!all || !same_name(question, &all->head, all->name, LONG_NAME_WORDS) ||
        !choose(&place, &all->head, all->cuts, LONG_CUTS, &cut) || !is_admitted(ctx, how, &place, question, key.name))
      return 0;
    verdict = reply(ctx, &place, question, &cut, all->body, LONG_BODY_BYTES);
    if (verdict != XDP_TX)
      return verdict;
    count_answer(&place, &all->head, &cut, type);
    sample(how, question, found->seat);
    return send_back(how);
  }
  if (!same_name(question, &found->head, found->name, SHORT_NAME_WORDS) ||
      !choose(&place, &found->head, found->cuts, 1, &cut) || !is_admitted(ctx, how, &place, question, key.name))
    return 0;
  verdict = reply(ctx, &place, question, &cut, found->body, SHORT_BODY_BYTES);
  if (verdict != XDP_TX)
    return verdict;
  count_answer(&place, &found->head, &cut, type);
  sample(how, question, found->seat);
  return send_back(how);
}

// DNS cookies (RFC 7873) in the interoperable form of RFC 9018, made and judged as by crate dns: a question whose OPT record
// has the option COOKIE, with the client's part alone or with a server's of 16 octets, and nothing else.
//
// A server's cookie is four octets that say the form, four of time, and SipHash-2-4 over the client's cookie, those eight and
// the client's address. The secret is in a map that user space changes only while no program makes cookies, so nobody hashes
// with half of one.

enum {
  COOKIE_OPT_BYTES = 39, // an OPT record with both cookies
  CLIENT_OPT_BYTES = 23, // with the client's alone
  COOKIE_WORDS = 5,
  PAST_S = 3600, // how long ago a cookie may have been made
  AHEAD_S = 300, // how far ahead the clock of the server that made it may be
};

// What becomes of questions with a cookie: they are left to the socket, answered as if it were not there, or with a fresh one.
enum { COOKIES_LEFT, COOKIES_IGNORED, COOKIES_MADE };

// What a question's cookies say of its sender. UNSURE: a secret may fit that is not known here.
enum { UNPROVEN, PROVEN, UNSURE };

// What cookies are made with.
struct baking {
  __u8 secret[16];
  __u64 zero_ns; // by the machine's clock
  __u64 unix_s; // the time at that point, in seconds since 1970
  __u64 others; // cookies of other secrets are taken, too
};

struct cookie {
  // An OPT record of 39 octets from the second octet on, so that each cookie begins with a word. One of 23, which ends with
  // the client's cookie, is read to the same end: whole words before it.
  __u64 record[COOKIE_WORDS];
  __u64 hashed[COOKIE_WORDS];
  __u64 sum; // of the question's record, as if it began at an odd place
  __u16 edns_bytes; // what the question's record offers
  __u8 opt_bytes; // of the question's record
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct baking);
} cookie_secret SEC(".maps");

// Little-endian words, of which SipHash is made.
INLINE __u64 le64(__u64 word) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return word;
#else
  return __builtin_bswap64(word);
#endif
}

INLINE __u64 rotate(__u64 word, int bits) {
  return word << bits | word >> (64 - bits);
}

struct sip {
  __u64 v0, v1, v2, v3;
};

INLINE void sip_rounds(struct sip *sip, int count) {
#pragma clang loop unroll(disable)
  for (int n = 0; n < count; n++) {
    sip->v0 += sip->v1;
    sip->v2 += sip->v3;
    sip->v1 = rotate(sip->v1, 13) ^ sip->v0;
    sip->v3 = rotate(sip->v3, 16) ^ sip->v2;
    sip->v0 = rotate(sip->v0, 32) + sip->v3;
    sip->v2 += sip->v1;
    sip->v3 = rotate(sip->v3, 21) ^ sip->v0;
    sip->v1 = rotate(sip->v1, 17) ^ sip->v2;
    sip->v2 = rotate(sip->v2, 32);
  }
}

// SipHash-2-4 of words, the last of which has the length in its uppermost octet; as it is sent.
INLINE __u64 sip_hash(const struct baking *with, const __u64 *words, int count) {
  const __u64 *secret = (const __u64 *)with->secret;
  __u64 k0 = le64(secret[0]), k1 = le64(secret[1]);
  struct sip sip = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573};
#pragma clang loop unroll(disable)
  for (int n = 0; n < count; n++) {
    __u64 word = le64(words[n]);
    sip.v3 ^= word;
    sip_rounds(&sip, 2);
    sip.v0 ^= word;
  }
  sip.v2 ^= 0xff;
  sip_rounds(&sip, 4);
  return le64(sip.v0 ^ sip.v1 ^ sip.v2 ^ sip.v3);
}

INLINE __u64 sum_record(const struct cookie *cookie) {
  __u64 sum = 0;
  for (int n = 0; n < COOKIE_WORDS; n++)
    sum += (cookie->record[n] & 0xffffffff) + (cookie->record[n] >> 32);
  return sum;
}

// Whether words begin an OPT record of version 0 without flags, whose data are one option of such a head.
INLINE int is_opt(const __u64 *words, __u64 lengths) {
  return (words[0] & bpf_cpu_to_be64(0x00ffffff0000ffff)) == bpf_cpu_to_be64(41ull << 32) &&
         words[1] == bpf_cpu_to_be64(lengths);
}

// Reads the record that ends at `end` of the frame, and what it offers; 0 when it is none with a cookie alone.
INLINE int read_cookie(struct xdp_md *ctx, struct cookie *cookie, __u32 end) {
  __u64 *record = cookie->record;
  if (bpf_xdp_load_bytes(ctx, end - COOKIE_OPT_BYTES, (__u8 *)record + 1, COOKIE_OPT_BYTES))
    return 0;
  *(__u8 *)record = 0;
  __u64 fixed;
  // the option's code, 10, is between the lengths of all data and of its own
  if (is_opt(record, 28ull << 32 | 10 << 16 | 24)) {
    cookie->opt_bytes = COOKIE_OPT_BYTES;
    fixed = record[0];
    cookie->sum = sum_record(cookie);
  } else if (is_opt(record + 2, 12ull << 32 | 10 << 16 | 8)) {
    cookie->opt_bytes = CLIENT_OPT_BYTES;
    // without what is in front of it
    fixed = record[2] & bpf_cpu_to_be64(~0ull >> 8);
    record[0] = record[1] = 0;
    record[2] = fixed;
    cookie->sum = sum_record(cookie);
    record[2] = record[4];
  } else {
    return 0;
  }
  cookie->edns_bytes = bpf_be64_to_cpu(fixed) >> 16;
  return 1;
}

// Makes the record of the answer to a question that was read: what we announce, the client's cookie and a fresh one for the
// sender of the packet at `ip_at`. Gives what the question's cookies say of him.
INLINE int bake(struct xdp_md *ctx, struct cookie *cookie, __u32 ip_at, int v6, __u32 edns_bytes) {
  __u32 zero = 0;
  const struct baking *with = bpf_map_lookup_elem(&cookie_secret, &zero);
  __u64 *record = cookie->record, *hashed = cookie->hashed;
  hashed[0] = record[2];
  if (!with)
    return UNSURE;
  int count = v6 ? 5 : 3, address_bytes = v6 ? 16 : 4;
  hashed[2] = 0;
  if (bpf_xdp_load_bytes(ctx, ip_at + (v6 ? 8 : 12), &hashed[2], v6 ? 16 : 4))
    return UNSURE;
  if (v6)
    hashed[4] = 0;
  ((__u8 *)hashed)[8 * count - 1] = 16 + address_bytes;
  __u32 now = with->unix_s + (bpf_ktime_get_ns() - with->zero_ns) / 1000000000;
  int says = UNPROVEN;
  if (cookie->opt_bytes == COOKIE_OPT_BYTES) {
    hashed[1] = record[3];
    __u64 head = bpf_be64_to_cpu(record[3]);
    // serial number arithmetic (RFC 1982)
    __s32 age = now - (__u32)head;
    // version 1; the three reserved octets are hashed and not judged (RFC 9018 section 4.2). All is compared, so that time tells nothing
    if (age >= -AHEAD_S && age <= PAST_S && !((sip_hash(with, hashed, count) ^ record[4]) | ((head >> 56) ^ 1)))
      says = PROVEN;
    else if (with->others)
      return UNSURE;
  }
  record[0] = bpf_cpu_to_be64(41ull << 32 | edns_bytes << 16);
  record[1] = bpf_cpu_to_be64(28ull << 32 | 10 << 16 | 24);
  record[3] = hashed[1] = bpf_cpu_to_be64(1ull << 56 | now);
  record[4] = sip_hash(with, hashed, count);
  return says;
}

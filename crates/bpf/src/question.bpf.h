// Reading a question: it is copied out of the packet, its checksum verified, its name folded to lower case and hashed.

// Why there is no type. UNSOUND: the datagram is not to be answered, or too short or long for a question that is. UNSUITED: all its octets
// were read, and it is for the socket.
enum { UNSOUND = -1, UNSUITED = -2 };

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

// The hash of a name: its length and then its words in lower case. Mirrored in answers/form.rs. Each word is multiplied by a secret, its
// high half in its low one: else a difference of its highest bit alone would come out of every product as it went in, whatever the
// seed, and another in the next word could take it away, so that whoever writes a zone could make names with one hash.
INLINE __u64 begin_hash(const struct answering *how, __u32 bytes) {
  return how->seed ^ bytes;
}

INLINE __u64 add_to_hash(const struct answering *how, __u64 hash, __u64 word) {
  hash = (hash ^ (word ^ word >> 32) * how->secret) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

INLINE __u64 end_hash(__u64 hash) {
  hash *= 0xa0761d6478bd642f;
  return hash ^ hash >> 29;
}

// Folds the name to lower case; gives its hash.
INLINE __u64 fold_name(const struct answering *how, struct question *question) {
  __u32 bytes = *(volatile __u8 *)&question->name_bytes;
  __u64 hash = begin_hash(how, bytes);
  question->held_bytes = bytes;
  for (__u32 n = 0; n < LONG_NAME_WORDS; n++) {
    if (8 * n >= bytes)
      break;
    __u64 word = lower(question->words[NAME_WORD + n]);
    if (8 * n + 8 > bytes)
      word = front(word, bytes - 8 * n);
    question->lower[n] = word;
    hash = add_to_hash(how, hash, word);
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

// Whether the sender's hardware address is not the receiver's.
INLINE int is_other(const struct ethhdr *ethernet) {
  int same = 1;
  for (int n = 0; n < 6; n++)
    same &= ethernet->h_dest[n] == ethernet->h_source[n];
  return !same;
}

// Whether a packet can be answered at all: what the stack would drop for its ends is left to it, to be counted. Only that a sender has
// another address of ours is not looked for here.
INLINE int is_sound(const struct ethhdr *ethernet, const void *ip, int v6) {
  if ((ethernet->h_dest[0] | ethernet->h_source[0]) & 1 || !is_other(ethernet))
    return 0;
  const __u32 *words = ip;
  if (!v6) {
    __u8 first = ((const __u8 *)ip)[12];
    return first != 0 && first != 127 && first < 224 && words[3] != words[4] && ((const __u8 *)ip)[16] != 127;
  }
  const __u32 *from = words + 2, *to = words + 6;
  if (from[0] == to[0] && from[1] == to[1] && from[2] == to[2] && from[3] == to[3])
    return 0;
  // groups; unspecified, loopback and mapped IPv4, which are below ::1:0:0:0
  return *(const __u8 *)from != 0xff && (from[0] | from[1]) && (to[0] | to[1]);
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

// Reads the message's head and its end, and says so in `place`; gives the question's type, or UNSUITED.
INLINE int read_message(struct xdp_md *ctx, const struct answering *how, struct place *place, struct question *question,
                        __u64 sum) {
  const __u8 *message = (const __u8 *)question->words + 4;
  __u32 bytes = *(volatile __u16 *)&question->bytes;
  if (bytes < HEADER_BYTES + 1 + FIXED_BYTES || bytes > MESSAGE_BYTES)
    return UNSUITED;
  const __u16 *header = (const __u16 *)message;
  // a question with opcode QUERY; the other flags mean nothing
  if (message[2] & 0xf8 || header[2] != bpf_htons(1) || header[3] | header[4] || header[5] & ~bpf_htons(1))
    return UNSUITED;
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
        return UNSUITED;
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
    return UNSUITED;
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
    return UNSUITED;
  return type;
}

// Reads the datagram; gives the question's type, or UNSOUND or UNSUITED.
INLINE int read_datagram(struct xdp_md *ctx, const struct answering *how, struct place *place,
                         struct question *question) {
  void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
  const __u32 *words = data + place->ip;
  int v6 = place->v6;
  const __u16 *udp = (void *)words + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
  if ((void *)(udp + 4) > end || !is_sound(data, words, v6) || !udp[0])
    return UNSOUND;
  __u32 udp_bytes = bpf_ntohs(udp[2]);
  if (v6) {
    if (*(__u8 *)words >> 4 != 6 || ((const __u16 *)words)[2] != udp[2])
      return UNSOUND;
  } else {
    if (bpf_ntohs(((const __u16 *)words)[1]) != udp_bytes + sizeof(struct iphdr) ||
        fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]) != 0xffff)
      return UNSOUND;
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
    return UNSOUND;
  // made smaller than it can be, since the verifier of 6.1 forgets what a number was compared with when it lay on the stack
  OPAQUE(bytes);
  bytes = ((bytes - 1) & (MESSAGE_ROOM - 1)) + 1;
  question->bytes = bytes;
  __u8 *message = (__u8 *)question->words + 4;
  // fails when the datagram is longer than the frame
  if (bpf_xdp_load_bytes(ctx, place->message, message, bytes))
    return UNSOUND;
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
    return UNSOUND;
  // The pseudo-header's sum alone is one that was left to a device. In the kernel's receive path the frame still says so, and
  // what is sent would get another sum over its own.
  if (check && check == fold(pseudo)) {
    if (!how->partial)
      return UNSOUND;
  } else if (check && fold(sum + around) != 0xffff) {
    return UNSOUND;
  }
  return read_message(ctx, how, place, question, sum);
}

// Answers for names that have no entry: referrals for what is below a cut, and NXDOMAIN.
//
// What is asked for a name that does not exist is answered as for any other name below its closest encloser (RFC 1034 4.3.2,
// RFC 4592 3.3.1). Of the names above it only some say what that is: a cut, an apex, and one whose children are redirected or
// come from a wildcard. Their entries for all other types are marked BELOW, and the nearest marked one tells. For a cut and an apex
// such an entry holds the very body that is sent: the referral, and the SOA record of NODATA and NXDOMAIN alike. The others are marked
// LEFT: what is below them is the socket's.
//
// That a name has no entry says that it does not exist only while all names that exist have one: what depends on it is marked
// WHOLE. Names below a cut exist only in zones that are inside of it; a cut that has none needs no more than its own entry.
//
// The body points into the question's name and into itself (RFC 1035 4.1.4), so all of its pointers grow by what the question's
// name is longer than the entry's. Where they stand is written behind the body.
//
// To look at each label's suffix would cost a look-up each: a set of lengths tells at which there may be marked entries.

enum {
  LENGTHS_A_WORD = 64,
  LABELS = 127, // of the longest name
  LABEL_BYTES = 63,
};

// User space changes the lengths while nobody answers, and adds some while the program runs; it clears `whole` before the first name
// goes. A length that is not seen yet is that of a cut with which nothing is above that could be taken for it.
struct absence {
  __u64 lengths[NAME_BYTES / LENGTHS_A_WORD + 1]; // a bit for each length of a marked entry's name in octets
  __u64 whole; // all names that exist have entries
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct absence);
} absences SEC(".maps");

// Notes where suffixes begin whose lengths occur, the longest first; 0 when what is in `lower` is no name, or has more of them.
INLINE int mark_suffixes(struct question *question, const struct absence *absence) {
  const __u8 *name = (const __u8 *)question->lower;
  __u32 bytes = *(volatile __u8 *)&question->held_bytes, at = 0;
  question->suffixes = 0;
  for (int n = 0; n <= LABELS; n++) {
    __u32 label = name[at];
    if (!label)
      break;
    at += 1 + label;
    if (label > LABEL_BYTES || at >= bytes)
      return 0;
    __u32 left = bytes - at;
    if (!(absence->lengths[left / LENGTHS_A_WORD % 4] >> left % LENGTHS_A_WORD & 1))
      continue;
    __u32 count = *(volatile __u8 *)&question->suffixes;
    if (count >= SUFFIXES)
      return 0;
    question->suffix_at[count] = at;
    question->suffixes = count + 1;
  }
  return at + 1 == bytes;
}

// Leaves of the name in `lower` what is behind its first `by` octets; gives that name's hash.
INLINE __u64 shorten_name(struct question *question, __u64 seed, __u32 by) {
  __u32 bytes = *(volatile __u8 *)&question->held_bytes - by, bits = 8 * (by % 8);
  question->held_bytes = bytes;
  bytes = *(volatile __u8 *)&question->held_bytes;
  __u64 hash = begin_hash(seed, bytes);
  for (__u32 n = 0; n < LONG_NAME_WORDS; n++) {
    if (8 * n >= bytes)
      break;
    __u64 here = question->lower[by / 8 + n], next = question->lower[by / 8 + n + 1];
    // in two steps, since nothing is shifted by a whole word
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    __u64 word = here >> bits | next << 1 << (63 - bits);
#else
    __u64 word = here << bits | next >> 1 >> (63 - bits);
#endif
    if (8 * n + 8 > bytes)
      word = front(word, bytes - 8 * n);
    question->lower[n] = word;
    hash = add_to_hash(hash, word);
  }
  return end_hash(hash);
}

// The entry that answers for the names below the one in `lower`, which becomes that entry's; its hash goes into the key.
INLINE const struct short_answer *find_above(const struct answering *how, struct question *question,
                                             struct answer_key *key) {
  __u32 zero = 0;
  const struct absence *absence = bpf_map_lookup_elem(&absences, &zero);
  if (!absence || !mark_suffixes(question, absence))
    return 0;
  __u32 gone = 0;
  for (__u32 n = 0; n < SUFFIXES; n++) {
    if (n >= *(volatile __u8 *)&question->suffixes)
      break;
    __u32 at = *(volatile __u8 *)&question->suffix_at[n];
    key->name = shorten_name(question, how->seed, (at - gone) & 0xff);
    gone = at;
    const struct short_answer *found = bpf_map_lookup_elem(&short_answers, key);
    if (!found || !(found->head.flags & BELOW))
      continue;
    if (found->head.flags & LEFT || (found->head.flags & WHOLE && !absence->whole))
      return 0;
    return found;
  }
  return 0;
}

// Moves the pointers of the body that was put into the frame, and notes what the message's sum grows by; not 0 when the frame is
// broken.
INLINE int move_pointers(struct xdp_md *ctx, const struct place *place, struct question *question, const struct cut *cut,
                         const __u8 *body, __u32 most) {
  // from behind: how many, and where from the first on
  __u32 body_at = place->message + HEADER_BYTES + place->name_bytes + FIXED_BYTES, count = *(__u16 *)(body + most - 2);
  question->moved = 0;
  for (__u32 n = 0; n < MOVES; n++) {
    if (n >= count)
      break;
    __u32 behind = most - 4 - 2 * n;
    OPAQUE(behind);
    __u32 at = *(__u16 *)(body + behind);
    OPAQUE(at);
    if (at >= cut->bytes || at > most - 2)
      break;
    __be16 pointer = bpf_htons((body[at] << 8 | body[at + 1]) + place->below_bytes);
    if (bpf_xdp_store_bytes(ctx, body_at + at, &pointer, 2))
      return -1;
    // at an odd place it counts times 256, which is what exchanging its octets comes to
    *(volatile __u32 *)&question->moved += bpf_htons(place->below_bytes) << 8 * ((place->name_bytes + at) & 1);
  }
  return 0;
}

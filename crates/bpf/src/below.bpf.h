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

// The way through a name's labels.
struct walk {
  struct question *question;
  const struct absence *absence;
  __u32 at; // where the next label begins
  __u32 bytes; // of the name; 0: it is none
};

// Takes a label, and notes where the next begins if the length of what is left occurs; for bpf_loop, so that the verifier looks at
// it once.
static long take_label(__u32 n, void *data) {
  struct walk *walk = data;
  struct question *question = walk->question;
  __u32 at = walk->at & NAME_BYTES, label = ((const __u8 *)question->lower)[at];
  (void)n;
  if (!label)
    return 1;
  at += 1 + label;
  walk->at = at;
  if (label > LABEL_BYTES || at >= walk->bytes) {
    walk->bytes = 0;
    return 1;
  }
  __u32 left = walk->bytes - at;
  if (!(walk->absence->lengths[left / LENGTHS_A_WORD % 4] >> left % LENGTHS_A_WORD & 1))
    return 0;
  __u32 count = question->suffixes;
  if (count >= SUFFIXES) {
    walk->bytes = 0;
    return 1;
  }
  question->suffix_at[count % SUFFIXES] = at;
  question->suffixes = count + 1;
  return 0;
}

// Notes where suffixes begin whose lengths occur, the longest first; 0 when what is in `lower` is no name, or has more of them.
INLINE int mark_suffixes(struct question *question, const struct absence *absence) {
  struct walk walk = {question, absence, 0, question->held_bytes};
  question->suffixes = 0;
  bpf_loop(LABELS + 1, take_label, &walk, 0);
  return walk.at + 1 == walk.bytes;
}

// Leaves of the name in `lower` what is behind its first `by` octets; gives that name's hash.
INLINE __u64 shorten_name(const struct answering *how, struct question *question, __u32 by) {
  __u32 bytes = *(volatile __u8 *)&question->held_bytes - by, bits = 8 * (by % 8);
  question->held_bytes = bytes;
  bytes = *(volatile __u8 *)&question->held_bytes;
  __u64 hash = begin_hash(how, bytes);
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
    hash = add_to_hash(how, hash, word);
  }
  return end_hash(hash);
}

// The way up from a name.
struct search {
  const struct answering *how;
  struct question *question;
  const struct absence *absence;
  struct answer_key key;
  __u32 gone; // octets of the name in front of what is in `lower`
  __u32 found; // the entry of the key answers
};

// Looks at one of the suffixes that were noted; for bpf_loop.
static long look_above(__u32 n, void *data) {
  struct search *search = data;
  struct question *question = search->question;
  if (n >= question->suffixes)
    return 1;
  __u32 at = question->suffix_at[n % SUFFIXES];
  search->key.name = shorten_name(search->how, question, (at - search->gone) & NAME_BYTES);
  search->gone = at;
  const struct short_answer *found = bpf_map_lookup_elem(&short_answers, &search->key);
  if (!found || !(found->head.flags & BELOW))
    return 0;
  search->found = !(found->head.flags & LEFT) && (!(found->head.flags & WHOLE) || search->absence->whole);
  return 1;
}

// The entry that answers for the names below the one in `lower`, which becomes that entry's; its hash goes into the key.
INLINE const struct short_answer *find_above(const struct answering *how, struct question *question,
                                             struct answer_key *key) {
  __u32 zero = 0;
  const struct absence *absence = bpf_map_lookup_elem(&absences, &zero);
  if (!absence || !mark_suffixes(question, absence))
    return 0;
  struct search search = {.how = how, .question = question, .absence = absence, .key = *key};
  bpf_loop(SUFFIXES, look_above, &search, 0);
  if (!search.found)
    return 0;
  key->name = search.key.name;
  return bpf_map_lookup_elem(&short_answers, key);
}

// The way through a body's pointers.
struct moves {
  struct xdp_md *ctx;
  struct question *question;
  const __u8 *body;
  __u32 bytes; // of the body that are sent
  __u32 body_at; // in the frame
  __u32 by;
  __u32 count;
  __u32 odd; // 1: the body begins at an odd place of the message
  __u32 broken;
};

// Moves one pointer; `most` are the octets of the body's room.
INLINE long move_pointer(__u32 n, struct moves *moves, __u32 most) {
  if (n >= moves->count)
    return 1;
  const __u8 *body = moves->body;
  // a number first, since the verifier has no bounds for what is taken off a pointer
  __u32 behind = most - 4 - 2 * (n % MOVES);
  OPAQUE(behind);
  __u32 at = *(const __u16 *)(body + behind);
  if (at >= moves->bytes || at > most - 2)
    return 1;
  __be16 pointer = bpf_htons((body[at] << 8 | body[at + 1]) + moves->by);
  if (bpf_xdp_store_bytes(moves->ctx, moves->body_at + at, &pointer, 2)) {
    moves->broken = 1;
    return 1;
  }
  // at an odd place it counts times 256, which is what exchanging its octets comes to
  moves->question->moved += bpf_htons(moves->by) << 8 * ((moves->odd + at) & 1);
  return 0;
}

static long move_short(__u32 n, void *moves) {
  return move_pointer(n, moves, SHORT_BODY_BYTES);
}

static long move_long(__u32 n, void *moves) {
  return move_pointer(n, moves, LONG_BODY_BYTES);
}

// Moves the pointers of the body that was put into the frame, and notes what the message's sum grows by; not 0 when the frame is
// broken.
INLINE int move_pointers(struct xdp_md *ctx, const struct place *place, struct question *question, const struct cut *cut,
                         const __u8 *body, __u32 most) {
  struct moves moves = {
      .ctx = ctx,
      .question = question,
      .body = body,
      .bytes = cut->bytes,
      .body_at = place->message + HEADER_BYTES + place->name_bytes + FIXED_BYTES,
      .by = place->below_bytes,
      .count = *(__u16 *)(body + most - 2), // from behind: how many, and where from the first on
      .odd = place->name_bytes & 1,
  };
  question->moved = 0;
  if (most == SHORT_BODY_BYTES)
    bpf_loop(MOVES, move_short, &moves, 0);
  else
    bpf_loop(MOVES, move_long, &moves, 0);
  return moves.broken;
}

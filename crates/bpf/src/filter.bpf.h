// Which names may have entries: a Bloom filter (Bloom, 1970) over their hashes, both bits of a name in one word. To look for an entry that
// is not there misses the caches at a bucket for each type that is tried; the filter has two octets a name and mostly stays in them.
//
// A name that it does not know has no entry, or one that user space is still putting in: such a question goes on to the socket. That a
// name does not exist is said only while names neither come nor go. Mirrored in answers/filter.rs.

enum { FILTER_WORDS_A_PAGE = 512 };

struct filter {
  __u64 of[FILTER_WORDS_A_PAGE];
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct filter);
} filters SEC(".maps");

INLINE int may_have_entries(const struct answering *how, __u64 name) {
  __u32 page = (name >> 48) & (how->filter_pages - 1);
  const struct filter *filter = bpf_map_lookup_elem(&filters, &page);
  if (!filter)
    return 1;
  __u64 wanted = 1ull << (name >> 33 & 63) | 1ull << (name >> 27 & 63);
  return (filter->of[(name >> 39) % FILTER_WORDS_A_PAGE] & wanted) == wanted;
}

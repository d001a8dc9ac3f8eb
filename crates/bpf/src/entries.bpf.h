// What user space puts in and reads, mirrored in steering/answers.rs and form.rs; and what the program keeps about one question.

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

// User space changes `generation`, `most_v4`, `most_v6`, `sampled` and `cookies` alone while the program runs.
struct answering {
  __u64 seed;
  __u64 secret; // derived from it, a factor of the hash of names
  __u64 cost_ns; // of an answer, to an account; 0: rates are not limited
  __u32 generation; // of the entries that count; 0: none
  __u32 lines; // of accounts for each queue, a power of two
  __u16 edns_bytes; // the largest answer, which is what we announce
  __u16 most_v4, most_v6; // octets of a message that a frame carries
  __u8 partial; // an answer may go out for a question whose checksum was left to a device
  __u8 sampled; // names without entries exist, so it is counted how often those that have some are asked for
  __u8 cookies; // what becomes of questions with one
  __u8 zero[3];
  __u32 back; // the interface's index when answers go out by a redirect to it; 0: they are sent back
  __u32 filter_pages; // a power of two
  __u32 rest;
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

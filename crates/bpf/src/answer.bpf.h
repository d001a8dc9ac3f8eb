// Answers from the driver: a DNS question whose answer user space has put into the maps (entries.bpf.h) leaves again
// from here.
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
// bpf_loop (5.17), bpf_xdp_load_bytes and bpf_xdp_store_bytes (5.18). The length of a message or name is read anew after each loop that ends with
// it: otherwise it would keep the bounds which each end of the loop gave it, and what follows be looked at once for each.
//
// Names may come and go while the program answers: user space waits for who runs between one step and the next, so that
// nobody finds the entry for all other types who has missed that of a type, and no entry is used again that is still read.

#include "cookie.bpf.h"
#include "entries.bpf.h"
#include "question.bpf.h"
#include "filter.bpf.h"
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

// Answers a question of this type that was read: the verdict, or 0 when the frame is as it was and somebody else's.
INLINE int answer_question(struct xdp_md *ctx, const struct answering *how, struct question *question, struct place *place,
                           struct answer_key key, int type) {
  key.name = fold_name(how, question);
  key.type = bpf_htons(type);
  const struct short_answer *found = 0;
  // where all names have entries, a question for another one is rare
  if (!how->sampled || may_have_entries(how, key.name)) {
    found = bpf_map_lookup_elem(&short_answers, &key);
    if (!found) {
      key.type = 0;
      found = bpf_map_lookup_elem(&short_answers, &key);
      if (found && ((type == TYPE_ANY && found->head.flags & NOT_ANY) || (type == TYPE_DS && found->head.flags & NOT_DS)))
        return 0;
    }
  }
  if (!found) {
    key.type = 0;
    found = find_above(how, question, &key);
    if (!found)
      return 0;
    place->below_bytes = place->name_bytes - question->held_bytes;
    place->absent = (found->head.flags & ABSENT) != 0;
  }
  struct cut cut = {};
  int verdict;
  if (found->head.flags & LONG) {
    const struct long_answer *all = bpf_map_lookup_elem(&long_answers, &key);
    if (!all || !same_name(question, &all->head, all->name, LONG_NAME_WORDS) ||
        !choose(place, &all->head, all->cuts, LONG_CUTS, &cut) || !is_admitted(ctx, how, place, question, key.name))
      return 0;
    verdict = reply(ctx, place, question, &cut, all->body, LONG_BODY_BYTES);
    if (verdict != XDP_TX)
      return verdict;
    count_answer(place, &all->head, &cut, type);
    sample(how, question, found->seat);
    return send_back(how);
  }
  if (!same_name(question, &found->head, found->name, SHORT_NAME_WORDS) ||
      !choose(place, &found->head, found->cuts, 1, &cut) || !is_admitted(ctx, how, place, question, key.name))
    return 0;
  verdict = reply(ctx, place, question, &cut, found->body, SHORT_BODY_BYTES);
  if (verdict != XDP_TX)
    return verdict;
  count_answer(place, &found->head, &cut, type);
  sample(how, question, found->seat);
  return send_back(how);
}

// Answers the datagram whose network header is at `ip_at`: as answer_question().
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
  int type = read_datagram(ctx, how, &place, question), verdict = 0;
  if (type == UNSOUND)
    return 0;
  if (type != UNSUITED) {
    forget(&place, question);
    verdict = answer_question(ctx, how, question, &place, key, type);
  }
  if (!verdict)
    add_one(&counters, ANSWER_LEFT);
  return verdict;
}

//! What the program ought to do, the slow and obvious way; and frames to try it with.

use super::super::{Answer, Baking, Below, Cut, Which};
use base::rng::Rng;
use rustix::time::{ClockId, clock_gettime};
use siphasher::sip::SipHasher24;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A name with answers to types 1 and 28, none to be sent for type 7, and one for all others.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) name: Vec<u8>,
    body: Vec<u8>,
    cuts: Vec<Cut>,
    others: Others,
}

/// The answer to all other types, and what it says of names below.
#[derive(Clone, Debug)]
struct Others {
    nxdomain: bool,
    body: Vec<u8>,
    cuts: Vec<Cut>,
    below: Below,
    moves: Vec<u16>,
}

const OTHERS_BODY: [u8; 21] = *b"what else it may hold";
const OTHERS_CUT: Cut = Cut { bytes: 21, answer: 0, authority: 1, additional: 0, truncated: false };

impl Held {
    pub(super) fn new(name: Vec<u8>, body_bytes: usize) -> Held {
        let body: Vec<u8> = (0..body_bytes).map(|n| (n * 37 + name.len()) as u8).collect();
        let whole = Cut { bytes: body_bytes as u16, answer: 2, authority: 1, additional: 300, truncated: false };
        let part = Cut { bytes: body_bytes as u16 / 3, answer: 1, authority: 0, additional: 0, truncated: true };
        let cuts = if body_bytes > 88 { vec![part, whole] } else { vec![whole] };
        let others = Others {
            nxdomain: true,
            body: OTHERS_BODY.to_vec(),
            cuts: vec![OTHERS_CUT],
            below: Below::AsAbove,
            moves: Vec::new(),
        };
        Held { name, body, cuts, others }
    }

    /// That says something of names below; the answer has so many octets, with up to so many pointers between other octets, and up
    /// to four cuts.
    pub(super) fn with_below(mut self, rng: &mut Rng, below: Below, body_bytes: usize, pointers: usize) -> Held {
        let mut body: Vec<u8> = (0..body_bytes).map(|_| rng.next_u64() as u8).collect();
        let (mut moves, mut at) = (Vec::new(), rng.below(3) as usize);
        while at + 2 <= body_bytes && moves.len() < pointers {
            // as ours, which with what they grow by at most still are pointers
            let pointer = 0xc000 | rng.below(0x3f00) as u16;
            body[at..at + 2].copy_from_slice(&pointer.to_be_bytes());
            moves.push(at as u16);
            at += 2 + rng.below(1 + (body_bytes / pointers) as u64) as usize;
        }
        let mut ends: Vec<usize> = (0..rng.below(4)).map(|_| rng.below(body_bytes as u64) as usize).collect();
        // no pointer is on both sides of an end
        ends.retain(|end| moves.iter().all(|at| usize::from(*at) + 1 != *end));
        ends.push(body_bytes);
        ends.sort_unstable();
        ends.dedup();
        let cut = |end: &usize| Cut {
            bytes: *end as u16,
            answer: 0,
            authority: *end as u16 % 7,
            additional: *end as u16 % 5,
            truncated: *end < body_bytes / 2,
        };
        let cuts = ends.iter().map(cut).collect();
        self.others = Others { nxdomain: false, body, cuts, below, moves };
        self
    }

    fn data(&self) -> Answer<'_> {
        let authoritative = self.name.len().is_multiple_of(2);
        Answer { nxdomain: false, authoritative, zone: 1, body: &self.body, cuts: &self.cuts, moves: None }
    }

    pub(super) fn others(&self) -> Answer<'_> {
        let Others { nxdomain, body, cuts, below, moves } = &self.others;
        let moves = matches!(below, Below::Answered { .. }).then_some(&moves[..]);
        Answer { nxdomain: *nxdomain, authoritative: true, zone: 2, body, cuts, moves }
    }

    /// All answers, the one for all others first: the order is the callee's to choose.
    pub(super) fn answers(&self) -> [(Which, Answer<'_>); 4] {
        let left = Answer { cuts: &[], ..self.data() };
        [
            (Which::Others { but_any: true, but_ds: true, below: self.others.below }, self.others()),
            (Which::Type(1), self.data()),
            (Which::Type(28), self.data()),
            (Which::Type(7), left),
        ]
    }

    fn find(&self, rtype: u16) -> Option<Answer<'_>> {
        match rtype {
            1 | 28 => Some(self.data()),
            7 | 43 | 251 | 252 | 255 => None,
            _ => Some(self.others()),
        }
    }
}

/// A question in a frame.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) v6: bool,
    pub(super) tag: bool,
    pub(super) from4: [u8; 4],
    pub(super) from6: Ipv6Addr,
    pub(super) port: u16,
    pub(super) flags: u8,
    pub(super) name: Vec<u8>,
    pub(super) rtype: u16,
    pub(super) opt: Option<u16>,
    /// what the option COOKIE of the OPT record has
    pub(super) cookie: Option<Vec<u8>>,
}

impl Frame {
    pub(super) fn question(name: &[u8], rtype: u16) -> Frame {
        Frame {
            v6: false,
            tag: false,
            from4: [198, 51, 100, 7],
            from6: "2001:db8:7::7".parse().unwrap(),
            port: 53,
            flags: 1,
            name: name.to_vec(),
            rtype,
            opt: None,
            cookie: None,
        }
    }

    pub(super) fn from(&self) -> IpAddr {
        if self.v6 { self.from6.into() } else { self.from4.into() }
    }

    pub(super) fn message(&self) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, self.flags, 0x30, 0, 1, 0, 0, 0, 0, 0, self.opt.is_some().into()];
        message.extend(&self.name);
        message.extend(self.rtype.to_be_bytes());
        message.extend([0, 1]);
        if let Some(size) = self.opt {
            message.extend([0, 0, 41]);
            message.extend(size.to_be_bytes());
            message.extend([0; 4]);
            let cookie = self.cookie.iter().flat_map(|cookie| option(10, cookie));
            let options: Vec<u8> = cookie.collect();
            message.extend((options.len() as u16).to_be_bytes());
            message.extend(options);
        }
        message
    }

    /// The frame around a message, with everything about it right.
    pub(super) fn around(&self, message: &[u8]) -> Vec<u8> {
        let tag: &[u8] = if self.tag { &[0x81, 0, 0x20, 5] } else { &[] };
        let kind: [u8; 2] = if self.v6 { [0x86, 0xdd] } else { [8, 0] };
        let mut frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], tag, &kind].concat();
        let ip_at = frame.len();
        let bytes = (8 + message.len()) as u16;
        if self.v6 {
            frame.extend([0x6b, 0xcd, 0xef, 0x12]);
            frame.extend(bytes.to_be_bytes());
            frame.extend([17, 61]);
            frame.extend(self.from6.octets());
            frame.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        } else {
            frame.extend([0x45, 0x03]);
            frame.extend((20 + bytes).to_be_bytes());
            frame.extend([0x12, 0x34, 0x40, 0, 61, 17, 0, 0]);
            frame.extend(self.from4);
            frame.extend([192, 0, 2, 1]);
            let sum = checksum(&frame[ip_at..]);
            frame[ip_at + 10..ip_at + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let udp_at = frame.len();
        frame.extend(40_000u16.to_be_bytes());
        frame.extend(self.port.to_be_bytes());
        frame.extend(bytes.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(message);
        close_udp(&mut frame, ip_at, udp_at, self.v6);
        // what Ethernet fills short frames up to
        frame.resize(frame.len().max(60), 0);
        frame
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.around(&self.message())
    }
}

/// An option of an OPT record (RFC 6891 section 6.1.2).
pub(super) fn option(code: u16, data: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes(), &(data.len() as u16).to_be_bytes(), data].concat()
}

/// The Internet checksum (RFC 1071), zero where a checksum verifies.
pub(super) fn checksum(octets: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in octets.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The pseudo-header of the datagram of so many octets in the packet at `ip_at`.
pub(super) fn pseudo(frame: &[u8], ip_at: usize, v6: bool, bytes: usize) -> Vec<u8> {
    let ends = if v6 { &frame[ip_at + 8..ip_at + 40] } else { &frame[ip_at + 12..ip_at + 20] };
    [ends, &(bytes as u32).to_be_bytes(), &[0, 0, 0, 17]].concat()
}

/// Writes the checksum of the datagram that the frame ends with; its place is zero.
pub(super) fn close_udp(frame: &mut [u8], ip_at: usize, udp_at: usize, v6: bool) {
    let all = [&pseudo(frame, ip_at, v6, frame.len() - udp_at), &frame[udp_at..]].concat();
    let sum = match checksum(&all) {
        0 => 0xffff,
        sum => sum,
    };
    frame[udp_at + 6..udp_at + 8].copy_from_slice(&u16::to_be_bytes(sum));
}

fn be16(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*octets.get(at)?, *octets.get(at + 1)?]))
}

/// What the program has: names, and whether these are all there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(super) held: Vec<Held>,
    pub(super) whole: bool,
}

impl Names {
    /// What answers for a name in lower case: the body as it is to be sent, and the RCODE's being NXDOMAIN.
    fn find(&self, name: &[u8], rtype: u16) -> Option<(Answer<'_>, Vec<u8>)> {
        if let Some(held) = self.held.iter().find(|held| held.name == name) {
            return held.find(rtype).map(|answer| (answer.clone(), answer.body.to_vec()));
        }
        if matches!(rtype, 251 | 252) {
            return None;
        }
        let mut suffixes = Vec::new();
        let mut at = 0;
        while name[at] > 0 {
            at += 1 + usize::from(name[at]);
            suffixes.push(&name[at..]);
        }
        // by their lengths alone, since that is what the program goes by
        let tells = |held: &&Held| match held.others.below {
            Below::AsAbove => false,
            Below::Answered { whole: false, .. } => true,
            Below::Left | Below::Answered { .. } => self.whole,
        };
        suffixes.retain(|suffix| self.held.iter().filter(tells).any(|held| held.name.len() == suffix.len()));
        if suffixes.len() > 8 {
            return None;
        }
        let marked = self.held.iter().filter(|held| held.others.below != Below::AsAbove);
        let above = suffixes.iter().find_map(|suffix| marked.clone().find(|held| held.name == *suffix))?;
        let Below::Answered { absent, whole } = above.others.below else { return None };
        if whole && !self.whole {
            return None;
        }
        let mut answer = above.others();
        answer.nxdomain |= absent;
        let mut body = answer.body.to_vec();
        for at in above.others.moves.iter().map(|at| usize::from(*at)) {
            let moved = be16(&body, at)? + (name.len() - above.name.len()) as u16;
            body[at..at + 2].copy_from_slice(&moved.to_be_bytes());
        }
        Some((answer, body))
    }
}

/// The frame that answers `frame`, if the program is to answer it; `oven` with the time of now.
pub(super) fn answer(names: &Names, frame: &[u8], udp_bytes: u16, mtu: usize, oven: Made<'_>) -> Option<Expected> {
    let tagged = be16(frame, 12)? == 0x8100;
    let ip_at = if tagged { 18 } else { 14 };
    if (frame[0] | frame[6]) & 1 != 0 || frame[..6] == frame[6..12] {
        return None;
    }
    let v6 = match be16(frame, ip_at - 2)? {
        0x0800 => false,
        0x86dd => true,
        _ => return None,
    };
    let ip = frame.get(ip_at..)?;
    let udp_at = ip_at + if v6 { 40 } else { 20 };
    let udp_bytes_in = usize::from(be16(frame, udp_at + 4)?);
    let header_is_right = if v6 {
        let (from, to) = (address6(&ip[8..24]), address6(&ip[24..40]));
        let to_us = to == "2001:db8::1".parse::<Ipv6Addr>().unwrap();
        let odd = from.is_multicast() || from.octets()[..8] == [0; 8] || from == to;
        ip[0] >> 4 == 6 && ip[6] == 17 && usize::from(be16(ip, 4)?) == udp_bytes_in && to_us && !odd
    } else {
        let (from, to) = (Ipv4Addr::from([ip[12], ip[13], ip[14], ip[15]]), &ip[16..20]);
        let odd = matches!(from.octets()[0], 0 | 127 | 224..) || from.octets() == to;
        let whole = be16(ip, 6)? & 0x3fff == 0 && usize::from(be16(ip, 2)?) == 20 + udp_bytes_in;
        ip[0] == 0x45 && ip[9] == 17 && whole && to == [192, 0, 2, 1] && !odd && checksum(&ip[..20]) == 0
    };
    let udp = frame.get(udp_at..udp_at + udp_bytes_in)?;
    if !header_is_right || udp.len() < 8 || be16(udp, 0)? == 0 || be16(udp, 2)? != 53 {
        return None;
    }
    match be16(udp, 6)? {
        0 if v6 => return None,
        0 => {}
        // left to a device
        sum if sum == !checksum(&pseudo(frame, ip_at, v6, udp.len())) => return None,
        _ if checksum(&[&pseudo(frame, ip_at, v6, udp.len()), udp].concat()) != 0 => return None,
        _ => {}
    }
    let most = mtu - (udp_at - ip_at) - 8;
    let from: IpAddr = if v6 { address6(&ip[8..24]).into() } else { <[u8; 4]>::try_from(&ip[12..16]).ok()?.into() };
    let (message, proven) = reply(names, &udp[8..], udp_bytes, most, oven, from)?;
    let mut out = [&frame[6..12], &frame[..6], &frame[12..ip_at]].concat();
    let bytes = (8 + message.len()) as u16;
    if v6 {
        out.extend([0x60, 0, 0, 0]);
        out.extend(bytes.to_be_bytes());
        out.extend([17, 64]);
        out.extend(&ip[24..40]);
        out.extend(&ip[8..24]);
    } else {
        out.extend([0x45, 0]);
        out.extend((20 + bytes).to_be_bytes());
        out.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        out.extend(&ip[16..20]);
        out.extend(&ip[12..16]);
        let sum = checksum(&out[ip_at..]);
        out[ip_at + 10..ip_at + 12].copy_from_slice(&sum.to_be_bytes());
    }
    out.extend([udp[2], udp[3], udp[0], udp[1]]);
    out.extend(bytes.to_be_bytes());
    out.extend([0, 0]);
    out.extend(message);
    close_udp(&mut out, ip_at, udp_at, v6);
    Some(Expected { frame: out, proven })
}

fn address6(octets: &[u8]) -> Ipv6Addr {
    Ipv6Addr::from(<[u8; 16]>::try_from(octets).unwrap())
}

/// Octets of the name at the front of `octets`, uncompressed.
fn name_bytes(octets: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match usize::from(*octets.get(at)?) {
            0 => return (at < 255).then_some(at + 1),
            label @ 1..=63 => at += 1 + label,
            _ => return None,
        }
    }
}

/// An OPT record of version 0 without flags: what it offers, and its only option's data if that is a cookie.
fn opt_of(octets: &[u8]) -> Option<(u16, Option<&[u8]>)> {
    let (fixed, data) = octets.split_first_chunk::<11>()?;
    let [0, 0, 41, high, low, 0, 0, 0, 0, 0, bytes] = *fixed else { return None };
    let offered = u16::from_be_bytes([high, low]);
    match (usize::from(bytes) == data.len(), data) {
        (true, []) => Some((offered, None)),
        (true, [0, 10, 0, own, cookie @ ..]) if usize::from(*own) == cookie.len() => Some((offered, Some(cookie))),
        _ => None,
    }
}

/// The message that answers another, and whether that has shown whose it is.
fn reply(
    names: &Names,
    message: &[u8],
    udp_bytes: u16,
    most: usize,
    oven: Made<'_>,
    from: IpAddr,
) -> Option<(Vec<u8>, bool)> {
    if message.len() < 12 || message[2] & 0xf8 != 0 || message[4..11] != [0, 1, 0, 0, 0, 0, 0] {
        return None;
    }
    let name = message[12..].get(..name_bytes(&message[12..])?)?;
    let end = 12 + name.len() + 4;
    let rtype = be16(message, end - 4)?;
    if be16(message, end - 2)? != 1 {
        return None;
    }
    let opt = match (message[11], &message[end..]) {
        (0, []) => None,
        (1, octets) => Some(opt_of(octets)?),
        _ => return None,
    };
    let (answer, body) = names.find(&name.to_ascii_lowercase(), rtype)?;
    let (mut options, mut proven) = (Vec::new(), false);
    if let Some(cookie) = opt.and_then(|(_, cookie)| cookie) {
        let (baked, says) = oven.bake(cookie, from)?;
        options = baked.map_or_else(Vec::new, |baked| option(10, &baked));
        proven = says;
    }
    let (limit, after) = opt.map_or((512, 0), |(size, _)| (size.clamp(512, udp_bytes), 11 + options.len()));
    let limit = usize::from(limit).min(most);
    let cut = answer.cuts.iter().rfind(|cut| end + usize::from(cut.bytes) + after <= limit)?;
    let mut out = message[..end].to_vec();
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    out[2] = 0x80 | bit(answer.authoritative, 4) | bit(cut.truncated, 2) | message[2] & 1;
    out[3] = bit(answer.nxdomain, 3);
    for (at, count) in [(6, cut.answer), (8, cut.authority), (10, cut.additional + u16::from(opt.is_some()))] {
        out[at..at + 2].copy_from_slice(&count.to_be_bytes());
    }
    out.extend(&body[..usize::from(cut.bytes)]);
    if opt.is_some() {
        out.extend([0, 0, 41]);
        out.extend(udp_bytes.to_be_bytes());
        out.extend([0; 4]);
        out.extend((options.len() as u16).to_be_bytes());
        out.extend(options);
    }
    Some((out, proven))
}

/// What a frame is answered with.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) frame: Vec<u8>,
    /// a cookie shows whose the question is
    pub(super) proven: bool,
}

/// What becomes of cookies.
#[derive(Clone, Debug, Default)]
pub(super) enum Oven {
    #[default]
    Left,
    Ignored,
    Made(Baking),
}

/// At one second.
#[derive(Clone, Copy)]
pub(super) struct Made<'a>(&'a Oven, u32);

/// The machine's clock, which the program reads, too.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Oven {
    /// The second of cookies.
    pub(super) fn second(&self) -> u32 {
        let Oven::Made(baking) = self else { return 0 };
        (baking.unix_time_at_zero_s + (now_ns() - baking.zero_ns) / 1_000_000_000) as u32
    }

    /// What was to be sent, in a second from `begun` to that of now: one in which what was sent was right, or the first.
    pub(super) fn expected(
        &self,
        begun: u32,
        expected: impl Fn(Made<'_>) -> Option<Expected>,
        sent: Option<&[u8]>,
    ) -> Option<Expected> {
        let mut all: Vec<_> = (begun..=self.second()).map(|second| expected(Made(self, second))).collect();
        let at = all.iter().position(|expected| expected.as_ref().map(|expected| &expected.frame[..]) == sent);
        all.swap_remove(at.unwrap_or(0))
    }

    /// The server's part of a client's cookie at some second.
    pub(super) fn server(&self, client: &[u8], unix_s: u32, from: IpAddr) -> Vec<u8> {
        let Oven::Made(Baking { secret, .. }) = self else { panic!("no cookies are made") };
        let head = [&[1, 0, 0, 0][..], &unix_s.to_be_bytes()].concat();
        let address = match from {
            IpAddr::V4(from) => from.octets().to_vec(),
            IpAddr::V6(from) => from.octets().to_vec(),
        };
        let hash = SipHasher24::new_with_key(secret).hash(&[client, &head, &address].concat());
        [head, hash.to_le_bytes().to_vec()].concat()
    }
}

impl Made<'_> {
    /// The answer's cookies, and whether the question's are right; None leaves the question to the socket.
    fn bake(self, cookie: &[u8], from: IpAddr) -> Option<(Option<Vec<u8>>, bool)> {
        let Made(oven, now) = self;
        if cookie.len() != 8 && cookie.len() != 24 {
            return None;
        }
        let others = match oven {
            Oven::Left => return None,
            Oven::Ignored => return Some((None, false)),
            Oven::Made(baking) => baking.others,
        };
        let (client, server) = cookie.split_at(8);
        let mut right = false;
        if !server.is_empty() {
            let made = u32::from_be_bytes(server[4..8].try_into().ok()?);
            let age = i64::from(now) - i64::from(made);
            right = (-300..=3600).contains(&age) && server == oven.server(client, made, from);
            if !right && others {
                return None;
            }
        }
        Some((Some([client, &oven.server(client, now, from)].concat()), right))
    }
}

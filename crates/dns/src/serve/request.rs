//! One question on its way to its answer, once it is known what it asks for.

use super::{
    BADCOOKIE, BADVERS, CLASS_ANY, CLASS_CH, CLASS_IN, EDE_NOT_AUTHORITATIVE, From, LEAST_UDP_BYTES, Options, Shared,
};
use crate::block::{self, Block, UNIT_BYTES};
use crate::chaos;
use crate::compose::{Composer, NAME_AT};
use crate::cookie::{self, Baker};
use crate::question::{Ask, Bare, DropReason, Edns};
use crate::reference::{self, rcode};
use crate::reply::{self, Frame, Opt};
use crate::resolve::{Kind, Outcome};
use crate::retained::{Made, Origin};
use crate::rrl::{Judgement, Limiter};
use crate::table::{Key, Tables};
use std::sync::Arc;
use zone::{NameRef, Rtype};

/// Where the few answers are made that are not prepared.
pub(super) struct Kitchen {
    pub(super) composer: Composer,
    pub(super) block: Vec<u8>,
}

/// A question on its way to its answer.
pub(super) struct Request<'s> {
    shared: &'s Shared,
    from: From,
    ask: &'s Ask,
    key: &'s Key,
    frame: Frame<'s>,
    /// a valid cookie or a stream has shown that the address is no forgery
    exempt: bool,
}

impl<'s> Request<'s> {
    #[inline(always)]
    pub(super) fn new(shared: &'s Shared, from: From, ask: &'s Ask, key: &'s Key, buffer: &[u8]) -> Request<'s> {
        let (mut limit, mut opt, mut exempt) = (limit_of(&shared.options, ask), None, from.stream);
        if let Some(edns) = &ask.edns {
            let mut ours = Opt { size: shared.options.udp_bytes, dnssec_ok: edns.dnssec_ok, ..Opt::default() };
            if edns.nsid || edns.keepalive || edns.cookie_bytes > 0 {
                exempt |= shared.options_of(from, ask, edns, buffer, &mut ours);
            }
            opt = Some(ours);
        }
        if from.stream {
            limit = usize::from(u16::MAX);
        }
        let frame = Frame { name_bytes: usize::from(ask.name_bytes), limit, opt };
        Request { shared, from, ask, key, frame, exempt }
    }

    /// What few ask: other classes, transfers, later versions of EDNS. None leaves the question to the tables.
    #[cold]
    #[inline(never)]
    pub(super) fn unusual(
        &mut self,
        limiter: &mut Option<Limiter>,
        buffer: &mut [u8],
    ) -> Option<Result<usize, DropReason>> {
        let transfer = matches!(Rtype(self.ask.qtype), Rtype::AXFR | Rtype::IXFR);
        let error = match self.ask.qclass {
            _ if self.ask.edns.as_ref().is_some_and(|edns| edns.version > 0) => BADVERS,
            // AXFR is not defined over UDP (RFC 5936 section 4.2); there are no transfers over TCP either
            CLASS_IN | CLASS_ANY if transfer && self.ask.qtype == Rtype::AXFR.0 && !self.from.stream => {
                u16::from(rcode::NOTIMP)
            }
            CLASS_ANY if !transfer => return None,
            CLASS_CH => {
                if let Some(text) = chaos::text(&self.shared.options, &buffer[NAME_AT..], self.ask) {
                    return Some(self.text(limiter, buffer, text));
                }
                u16::from(rcode::REFUSED)
            }
            _ => u16::from(rcode::REFUSED),
        };
        Some(self.error(limiter, buffer, error, None))
    }

    fn text(&self, limiter: &mut Option<Limiter>, buffer: &mut [u8], text: &[u8]) -> Result<usize, DropReason> {
        if !self.passes(limiter, Kind::Data, 0)? {
            return self.slip(buffer);
        }
        let len = [text.len() as u8];
        let sent = self.frame.record(buffer, Rtype::TXT.0, CLASS_CH, &[&len, text]).ok_or(DropReason::NoRoom)?;
        self.shared.stats.answered(0);
        Ok(sent.bytes)
    }

    #[cold]
    #[inline(never)]
    fn error(
        &self,
        limiter: &mut Option<Limiter>,
        buffer: &mut [u8],
        rcode: u16,
        extended: Option<u16>,
    ) -> Result<usize, DropReason> {
        if !self.passes(limiter, Kind::Error, 0)? {
            return self.slip(buffer);
        }
        let opt = self.frame.opt.map(|opt| Opt { error: extended, ..opt });
        let sent = Frame { opt, ..self.frame }.empty(buffer, rcode, false).ok_or(DropReason::NoRoom)?;
        self.shared.stats.answered(rcode);
        Ok(sent.bytes)
    }

    /// The usual question: a name of the Internet's class.
    #[inline(always)]
    pub(super) fn lookup<O: Origin>(
        &self,
        limiter: &mut Option<Limiter>,
        kitchen: &mut Kitchen,
        buffer: &mut [u8],
        origin: &mut O,
    ) -> Result<usize, DropReason> {
        let tables: &Tables = &self.shared.tables;
        match tables.resolve(self.key, buffer, NAME_AT, self.ask) {
            Outcome::Block { unit, delta, rcode, kind, source, zone } => {
                if limiter.is_some() && !self.passes(limiter, kind, source)? {
                    return self.slip(buffer);
                }
                self.send(buffer, Block::at(&tables.arena, unit), delta, rcode, (zone, kind, source), origin)
            }
            Outcome::Refused => self.error(limiter, buffer, u16::from(rcode::REFUSED), Some(EDE_NOT_AUTHORITATIVE)),
            Outcome::Compose { zone, kind, source } => {
                // before it is made, so a flood costs no more than one for prepared answers
                if !self.passes(limiter, kind, source)? {
                    return self.slip(buffer);
                }
                self.compose(kitchen, zone, buffer)?;
                self.send(buffer, Block::at(&kitchen.block, 0), 0, None, (zone, kind, source), origin)
            }
        }
    }

    #[inline(always)]
    fn send<O: Origin>(
        &self,
        buffer: &mut [u8],
        block: Block<'_>,
        delta: u16,
        rcode: Option<u8>,
        (zone, kind, source): (u32, Kind, u32),
        origin: &mut O,
    ) -> Result<usize, DropReason> {
        // a server of one class out of all is not authoritative for ANY (RFC 1035 section 6.2)
        let authoritative = self.ask.qclass == CLASS_IN;
        let rcode = rcode.unwrap_or(block.rcode());
        let sent = self.frame.block(buffer, block, delta, rcode, authoritative).ok_or(DropReason::NoRoom)?;
        self.shared.count(rcode, zone, sent.truncated);
        origin.made(Made { source, zone, kind, rcode, truncated: sent.truncated });
        Ok(sent.bytes)
    }

    /// Composes what is sent of an answer that is not prepared, as a block.
    #[cold]
    #[inline(never)]
    fn compose(&self, kitchen: &mut Kitchen, zone: u32, buffer: &[u8]) -> Result<(), DropReason> {
        let room = self.frame.room(buffer).ok_or(DropReason::NoRoom)?;
        let Kitchen { composer, block } = kitchen;
        let wire = &buffer[NAME_AT..NAME_AT + usize::from(self.ask.name_bytes)];
        if let Ok(name) = NameRef::from_wire(wire) {
            let zone = &self.shared.tables.zones[zone as usize].zone;
            reference::answer(zone, name, Rtype(self.ask.qtype), room, composer);
        }
        block.clear();
        block::write(block, composer);
        block.resize(block.len() + UNIT_BYTES, 0);
        Ok(())
    }

    /// Asks the rate limiter: true to answer, false to answer truncated.
    #[inline(always)]
    pub(super) fn passes(&self, limiter: &mut Option<Limiter>, kind: Kind, source: u32) -> Result<bool, DropReason> {
        match limiter {
            Some(limiter) if !self.exempt => match limiter.judge(self.from.now, self.from.peer, kind, source) {
                Judgement::Send => Ok(true),
                Judgement::Slip => Ok(false),
                Judgement::Drop => Err(DropReason::RateLimited),
            },
            _ => Ok(true),
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn slip(&self, buffer: &mut [u8]) -> Result<usize, DropReason> {
        let sent = self.frame.empty(buffer, 0, true).ok_or(DropReason::NoRoom)?;
        self.shared.stats.slipped.add(1);
        self.shared.stats.answered(0);
        Ok(sent.bytes)
    }
}

/// Octets of the largest answer over a datagram that the question allows.
#[inline(always)]
pub(super) fn limit_of(options: &Options, ask: &Ask) -> usize {
    let udp_bytes = usize::from(options.udp_bytes);
    ask.edns.as_ref().map_or(LEAST_UDP_BYTES, |edns| usize::from(edns.size).clamp(LEAST_UDP_BYTES, udp_bytes))
}

impl Shared {
    /// Counts an answer of a zone.
    #[inline(always)]
    pub(super) fn count(&self, rcode: u8, zone: u32, truncated: bool) {
        self.stats.answered(u16::from(rcode));
        if truncated {
            self.stats.truncated.add(1);
        }
        if let Some(slot) = self.tables.counted.slot(zone) {
            self.zones.answered(slot, rcode);
        }
    }

    /// After new tables were taken. Those that [`Tables::rebuild`] made count where the ones before did; only others need
    /// counters of their own.
    pub(super) fn follow(&mut self) {
        if !Arc::ptr_eq(self.zones.ledger(), self.tables.counted.ledger()) {
            self.zones = self.stats.zones(self.tables.counted.ledger());
        }
    }

    /// The short way for what is asked most; what it does is what the long way would do.
    #[inline(always)]
    pub(super) fn direct<O: Origin>(&self, key: &Key, ask: &Ask, buffer: &mut [u8], origin: &mut O) -> Option<usize> {
        let tables: &Tables = &self.tables;
        let (unit, zone) = tables.direct(key, buffer, NAME_AT, ask)?;
        let opt = ask.edns.as_ref().map(|edns| Opt {
            size: self.options.udp_bytes,
            dnssec_ok: edns.dnssec_ok,
            ..Opt::default()
        });
        let block = Block::at(&tables.arena, unit);
        let bytes = reply::small(buffer, usize::from(ask.name_bytes), block, opt.as_ref())?;
        let rcode = block.rcode();
        self.count(rcode, zone, false);
        // without a limiter nobody asks for the source
        origin.made(Made { source: 0, zone, kind: Kind::Data, rcode, truncated: false });
        Some(bytes)
    }

    /// Answers by an RCODE and no records, under the limit for errors.
    #[cold]
    #[inline(never)]
    pub(super) fn bare(
        &self,
        limiter: &mut Option<Limiter>,
        from: From,
        bare: &Bare,
        decompressed: Option<&[u8; 256]>,
        buffer: &mut [u8],
    ) -> Result<usize, DropReason> {
        let (ask, mut opt, mut valid) = (&bare.ask, None, false);
        if let Some(edns) = &ask.edns {
            let mut ours = Opt { size: self.options.udp_bytes, dnssec_ok: edns.dnssec_ok, ..Opt::default() };
            valid = self.options_of(from, ask, edns, buffer, &mut ours);
            opt = Some(ours);
        }
        if !(from.stream || valid)
            && let Some(limiter) = limiter
            && limiter.judge(from.now, from.peer, Kind::Error, 0) != Judgement::Send
        {
            return Err(DropReason::RateLimited);
        }
        if ask.sent_bytes != ask.name_bytes
            && let Some(name) = decompressed
        {
            write_question(buffer, name, ask)?;
        }
        // who asks for a cookie learns whether the one that he has is good (RFC 7873 section 5.4)
        let has_one = ask.edns.is_some_and(|edns| usize::from(edns.cookie_bytes) > cookie::CLIENT_BYTES);
        let rcode = if bare.rcode == 0 && has_one && !valid { BADCOOKIE } else { bare.rcode };
        let limit = if from.stream { usize::from(u16::MAX) } else { limit_of(&self.options, ask) };
        let question_bytes = if ask.name_bytes > 0 { usize::from(ask.name_bytes) + 4 } else { 0 };
        let bytes = reply::bare(buffer, question_bytes, opt.as_ref(), rcode, limit).ok_or(DropReason::NoRoom)?;
        self.stats.answered(rcode);
        Ok(bytes)
    }

    /// Adds the options of the answer; true when a valid cookie exempts from rate limiting.
    #[cold]
    #[inline(never)]
    fn options_of<'s>(&'s self, from: From, ask: &Ask, edns: &Edns, buffer: &[u8], opt: &mut Opt<'s>) -> bool {
        // all but the identifier fits with every question
        let nsid = &self.options.nsid;
        let room = limit_of(&self.options, ask) - (NAME_AT + usize::from(ask.name_bytes) + 4 + OPTIONS_MAX_BYTES);
        if edns.nsid && !nsid.is_empty() && (from.stream || nsid.len() <= room) {
            opt.nsid = Some(nsid);
        }
        if from.stream && edns.keepalive {
            opt.keepalive = Some(self.options.tcp.keepalive_units());
        }
        let Some(baker) = self.baker.as_ref().filter(|_| edns.cookie_bytes > 0) else { return false };
        let (cookies, valid) = bake(baker, from, edns, buffer);
        opt.cookie = cookies;
        if valid {
            self.stats.cookies_valid.add(1);
        }
        valid
    }
}

/// Octets of an OPT record with a cookie and an extended error, and with an identifier of none.
const OPTIONS_MAX_BYTES: usize = 11 + cookie::OPTION_BYTES + 6 + 4;

type Cookies = [u8; cookie::CLIENT_BYTES + cookie::SERVER_BYTES];

/// The cookies of the answer, and whether the question's server cookie was valid.
fn bake(baker: &Baker, from: From, edns: &Edns, buffer: &[u8]) -> (Option<Cookies>, bool) {
    let at = usize::from(edns.cookie_at);
    let came = &buffer[at..at + usize::from(edns.cookie_bytes)];
    let Some((client, server)) = came.split_first_chunk::<{ cookie::CLIENT_BYTES }>() else { return (None, false) };
    let valid = baker.is_valid(from.now, client, server, from.peer);
    let Some(made) = baker.make(from.now, client, from.peer) else { return (None, false) };
    let mut cookies = [0; cookie::CLIENT_BYTES + cookie::SERVER_BYTES];
    cookies[..cookie::CLIENT_BYTES].copy_from_slice(client);
    cookies[cookie::CLIENT_BYTES..].copy_from_slice(&made);
    (Some(cookies), valid)
}

/// Writes a compressed question's name out in full, since the answer points into it.
#[cold]
pub(super) fn write_question(buffer: &mut [u8], name: &[u8; 256], ask: &Ask) -> Result<(), DropReason> {
    let len = usize::from(ask.name_bytes);
    let end = NAME_AT + len + 4;
    let question = buffer.get_mut(NAME_AT..end).ok_or(DropReason::NoRoom)?;
    question[..len].copy_from_slice(&name[..len]);
    question[len..len + 2].copy_from_slice(&ask.qtype.to_be_bytes());
    question[len + 2..].copy_from_slice(&ask.qclass.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests;

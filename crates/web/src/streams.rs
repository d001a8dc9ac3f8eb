//! Bodies that are sent from chunks: how far each one is, and what it waits for.
//!
//! A stream queues a chunk as soon as it has it, up to its share of the cache, and asks for the next one when it is not there. It
//! waits for the client, whose acknowledgements free its share, or for one chunk. Chunks that it will want are read ahead.

use std::ops::Range;
use std::sync::Arc;

use app::{CallError, Connection, Content, Streams as Calls, Waker};

use crate::chunks::{CHUNK_BYTES, Cache, Desk, FIRST, Origin, Unreadable};
use crate::client::{Client, NO_STREAM};
use crate::stats::Stats;

struct Stream {
    /// what is sent; None in a place that nobody has, or that waits for what is to be sent next
    origin: Option<Arc<Origin>>,
    /// what of it is still to be queued
    left: Range<u64>,
    /// a chunk that was told, until it is queued
    chunk: Option<(u32, Arc<Content>)>,
    /// chunks below this one were asked to be read ahead
    ahead: u32,
    connection: Connection,
    /// which client has the place
    client: u32,
    /// a chunk was asked for, and its answer is to come
    asked: bool,
    used: bool,
}

/// A stream on its way to another thread. What it waited for there it asks for anew.
pub(crate) struct Packed {
    origin: Option<Arc<Origin>>,
    left: Range<u64>,
    chunk: Option<(u32, Arc<Content>)>,
    ahead: u32,
    /// it waited for a chunk
    pub(crate) asked: bool,
}

/// What a stream came to.
pub(crate) enum Fed {
    /// all of it is queued
    Whole,
    /// it goes on when the client has taken some, or when a chunk is told
    Waits,
}

/// The streams of one thread.
pub(crate) struct Streams {
    /// grows up to its bound
    all: Vec<Stream>,
    most: usize,
    free: Vec<u32>,
    desk: Option<Desk>,
}

impl Streams {
    /// Up to `count` at a time; none without a cache.
    pub(crate) fn new(cache: Option<Cache>, count: usize) -> Streams {
        let count = if cache.is_some() { count } else { 0 };
        Streams {
            all: Vec::with_capacity(count.min(1 << 20)),
            most: count,
            free: Vec::with_capacity(count.min(1 << 20)),
            desk: cache.map(|cache| Desk::new(cache, count)),
        }
    }

    /// A place that nobody has.
    fn place(&mut self) -> Option<u32> {
        if self.free.is_empty() && self.all.len() < self.most {
            self.free.push(self.all.len() as u32);
            self.all.push(Stream {
                origin: None,
                left: 0..0,
                chunk: None,
                ahead: 0,
                connection: Connection { index: 0, generation: 0 },
                client: 0,
                asked: false,
                used: false,
            });
        }
        self.free.pop()
    }

    /// Who is woken when a chunk is told.
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        if let Some(desk) = &mut self.desk {
            desk.set_waker(waker);
        }
    }

    /// Gives a client a place, where nothing is sent yet; false when there is none.
    pub(crate) fn take(&mut self, client: &mut Client, connection: Connection) -> bool {
        let Some(place) = self.place() else { return false };
        let Some(desk) = &self.desk else { return false };
        desk.enter();
        let stream = &mut self.all[place as usize];
        (stream.connection, stream.client, stream.used) = (connection, client.number, true);
        client.stream = place;
        true
    }

    /// Sends a part of a file next.
    pub(crate) fn begin(&mut self, place: u32, origin: &Arc<Origin>, part: Range<u64>) {
        let stream = &mut self.all[place as usize];
        stream.ahead = index(part.start);
        (stream.origin, stream.left, stream.chunk) = (Some(origin.clone()), part, None);
    }

    /// Takes a client's place back, if it has one. One that waits for a chunk is free when that has come, so that no place ever
    /// waits for two.
    pub(crate) fn give(&mut self, client: &mut Client) {
        if client.stream == NO_STREAM {
            return;
        }
        let stream = &mut self.all[client.stream as usize];
        (stream.origin, stream.chunk, stream.used) = (None, None, false);
        if !stream.asked {
            self.free.push(client.stream);
        }
        if let Some(desk) = &self.desk {
            desk.leave();
        }
        client.stream = NO_STREAM;
    }

    /// Whether somebody waits for memory of the cache.
    pub(crate) fn is_short(&self) -> bool {
        self.desk.as_ref().is_some_and(Desk::is_short)
    }

    /// Takes a client's place back, and the stream out, for another thread. An answer that is still to come finds nobody.
    pub(crate) fn take_out(&mut self, client: &mut Client) -> Option<Packed> {
        let stream = self.all.get_mut(client.stream as usize)?;
        let packed = Packed {
            origin: stream.origin.take(),
            left: stream.left.clone(),
            chunk: stream.chunk.take(),
            ahead: stream.ahead,
            asked: stream.asked,
        };
        self.give(client);
        Some(packed)
    }

    /// Gives a client a place for a stream that came from another thread; false when there is none.
    pub(crate) fn put_in(&mut self, client: &mut Client, connection: Connection, packed: Packed) -> bool {
        if !self.take(client, connection) {
            return false;
        }
        let stream = &mut self.all[client.stream as usize];
        let Packed { origin, left, chunk, ahead, .. } = packed;
        (stream.origin, stream.left, stream.chunk, stream.ahead) = (origin, left, chunk, ahead);
        true
    }

    /// Queues what there is room for; how many bytes, and whether that was all.
    pub(crate) fn feed<C: Calls>(
        &mut self,
        client: &Client,
        calls: &mut C,
        connection: Connection,
        stats: &Stats,
    ) -> Result<(u64, Fed), CallError> {
        let (Some(stream), Some(desk)) = (self.all.get_mut(client.stream as usize), &self.desk) else {
            return Ok((0, Fed::Whole));
        };
        let Some(origin) = stream.origin.clone() else { return Ok((0, Fed::Whole)) };
        let mut queued = 0;
        while !stream.left.is_empty() {
            if stream.asked || client.unsent_bytes + queued >= desk.share_bytes() {
                return Ok((queued, Fed::Waits));
            }
            let at = index(stream.left.start);
            let told = stream.chunk.take().filter(|(index, _)| *index == at).map(|(_, chunk)| chunk);
            let chunk = match told {
                Some(chunk) => chunk,
                None => match desk.get(&origin, at) {
                    Some(chunk) => {
                        stats.cache_hits.add(1);
                        chunk
                    }
                    None => {
                        stats.cache_misses.add(1);
                        if !desk.ask(&origin, at, client.stream) {
                            return Err(CallError::NoResources);
                        }
                        stream.asked = true;
                        stream.ahead = stream.ahead.max(at + 1);
                        stream.read_ahead(desk, at);
                        return Ok((queued, Fed::Waits));
                    }
                },
            };
            let start = stream.left.start % CHUNK_BYTES;
            let end = stream.left.end.min(u64::from(at) * CHUNK_BYTES + CHUNK_BYTES);
            let bytes = end - stream.left.start;
            let taken =
                calls.sendv(connection, &[app::Range::Object { content: &chunk, object: FIRST, start, bytes }])?;
            stream.left.start += taken;
            queued += taken;
            if taken < bytes {
                stream.chunk = (taken > 0 || client.unsent_bytes > 0).then_some((at, chunk));
                return Ok((queued, Fed::Waits));
            }
            stream.read_ahead(desk, at);
        }
        stream.origin = None;
        Ok((queued, Fed::Whole))
    }

    /// The next client for whom a chunk has come, or none that can be read.
    pub(crate) fn told(&mut self) -> Option<(u32, Connection, Result<(), Unreadable>)> {
        let desk = self.desk.as_mut()?;
        while let Some((place, told)) = desk.told() {
            let stream = &mut self.all[place as usize];
            stream.asked = false;
            if !stream.used {
                self.free.push(place);
                continue;
            }
            let told = told.map(|chunk| stream.chunk = Some((index(stream.left.start), chunk)));
            return Some((stream.client, stream.connection, told));
        }
        None
    }

    #[cfg(test)]
    pub(crate) fn free_count(&self) -> usize {
        self.most - (self.all.len() - self.free.len())
    }
}

impl Stream {
    /// Has what follows chunk `at` read, half of the way before it is needed.
    fn read_ahead(&mut self, desk: &Desk, at: u32) {
        let Some(origin) = &self.origin else { return };
        let most = desk.ahead();
        let last = index(self.left.end.saturating_sub(1));
        let to = at.saturating_add(most).min(last) + 1;
        self.ahead = self.ahead.max(at + 1);
        if self.ahead < to && (self.ahead <= at + most / 2 || to == last + 1) {
            desk.hint(origin, self.ahead, to);
            self.ahead = to;
        }
    }
}

/// The chunk with the byte at `at`.
fn index(at: u64) -> u32 {
    u32::try_from(at / CHUNK_BYTES).unwrap_or(u32::MAX)
}

impl Drop for Streams {
    fn drop(&mut self) {
        // after a panic they are gone without a word
        let Some(desk) = &self.desk else { return };
        self.all.iter().filter(|stream| stream.used).for_each(|_| desk.leave());
    }
}

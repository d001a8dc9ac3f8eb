//! A port whose frames are written down as pcap, both directions, for Wireshark and tshark.
//!
//! The format is the classic one with nanosecond timestamps (magic 0xa1b23c4d, draft-ietf-opsawg-pcap), Ethernet link type;
//! it has no place for a frame's direction, which its hardware addresses tell. Writing goes to whatever the caller gives,
//! on the caller's thread: give it a buffer. A write that fails ends the capture, never the traffic.

use crate::{Facts, Gather, Large, Outgoing, Piece, Port, Segmentation};
use base::{Burst, Frame, Instant};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Bytes of the longest packet that a file announces.
pub const SNAP_BYTES: u32 = 65_535;

/// A pcap file being written.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    frames: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the file's header to `out`.
    ///
    /// # Errors
    /// The writer's own.
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        let mut header = [0; 24];
        header[..4].copy_from_slice(&0xa1b2_3c4d_u32.to_le_bytes());
        header[4..8].copy_from_slice(&[2, 0, 4, 0]); // version 2.4
        header[16..20].copy_from_slice(&SNAP_BYTES.to_le_bytes());
        header[20] = 1; // LINKTYPE_ETHERNET
        out.write_all(&header)?;
        Ok(Writer { out, frames: 0 })
    }

    /// Writes one frame that passed `since_epoch` after 1970.
    ///
    /// # Errors
    /// The writer's own.
    pub fn write(&mut self, since_epoch: Duration, frame: &[u8]) -> io::Result<()> {
        let kept = &frame[..frame.len().min(SNAP_BYTES as usize)];
        // seconds are 32 bits in the format, so until 2106
        let words = [since_epoch.as_secs() as u32, since_epoch.subsec_nanos(), kept.len() as u32, frame.len() as u32];
        let mut header = [0; 16];
        for (to, word) in header.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        self.out.write_all(&header)?;
        self.out.write_all(kept)?;
        self.frames += 1;
        Ok(())
    }

    /// Frames written.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Flushes and gives the writer back.
    ///
    /// # Errors
    /// The writer's own.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// A port that writes down what passes, if `wanted` says so of the frame.
#[derive(Debug)]
pub struct Capture<P, W, F = fn(&[u8]) -> bool> {
    port: P,
    /// None after an error
    file: Option<Writer<W>>,
    error: Option<io::Error>,
    wanted: F,
    /// the origin of the caller's instants, counted from 1970
    origin: Duration,
    now: Instant,
}

impl<P: Port, W: Write, F: FnMut(&[u8]) -> bool> Capture<P, W, F> {
    /// Wraps `port`. `origin` is when the caller's instants begin, counted from 1970.
    ///
    /// # Errors
    /// The writer's own, for the file's header.
    pub fn new(port: P, out: W, wanted: F, origin: Duration) -> io::Result<Capture<P, W, F>> {
        let file = Some(Writer::new(out)?);
        Ok(Capture { port, file, error: None, wanted, origin, now: Instant::ZERO })
    }

    /// The time that frames are written down with from now on.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// What ended the capture early.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Gives the port back, and the file unless an error ended it.
    pub fn finish(self) -> (P, Option<Writer<W>>) {
        (self.port, self.file)
    }

    fn record(&mut self, frame: &[u8]) {
        let Some(file) = &mut self.file else { return };
        if (self.wanted)(frame) {
            let since_epoch = self.origin + (self.now - Instant::ZERO);
            if let Err(error) = file.write(since_epoch, frame) {
                self.error = Some(error);
                self.file = None;
            }
        }
    }
}

impl<P: Port, W: Write, F: FnMut(&[u8]) -> bool> Port for Capture<P, W, F> {
    fn facts(&self) -> &Facts {
        self.port.facts()
    }

    fn receive(&mut self, into: &mut Burst, limit: usize) -> usize {
        let n = self.port.receive(into, limit);
        for frame in &into[into.len() - n..] {
            self.record(frame.bytes());
        }
        n
    }

    fn waiting(&mut self) -> usize {
        self.port.waiting()
    }

    fn transmit_room(&mut self) -> usize {
        self.port.transmit_room()
    }

    fn transmit(&mut self, from: &mut Burst) -> usize {
        // frames are gone once they are taken, so those that will be are written down first
        let n = self.port.transmit_room().min(from.len());
        for frame in &from[..n] {
            self.record(frame.bytes());
        }
        self.port.transmit(from)
    }

    fn flush(&mut self) -> Outgoing {
        self.port.flush()
    }

    fn take(&mut self) -> Option<Frame> {
        self.port.take()
    }

    fn give(&mut self, frame: Frame) {
        self.port.give(frame);
    }

    fn large(&mut self) -> Option<&mut dyn Large> {
        if self.port.large().is_some() { Some(self) } else { None }
    }

    fn gather(&mut self) -> Option<&mut dyn Gather> {
        if self.port.gather().is_some() { Some(self) } else { None }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }
}

/// A super-segment is written down whole, as captures on a host with TSO show them.
impl<P: Port, W: Write, F: FnMut(&[u8]) -> bool> Large for Capture<P, W, F> {
    fn most_bytes(&mut self) -> usize {
        self.port.large().map_or(0, |large| large.most_bytes())
    }

    fn send(&mut self, header: &[u8], payload: &[&[u8]], how: &Segmentation) -> bool {
        let sent = self.port.large().is_some_and(|large| large.send(header, payload, how));
        if sent && self.file.is_some() {
            self.record(&[&[header], payload].concat().concat());
        }
        sent
    }
}

/// A gathered frame is written down whole.
impl<P: Port, W: Write, F: FnMut(&[u8]) -> bool> Gather for Capture<P, W, F> {
    fn frame(&mut self) -> Option<Frame> {
        self.port.take()
    }

    fn give_back(&mut self, frame: Frame) {
        self.port.give(frame);
    }

    fn send(&mut self, head: Frame, piece: Piece) -> Result<(), Frame> {
        let whole = self.file.is_some().then(|| [head.bytes(), piece.bytes()].concat());
        match self.port.gather() {
            Some(gather) => gather.send(head, piece)?,
            None => return Err(head),
        }
        if let Some(whole) = whole {
            self.record(&whole);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe;

    fn send(port: &mut impl Port, packet: &[u8]) {
        let mut frame = port.take().unwrap();
        assert!(frame.fill(packet));
        let mut burst = Burst::new();
        burst.push(frame);
        port.transmit(&mut burst);
    }

    fn captured(wanted: fn(&[u8]) -> bool) -> Vec<u8> {
        let (mut a, mut b) = pipe::pair(&pipe::Config::default()).unwrap();
        let (port, peer) = (a.remove(0), &mut b[0]);
        let mut capture = Capture::new(port, Vec::new(), wanted, Duration::from_secs(1_700_000_000)).unwrap();
        // an LLDP-like frame each way: bytes that no dissector calls malformed
        let frame = |last| [&[2, 0, 0, 0, 0, last, 2, 0, 0, 0, 0, 3, 0x88, 0xb5][..], &[0; 46]].concat();
        capture.set_time(Instant::from_nanos(1));
        send(&mut capture, &frame(2));
        send(peer, &frame(1));
        capture.set_time(Instant::from_nanos(2_000_000_003));
        let mut burst = Burst::new();
        assert_eq!(capture.receive(&mut burst, 64), 1);
        capture.give(burst.pop().unwrap());
        assert!(capture.error().is_none());
        capture.finish().1.unwrap().finish().unwrap()
    }

    #[test]
    fn both_directions_are_written_with_their_times() {
        let file = captured(|_| true);
        assert_eq!(file.len(), 24 + 2 * (16 + 60));
        assert_eq!(file[..4], [0x4d, 0x3c, 0xb2, 0xa1]);
        let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().unwrap());
        assert_eq!([24, 28, 32, 36].map(word), [1_700_000_000, 1, 60, 60]);
        assert_eq!([100, 104, 108, 112].map(word), [1_700_000_002, 3, 60, 60]);
        assert_eq!((file[24 + 16 + 5], file[100 + 16 + 5]), (2, 1));
    }

    #[test]
    fn a_gathered_frame_is_written_whole() {
        let (mut a, mut b) = pipe::pair(&pipe::Config::default()).unwrap();
        let mut port = a.remove(0);
        port.set_gathers(true);
        let mut capture = Capture::new(port, Vec::new(), |_: &[u8]| true, Duration::ZERO).unwrap();
        let gather = Port::gather(&mut capture).unwrap();
        let mut head = gather.frame().unwrap();
        assert!(head.fill(b"head"));
        gather.send(head, Piece::new(b"one, two".as_slice().into(), 5, 3)).unwrap();
        let mut burst = Burst::new();
        assert_eq!(b[0].receive(&mut burst, 64), 1);
        assert_eq!(burst[0].bytes(), b"headtwo");
        b[0].give(burst.pop().unwrap());
        let file = capture.finish().1.unwrap().finish().unwrap();
        assert_eq!((file.len(), &file[24 + 16..]), (24 + 16 + 7, &b"headtwo"[..]));
    }

    #[test]
    fn only_wanted_frames_are_written() {
        assert_eq!(captured(|frame| frame[5] == 1).len(), 24 + 16 + 60);
    }

    #[test]
    fn tshark_opens_it() {
        let path = std::env::temp_dir().join(format!("port-capture-{}.pcap", std::process::id()));
        std::fs::write(&path, captured(|_| true)).unwrap();
        let read = std::process::Command::new("tshark")
            .args(["-T", "fields", "-e", "frame.time_epoch", "-e", "eth.dst", "-e", "frame.len", "-r"])
            .arg(&path)
            .output();
        std::fs::remove_file(&path).unwrap();
        let read = read.expect("tshark, of Debian's package tshark");
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        let text = String::from_utf8(read.stdout).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(lines[0], ["1700000000.000000001", "02:00:00:00:00:02", "60"]);
        assert_eq!(lines[1], ["1700000002.000000003", "02:00:00:00:00:01", "60"]);
    }

    /// Takes so many bytes and then fails.
    struct Short(usize);

    impl Write for Short {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > self.0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0 -= bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_traffic() {
        let (mut a, mut b) = pipe::pair(&pipe::Config::default()).unwrap();
        let mut capture = Capture::new(a.remove(0), Short(50), |_: &[u8]| true, Duration::ZERO).unwrap();
        for _ in 0..3 {
            send(&mut capture, b"a frame of some bytes");
        }
        assert_eq!(capture.error().map(io::Error::kind), Some(io::ErrorKind::StorageFull));
        assert_eq!(b[0].receive(&mut Burst::new(), 64), 3);
        assert!(capture.finish().1.is_none());
    }
}

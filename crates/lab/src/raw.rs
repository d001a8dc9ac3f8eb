//! Raw Ethernet frames at one end of the wire.
//!
//! Frames go out through an AF_PACKET socket. They come in through dumpcap, since the kernel takes the VLAN tag off
//! before a packet socket sees a frame, and libpcap puts it back. Where no tags are looked at but answers are wanted at once,
//! [`Direct`] has both directions in one socket.

use crate::{Host, Process, frame, process::wait_until};
use anyhow::{Context as _, Result, ensure};
use smoltcp::{
    phy::{Device as _, Medium, RawSocket, RxToken as _, TxToken as _, wait},
    time::{Duration as Span, Instant as Timestamp},
};
use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    time::{Duration, Instant},
};

/// Sends and receives frames at a host's interface.
#[derive(Debug)]
pub struct Raw {
    outlet: Outlet,
    sent: Vec<Vec<u8>>,
    sniffer: Sniffer,
}

impl Raw {
    /// Opens the interface of `host`; from now on no incoming frame is missed.
    pub fn open(host: &Host) -> Result<Self> {
        // dumpcap knows no filter for the direction: what this host sends is told by its address, or below by its content
        let mac = host.mac()?.map(|octet| format!("{octet:02x}")).join(":");
        let sniffer = Sniffer::start(host, &["-f", &format!("not ether src {mac}")])?;
        Ok(Self { outlet: Outlet::of(host), sent: Vec::new(), sniffer })
    }

    /// Puts one frame on the wire as it is.
    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        self.outlet.send(frame)?;
        self.sent.push(frame.to_vec());
        Ok(())
    }

    /// The first incoming frame not yet handed out for which `wanted` holds; frames before it are passed over.
    pub fn receive(&mut self, timeout: Duration, mut wanted: impl FnMut(&[u8]) -> bool) -> Option<Vec<u8>> {
        let mut found = None;
        wait_until(
            || {
                let frames = self.sniffer.frames();
                while found.is_none() && self.sniffer.taken < frames.len() {
                    let frame = &frames[self.sniffer.taken];
                    self.sniffer.taken += 1;
                    found = (!self.sent.contains(frame) && wanted(frame)).then(|| frame.clone());
                }
                found.is_some()
            },
            timeout,
        );
        found
    }
}

/// Sends frames at a host's interface.
#[derive(Debug)]
pub(crate) struct Outlet {
    // the socket is not Send: it lives on a thread of its own, in the host, which ends with this end of the channel
    out: SyncSender<Vec<u8>>,
    done: Receiver<()>,
}

impl Outlet {
    pub(crate) fn of(host: &Host) -> Outlet {
        let (out, frames) = sync_channel::<Vec<u8>>(0);
        let (report, done) = sync_channel(0);
        let interface = host.interface();
        let enter = host.entrance();
        std::thread::spawn(move || {
            let mut frames = frames.into_iter().peekable();
            // who sends nothing has no socket, to which the kernel would give what comes
            if frames.peek().is_none() {
                return;
            }
            enter();
            let mut socket = RawSocket::new(interface, Medium::Ethernet).expect("root may open an AF_PACKET socket");
            for frame in frames {
                let token = socket.transmit(Timestamp::ZERO).expect("a raw socket always has a token");
                token.consume(frame.len(), |buffer| buffer.copy_from_slice(&frame));
                if report.send(()).is_err() {
                    return;
                }
            }
        });
        Outlet { out, done }
    }

    /// Puts one frame on the wire as it is.
    pub(crate) fn send(&self, frame: &[u8]) -> Result<()> {
        self.out.send(frame.to_vec()).ok().context("the sending thread has ended")?;
        self.done.recv().context("the kernel refused the frame")
    }
}

/// Sends and receives frames without VLAN tags through one socket of the calling thread, which must be inside the host (see
/// [`Host::inside`]). What this socket sends does not come back to it.
#[derive(Debug)]
pub struct Direct {
    socket: RawSocket,
}

impl Direct {
    /// Opens an interface of the host that this thread is in.
    pub fn open(interface: &str) -> Result<Self> {
        Ok(Self { socket: RawSocket::new(interface, Medium::Ethernet).context("an AF_PACKET socket")? })
    }

    /// Puts one frame on the wire as it is; where the interface's queue is full it is lost.
    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        let token = self.socket.transmit(Timestamp::ZERO).context("a raw socket always has a token")?;
        token.consume(frame.len(), |buffer| buffer.copy_from_slice(frame));
        Ok(())
    }

    /// What `read` makes of the first frame of which it makes something; frames before it are passed over.
    pub fn receive<T>(&mut self, timeout: Duration, mut read: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let end = Instant::now() + timeout;
        loop {
            while let Some((token, _)) = self.socket.receive(Timestamp::ZERO) {
                if let Some(found) = token.consume(|frame| read(frame)) {
                    return Some(found);
                }
            }
            let left = end.checked_duration_since(Instant::now())?;
            let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
            wait(self.socket.as_raw_fd(), Some(Span::from_millis(millis))).ok()?;
        }
    }
}

/// Writes the frames at a host's interface to a file until dropped.
#[derive(Debug)]
pub(crate) struct Sniffer {
    process: Process,
    file: PathBuf,
    /// frames handed out
    taken: usize,
    _dir: tempfile::TempDir,
}

/// Longer than the kernel keeps a block of frames before dumpcap sees it.
const SETTLE: Duration = Duration::from_millis(700);
/// How long dumpcap may take to write what the kernel has for it.
const BEHIND_MOST: Duration = Duration::from_secs(60);
/// What tells how far it has come, of nobody's hardware address.
pub(crate) const MARK_ETHERTYPE: u16 = 0x88b5;
const MARK_FROM: [u8; 6] = [2, 0, 0, 0, 0x88, 0xb5];

impl Sniffer {
    pub(crate) fn start(host: &Host, filter: &[&str]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("simoom-raw-").tempdir()?;
        let file = dir.path().join("frames.pcap");
        let path = file.to_str().context("a temporary path in UTF-8")?;
        // -P: pcap, not pcapng
        let mut process =
            host.spawn(&[&["dumpcap", "-q", "-P", "-i", host.interface(), "-w", path], filter].concat())?;
        process.wait_until(|| fs::metadata(&file).is_ok_and(|meta| meta.len() >= 24), Duration::from_secs(10))?;
        Ok(Self { process, file, taken: 0, _dir: dir })
    }

    fn frames(&self) -> Vec<Vec<u8>> {
        read_pcap(&fs::read(&self.file).unwrap_or_default()).unwrap_or_default()
    }

    /// Sends a frame of [`MARK_ETHERTYPE`] from the host of the capture, and waits until it is in the file: then all is there that the
    /// kernel had for dumpcap before.
    fn catch_up(&self, outlet: &Outlet) -> Result<()> {
        // the folder has a name of its own
        let mark = frame::ethernet([0xff; 6], MARK_FROM, MARK_ETHERTYPE, self.file.as_os_str().as_encoded_bytes());
        let (end, mut at) = (Instant::now() + BEHIND_MOST, PCAP_HEADER_BYTES as u64);
        let mut is_there = || {
            let mut new = Vec::new();
            // what cannot be read is read the next time
            if let Ok(mut file) = File::open(&self.file)
                && file.seek(SeekFrom::Start(at)).is_ok()
            {
                let _ = file.read_to_end(&mut new);
            }
            let mut rest = &new[..];
            while let Some((frame, after)) = first_frame(rest) {
                at += (rest.len() - after.len()) as u64;
                rest = after;
                if frame.starts_with(&mark) {
                    return true;
                }
            }
            false
        };
        // again and again: one that finds a full queue is lost
        loop {
            outlet.send(&mark)?;
            if wait_until(&mut is_there, Duration::from_secs(1)) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "dumpcap is more than {BEHIND_MOST:?} behind: {}", self.process.log());
        }
    }

    /// Waits until no frame has come for a while, ends the capture and gives its file.
    pub(crate) fn finish(&mut self, outlet: &Outlet) -> Result<&Path> {
        self.catch_up(outlet)?;
        let length = || fs::metadata(&self.file).map_or(0, |meta| meta.len());
        let (mut last, mut since) = (length(), Instant::now());
        wait_until(
            || {
                let now = length();
                if now != last {
                    (last, since) = (now, Instant::now());
                }
                since.elapsed() > SETTLE
            },
            Duration::from_secs(30),
        );
        self.process.stop();
        Ok(&self.file)
    }
}

const PCAP_HEADER_BYTES: usize = 24;

/// The first frame of what follows a pcap file's header, and what follows it, if it is there as a whole.
fn first_frame(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, after) = records.split_at_checked(16)?;
    let length = u32::from_ne_bytes(head[8..12].try_into().ok()?) as usize;
    after.split_at_checked(length)
}

/// The whole frames of a pcap file in this machine's byte order; one being written at the end is left out.
pub fn read_pcap(file: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (header, mut rest) = file.split_at_checked(PCAP_HEADER_BYTES).context("no pcap header")?;
    let magic = u32::from_ne_bytes(header[..4].try_into()?);
    ensure!([0xa1b2_c3d4, 0xa1b2_3c4d].contains(&magic), "not a pcap file of this byte order");
    let mut frames = Vec::new();
    while let Some((frame, after)) = first_frame(rest) {
        frames.push(frame.to_vec());
        rest = after;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_growing_file_gives_its_whole_frames(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..5), cut in 0_usize..500) {
            let mut file = [&0xa1b2_c3d4_u32.to_ne_bytes()[..], &[0; 20]].concat();
            let mut ends = Vec::new();
            for frame in &frames {
                let length = u32::try_from(frame.len()).unwrap().to_ne_bytes();
                file.extend([&[0; 8][..], &length, &length, frame].concat());
                ends.push(file.len());
            }
            file.truncate(cut);
            let whole = ends.iter().filter(|end| **end <= file.len()).count();
            match read_pcap(&file) {
                Ok(read) => prop_assert_eq!(&read[..], &frames[..whole]),
                Err(_) => prop_assert!(file.len() < 24),
            }
        }
    }
}

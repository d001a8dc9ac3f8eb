//! Asks one server many questions, with many of them on the way at a time.

use crate::zonegen::Question;
use anyhow::{Context as _, Result, bail};
use std::{
    collections::HashMap,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

/// Datagrams on the way at a time; a server's receive buffer holds many more.
const UDP_WINDOW: usize = 64;
/// Questions on a connection at a time: many, since Nagle's algorithm and a delayed acknowledgement cost each window 40 ms.
const TCP_WINDOW: usize = 512;
/// How long to wait for the window's answers before asking again what is missing, twice as long each time: a datagram may be lost, a
/// connection loses nothing and is only slow, and any server may be kept from its processor.
const UDP_PATIENCE: Duration = Duration::from_millis(700);
const TCP_PATIENCE: Duration = Duration::from_secs(8);
const ATTEMPTS: u32 = 6;

/// Over which transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// One datagram each way.
    Udp,
    /// Pipelined over one connection (RFC 7766 6.2.1.1).
    Tcp,
}

/// Asks every question; the answer to question `n` is at `n`, None if none came after several attempts.
pub fn ask(server: SocketAddr, transport: Transport, questions: &[Question]) -> Result<Vec<Option<Vec<u8>>>> {
    let mut answers = vec![None; questions.len()];
    let mut channel = Channel::open(server, transport)?;
    let size = if transport == Transport::Udp { UDP_WINDOW } else { TCP_WINDOW };
    for start in (0..questions.len()).step_by(size) {
        let window = start..questions.len().min(start + size);
        for attempt in 0..ATTEMPTS {
            let missing: HashMap<u16, usize> =
                window.clone().filter(|&index| answers[index].is_none()).map(|index| (id(index), index)).collect();
            if missing.is_empty() {
                break;
            }
            if attempt > 0 {
                // late answers to the earlier attempt go with the old socket
                channel = Channel::open(server, transport)?;
            }
            let mut left = missing.len();
            // a server that closes the connection leaves the rest to the next attempt
            let _ = channel.exchange(&missing, questions, 1 << attempt, |index, answer| {
                if answers[index].is_none() {
                    answers[index] = Some(answer);
                    left -= 1;
                }
                left == 0
            });
        }
    }
    Ok(answers)
}

fn id(index: usize) -> u16 {
    (index as u16).wrapping_mul(40_503)
}

enum Channel {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Channel {
    fn open(server: SocketAddr, transport: Transport) -> Result<Self> {
        match transport {
            Transport::Udp => {
                let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
                socket.connect(server)?;
                Ok(Self::Udp(socket))
            }
            Transport::Tcp => {
                let stream = TcpStream::connect_timeout(&server, Duration::from_secs(20))
                    .with_context(|| format!("cannot connect to {server}"))?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    /// Sends the questions in `missing` and hands each answer to `take` until that says enough, or so many times the patience is over.
    fn exchange(
        &mut self,
        missing: &HashMap<u16, usize>,
        questions: &[Question],
        times: u32,
        mut take: impl FnMut(usize, Vec<u8>) -> bool,
    ) -> Result<()> {
        let end = Instant::now() + times * if matches!(self, Self::Udp(_)) { UDP_PATIENCE } else { TCP_PATIENCE };
        let mut burst = Vec::new();
        for (&id, &index) in missing {
            let wire = questions[index].wire(id);
            match self {
                Self::Udp(socket) => drop(socket.send(&wire)?),
                Self::Tcp(_) => {
                    burst.extend(u16::try_from(wire.len())?.to_be_bytes());
                    burst.extend(wire);
                }
            }
        }
        if let Self::Tcp(stream) = self {
            stream.write_all(&burst)?;
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let answer = match self.read(left) {
                Ok(answer) => answer,
                Err(error) => match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
                    Some(ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(()),
                    _ => return Err(error),
                },
            };
            let Some(head) = answer.first_chunk::<2>() else { continue };
            if let Some(&index) = missing.get(&u16::from_be_bytes(*head))
                && take(index, answer)
            {
                return Ok(());
            }
        }
    }

    fn read(&mut self, patience: Duration) -> Result<Vec<u8>> {
        match self {
            Self::Udp(socket) => {
                socket.set_read_timeout(Some(patience))?;
                let mut answer = vec![0; 65_535];
                let length = socket.recv(&mut answer)?;
                answer.truncate(length);
                Ok(answer)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(patience))?;
                let mut length = [0; 2];
                stream.read_exact(&mut length)?;
                let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut answer)?;
                if answer.is_empty() {
                    bail!("an empty message over TCP");
                }
                Ok(answer)
            }
        }
    }
}

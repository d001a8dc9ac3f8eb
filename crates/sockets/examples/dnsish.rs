//! The least that looks like a name server: answers every A question with one address. It measures the engine without a
//! name server's own work.
//!
//! usage: dnsish ADDR:PORT [THREADS [spin|adaptive|block]]

use app::{Datagram, Listener, Service};
use base::Instant;
use sockets::{Config, Endpoint, Engine, Idle, Transport};
use std::io;

struct Fixed;

impl Service for Fixed {
    fn datagrams(&mut self, _: Instant, _: Listener, burst: &mut [Datagram<'_>]) {
        for datagram in burst {
            if let Some(bytes) = answer(datagram) {
                datagram.reply(bytes);
            }
        }
    }
}

/// Writes the answer over the question; its bytes.
fn answer(datagram: &mut Datagram<'_>) -> Option<usize> {
    const HEADER_BYTES: usize = 12;
    let question = datagram.question();
    // a query (QR and opcode 0) with one question
    if question.len() < HEADER_BYTES || question[2] & 0xf8 != 0 || question[4..6] != [0, 1] {
        return None;
    }
    let mut end = HEADER_BYTES;
    while *question.get(end)? != 0 {
        end += 1 + usize::from(question[end]);
    }
    end += 5;
    // the name at offset 12, A, IN, an hour, four bytes
    const RECORD: [u8; 16] = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4, 198, 18, 0, 6];
    if question.len() < end || datagram.capacity() < end + RECORD.len() {
        return None;
    }
    let buffer = datagram.buffer();
    buffer[2] = 0x84 | buffer[2] & 1;
    buffer[3] = 0;
    buffer[4..HEADER_BYTES].copy_from_slice(&[0, 1, 0, 1, 0, 0, 0, 0]);
    buffer[end..end + RECORD.len()].copy_from_slice(&RECORD);
    Some(end + RECORD.len())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: dnsish ADDR:PORT [THREADS [IDLE]]")?.parse()?;
    let threads = arguments.next().map_or(Ok(1), |n| n.parse())?;
    let idle = match arguments.next().as_deref() {
        Some("spin") => Idle::Spin,
        Some("block") => Idle::Block,
        _ => Idle::Adaptive,
    };
    let endpoint =
        Endpoint { listener: Listener(0), address, transport: Transport::Udp, window_bytes: None, backlog: None };
    let running =
        Engine::bind(Config { endpoints: vec![endpoint], threads, idle, ..Config::default() })?.start(|_| Fixed)?;
    println!("answering at {}; Enter or the end of input stops", running.addresses()[0]);
    if io::stdin().read_line(&mut String::new())? == 0 {
        // no terminal: run until killed
        loop {
            std::thread::park();
        }
    }
    running.stop();
    Ok(())
}

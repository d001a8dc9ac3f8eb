//! A bare reflector over our own port: every datagram to port 53 of every local address goes back with its MAC addresses,
//! IPv4 addresses and ports swapped. No server on this port can answer more than this sends back.
//!
//! usage: reflect INTERFACE [auto|zerocopy|copy|generic]      until killed; sleeps in poll() when idle

use base::Burst;
use port::{Outgoing, Port};
use port_xdp::{Listener, Mode, OpenConfig, XdpPort, open};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, Ipv4Addr};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let interface = arguments.next().ok_or("usage: reflect INTERFACE [auto|zerocopy|copy|generic]")?;
    let mut config = OpenConfig::new(&interface);
    config.mode = match arguments.next().as_deref() {
        None | Some("auto") => Mode::Auto,
        Some("zerocopy") => Mode::Zerocopy,
        Some("copy") => Mode::Copy,
        Some("generic") => Mode::Generic,
        Some(other) => return Err(format!("no mode {other}").into()),
    };
    config.listeners = vec![Listener { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), protocol: 17, port: 53 }];
    let opened = open(&config)?;
    eprintln!("{}", opened.got);
    let threads = opened.ports.into_iter().map(|port| std::thread::spawn(move || reflect(port)));
    for thread in threads.collect::<Vec<_>>() {
        thread.join().map_err(|_| "a thread panicked")?;
    }
    Ok(())
}

fn reflect(mut port: XdpPort) {
    let mut burst = Burst::new();
    loop {
        let room = port.transmit_room();
        let got = port.receive(&mut burst, room);
        for frame in &mut burst {
            swap(frame.bytes_mut());
        }
        port.transmit(&mut burst);
        let outgoing = port.flush();
        if got == 0 && outgoing != Outgoing::Waiting {
            let Some(descriptor) = port.descriptor() else { continue };
            let wait = Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&wait));
        }
    }
}

/// MAC addresses at 0 and 6, IPv4 addresses at 26 and 30, ports at 34 and 36.
fn swap(packet: &mut [u8]) {
    if packet.len() < 42 {
        return;
    }
    for (at, len) in [(0, 6), (26, 4), (34, 2)] {
        let (one, two) = packet[at..at + 2 * len].split_at_mut(len);
        one.swap_with_slice(two);
    }
}

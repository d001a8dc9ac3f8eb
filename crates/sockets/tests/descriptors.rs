//! Descriptors run out: the listener rests instead of spinning, and goes on when there are some again. A program of its
//! own, since it changes the process's limit.

mod common;

use common::{PATIENCE, config, echo, start, total, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sockets::Transport;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

#[test]
fn a_listener_without_descriptors_rests_and_recovers() {
    let (make, _events) = echo();
    let (running, address) = start(config("127.0.0.1:0", Transport::Tcp), make);
    // made before the limit falls, connected after
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let before = getrlimit(Resource::Nofile);
    let highest = u64::try_from(socket.as_raw_fd()).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(highest + 1), maximum: before.maximum }).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut client: TcpStream = socket.into();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"waiting").unwrap();
    until("two failures", || total(&running, |c| c.accept_errors.get()) >= 2);
    let (begun, cycles) = (Instant::now(), total(&running, |c| c.cycles.get()));
    std::thread::sleep(Duration::from_millis(100));
    let made = total(&running, |c| c.cycles.get()) - cycles;
    // a rest of 100 ms between attempts, a few cycles each
    let attempts = 1 + begun.elapsed().as_millis() as u64 / 100;
    assert!(made <= 10 * attempts, "{made} cycles with {attempts} attempts");
    setrlimit(Resource::Nofile, before).unwrap();
    let mut answer = [0; 7];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"waiting");
}

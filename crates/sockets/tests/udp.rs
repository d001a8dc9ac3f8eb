//! The datagram half over real sockets on loopback.

mod common;

use base::counter::Report;
use common::{PATIENCE, Reverse, config, endpoint, start, total, until};
use sockets::{BindError, Config, Engine, Idle, Transport};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

fn client(bind: &str, to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(bind).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // connected: an answer from another address than the one asked would not be received
    socket.connect(to).unwrap();
    socket
}

fn ask(socket: &UdpSocket, question: &[u8]) -> Vec<u8> {
    socket.send(question).unwrap();
    let mut answer = vec![0; 65536];
    let n = socket.recv(&mut answer).expect("an answer");
    answer.truncate(n);
    answer
}

#[test]
fn answers_over_both_families() {
    for (bind, from) in [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::1]:0")] {
        let (_running, address) = start(config(bind, Transport::Udp), |_| Reverse);
        assert_eq!(ask(&client(from, address), b"stressed"), b"desserts");
    }
}

#[test]
fn a_wildcard_answers_from_the_address_asked() {
    let (_running, address) = start(config("0.0.0.0:0", Transport::Udp), |_| Reverse);
    for ip in ["127.0.0.1", "127.0.0.2", "127.1.2.3"] {
        let to = SocketAddr::new(ip.parse().unwrap(), address.port());
        assert_eq!(ask(&client("127.0.0.9:0", to), b"live"), b"evil", "{ip}");
    }
    let (_running, address) = start(config("[::]:0", Transport::Udp), |_| Reverse);
    assert_eq!(ask(&client("[::1]:0", SocketAddr::new("::1".parse().unwrap(), address.port())), b"live"), b"evil");
}

/// A network namespace of the calling thread's and those that it starts.
#[allow(deprecated, reason = "what replaces it is for flags that are not used here, and is no function for this test")]
fn own_network() {
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).expect("a namespace, which needs root");
}

/// Runs ip(8) where the calling thread is; what it says.
fn ip(arguments: &str) -> String {
    let ran = std::process::Command::new("ip").args(arguments.split_ascii_whitespace()).output().expect("ip(8)");
    assert!(ran.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// Needs root.
#[test]
fn a_link_local_address_answers_who_asks_from_another_one() {
    let (tell, told) = std::sync::mpsc::channel();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        own_network();
        tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        is_over.recv().unwrap();
        for line in ["link set near up", "addr add fe80::1/64 dev near nodad", "route add fd00::/64 dev near"] {
            ip(line);
        }
        let (running, address) = start(config("[::]:0", Transport::Udp), |_| Reverse);
        tell.send(address.port().into()).unwrap();
        is_over.recv().unwrap();
        assert_eq!(total(&running, |c| c.dropped_send_refused.get()), 0);
    });
    let asker = std::thread::spawn(move || {
        own_network();
        let its = told.recv().unwrap();
        ip(&format!("link add far type veth peer name near netns {its}"));
        ip("link set far up");
        ip("addr add fd00::2/64 dev far nodad");
        over.send(()).unwrap();
        let port = told.recv().unwrap();
        let link = ip("-oneline link show far");
        let index = link.split(':').next().unwrap();
        let socket = client("[fd00::2]:0", format!("[fe80::1%{index}]:{port}").parse().unwrap());
        assert_eq!(ask(&socket, b"live"), b"evil");
        over.send(()).unwrap();
    });
    asker.join().unwrap();
    server.join().unwrap();
}

#[test]
fn both_wildcards_share_a_port() {
    // a port that is free for the one may be somebody else's for the other
    let both = |_| {
        let first = Engine::bind(config("0.0.0.0:0", Transport::Udp)).unwrap();
        let port = first.addresses()[0].port();
        match Engine::bind(config(&format!("[::]:{port}"), Transport::Udp)) {
            Err(BindError::InUse { .. }) => false,
            bound => bound.map(drop).is_ok(),
        }
    };
    assert!((0..20).any(both));
}

#[test]
fn threads_share_a_port_and_every_datagram_is_answered() {
    let (running, address) = start(Config { threads: 3, ..config("127.0.0.1:0", Transport::Udp) }, |_| Reverse);
    for n in 0..200 {
        // a socket each, so that the kernel's hash spreads them
        assert_eq!(ask(&client("127.0.0.1:0", address), format!("{n:03}").as_bytes()).len(), 3);
    }
    assert_eq!(total(&running, |c| c.received.get()), 200);
    // counted once the call has returned, which may be after the peer has the answer
    until("the count", || total(&running, |c| c.sent.get()) == 200);
    assert!(running.counters().filter(|c| c.received.get() > 0).count() > 1);
}

#[test]
fn bursts_lose_nothing_and_keep_their_order() {
    for batch in [1, 3, 64] {
        let (running, address) = start(Config { batch, ..config("0.0.0.0:0", Transport::Udp) }, |_| Reverse);
        let client = client("127.0.0.1:0", SocketAddr::new("127.0.0.1".parse().unwrap(), address.port()));
        for n in 0..100u8 {
            client.send(&[n, b' ', n]).unwrap();
        }
        let mut answer = [0; 16];
        for n in 0..100u8 {
            assert_eq!(client.recv(&mut answer).unwrap(), 3);
            assert_eq!(answer[0], n);
        }
        assert!(total(&running, |c| c.batches.get()) >= 100 / batch as u64);
    }
}

#[test]
fn large_answers_arrive_and_oversize_questions_are_counted() {
    let (running, address) = start(config("127.0.0.1:0", Transport::Udp), |_| Reverse);
    let client = client("127.0.0.1:0", address);
    assert_eq!(ask(&client, b"grow 4096"), vec![b'x'; 4096]);
    assert_eq!(ask(&client, &vec![b'q'; 4096]).len(), 4096);
    client.send(&vec![b'q'; 4097]).unwrap();
    client.send(b"silence").unwrap();
    until("both counts", || {
        total(&running, |c| c.dropped_oversize.get()) == 1 && total(&running, |c| c.unanswered.get()) == 1
    });
    // and an empty datagram is a question like others
    assert_eq!(ask(&client, b""), b"");
}

#[test]
fn congestion_bits_are_delivered() {
    for (bind, v6) in [("127.0.0.1:0", false), ("[::1]:0", true)] {
        let (_running, address) = start(Config { ecn: true, ..config(bind, Transport::Udp) }, |_| Reverse);
        let client = client(bind, address);
        for bits in [0u32, 1, 2, 3] {
            let reference = socket2::SockRef::from(&client);
            if v6 { reference.set_tclass_v6(bits) } else { reference.set_tos_v4(bits) }.unwrap();
            assert_eq!(ask(&client, b"ecn"), [b'0' + bits as u8]);
        }
    }
}

#[test]
fn busy_polling_is_had_or_its_capability_is_named() {
    for idle in [Idle::Block, Idle::Spin] {
        let config = Config { busy_poll_us: 50, idle, threads: 2, ..config("127.0.0.1:0", Transport::Udp) };
        match Engine::bind(config) {
            Ok(engine) => {
                let address = engine.addresses()[0];
                let _running = engine.start(|_| Reverse).unwrap();
                for _ in 0..100 {
                    assert_eq!(ask(&client("127.0.0.1:0", address), b"stressed"), b"desserts");
                }
            }
            Err(error) => {
                assert!(!rustix::process::geteuid().is_root(), "{error}");
                assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
            }
        }
    }
    // what is off is no reason to complain
    assert!(Engine::bind(config("127.0.0.1:0", Transport::Udp)).unwrap().polls_in_epoll());
}

/// Answers nothing while the test holds the lock.
struct Gated(Arc<Mutex<()>>);

impl app::Service for Gated {
    fn datagrams(&mut self, _: base::Instant, _: app::Listener, _: &mut [app::Datagram<'_>]) {
        drop(self.0.lock());
    }
}

#[test]
fn what_the_kernel_has_no_room_for_is_counted() {
    const SENT: u64 = 3_000;
    let gate = Arc::new(Mutex::new(()));
    let theirs = gate.clone();
    let small = Config { receive_buffer_bytes: 1 << 16, ..config("127.0.0.1:0", Transport::Udp) };
    let (running, address) = start(small, move |_| Gated(theirs.clone()));
    let unqueued = || {
        let mut count = None;
        running.unqueued().report(&mut |figure| count = Some(figure.value));
        count.unwrap()
    };
    let client = client("127.0.0.1:0", address);
    let held = gate.lock().unwrap();
    (0..SENT).for_each(|_| assert_eq!(client.send(&[7; 512]).unwrap(), 512));
    let dropped = unqueued();
    assert!(dropped > SENT / 2, "{dropped} dropped");
    drop(held);
    until("the rest", || total(&running, |c| c.received.get()) == SENT - dropped);
    assert_eq!(unqueued(), dropped);
}

#[test]
fn the_largest_answer_is_the_largest_that_leaves() {
    for (local, most) in [("127.0.0.1:0", 65_507), ("[::1]:0", 65_527)] {
        let (running, address) = start(Config { datagram_bytes: 65_535, ..config(local, Transport::Udp) }, |_| Reverse);
        let answer = ask(&client(local, address), b"grow 65535");
        assert_eq!((answer.len(), total(&running, |c| c.dropped_send_refused.get())), (most, 0));
    }
}

#[test]
fn a_panic_is_contained_and_counted() {
    let (running, address) = start(Config { threads: 2, ..config("127.0.0.1:0", Transport::Udp) }, |_| Reverse);
    let client = client("127.0.0.1:0", address);
    for round in 1..=2 {
        client.send(b"panic").unwrap();
        until("the panic", || total(&running, |c| c.panics.get()) == round);
        assert_eq!(ask(&client, b"drawer"), b"reward");
    }
    assert_eq!(total(&running, |c| c.dropped_panic.get()), 2);
}

/// A process that another test starts has a closed socket until it becomes the program that it is to be.
fn until_free(address: std::net::SocketAddr) {
    until("a free port", || UdpSocket::bind(address).is_ok());
}

#[test]
fn a_sleeping_engine_sleeps_wakes_and_stops() {
    // an address that no other test has, whose port nobody takes when it is free again
    let (running, address) = start(config("127.0.0.75:0", Transport::Udp), |_| Reverse);
    ask(&client("127.0.0.1:0", address), b"x");
    until("sleep", || total(&running, |c| c.sleeps.get()) > 0);
    // an idle thread makes no cycles of its own; a few may end the last burst
    let mut cycles = 0;
    until("rest", || {
        cycles = total(&running, |c| c.cycles.get());
        std::thread::sleep(std::time::Duration::from_millis(50));
        total(&running, |c| c.cycles.get()) == cycles
    });
    running.wake();
    until("a cycle", || total(&running, |c| c.cycles.get()) > cycles);
    running.stop();
    until_free(address);
}

#[test]
fn bad_input_says_what_and_binds_nothing() {
    let holder = UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    // of an address that no other test has, so that it stays free
    let free = UdpSocket::bind("127.0.0.76:0").unwrap().local_addr().unwrap();
    for threads in [1, 2] {
        until_free(free);
        let endpoints = vec![endpoint(&free.to_string(), Transport::Udp), endpoint(&taken.to_string(), Transport::Udp)];
        let error = Engine::bind(Config { endpoints, threads, ..Config::default() }).unwrap_err();
        assert!(matches!(error, BindError::InUse { address, .. } if address == taken), "{error}");
    }
    until_free(free);
    let twice = vec![endpoint("127.0.0.1:5300", Transport::Udp); 2];
    let error = Engine::bind(Config { endpoints: twice, ..Config::default() }).unwrap_err();
    assert!(error.to_string().starts_with("UDP 127.0.0.1:5300: listed twice"), "{error}");
    let error = Engine::bind(config("192.0.2.1:5300", Transport::Udp)).unwrap_err();
    assert!(matches!(error, BindError::NoSuchAddress { .. }), "{error}");
    for wrong in [
        Config { endpoints: Vec::new(), ..Config::default() },
        Config { threads: 0, ..config("127.0.0.1:0", Transport::Udp) },
        Config { batch: 65, ..config("127.0.0.1:0", Transport::Udp) },
        Config { datagram_bytes: 100, ..config("127.0.0.1:0", Transport::Udp) },
    ] {
        assert!(matches!(Engine::bind(wrong), Err(BindError::Config(_))));
    }
}

#[test]
fn two_engines_with_several_threads_do_not_share_a_port() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let first = Engine::bind(Config { threads: 2, ..config("127.0.0.1:0", transport) }).unwrap();
        let address = first.addresses()[0].to_string();
        let error = Engine::bind(Config { threads: 2, ..config(&address, transport) }).unwrap_err();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
    }
}

#[test]
fn a_processor_that_does_not_exist_is_an_error() {
    let engine = Engine::bind(Config { cpus: vec![1 << 20], ..config("127.0.0.1:0", Transport::Udp) }).unwrap();
    assert!(engine.start(|_| Reverse).is_err());
}

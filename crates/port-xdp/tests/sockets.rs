//! Sockets that are made anew: what that costs, and what becomes of the port where there is no other.

#[allow(dead_code, reason = "the other tests use the rest")]
mod common;

use common::*;
use port::Port;
use port_xdp::{device::Device, open};
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn a_rebuilt_socket_works_and_loses_no_frame() {
    let lab = Lab::new("rebuild", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    for _ in 0..3 {
        lab.is_served(port, 50);
        common::rebuild(port).unwrap();
        assert_eq!(port.free_frames(), free);
    }
    // one that arrived and was not yet received is lost with the socket, its frame is not
    let client = lab.client(|| {
        let socket = UdpSocket::bind("198.18.0.2:0").unwrap();
        socket.send_to(b"lost", "198.18.0.1:53").unwrap();
    });
    client.join().unwrap();
    eventually("nothing was taken", || opened.handle.counts().get("steering_taken_total", "") == Some(151));
    common::rebuild(port).unwrap();
    assert_eq!(port.free_frames(), free);
    assert!(port.stats().rebuilds.get() >= 4);
    assert_eq!((port.stats().lost_received.get(), port.stats().lost_unsent.get()), (1, 0));
    lab.is_served(port, 50);
}

#[test]
fn a_socket_is_rebuilt_again_and_again_without_privileges() {
    let lab = Lab::new("unprivileged", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    let outcomes: Vec<_> = without_privileges(rustix::thread::CapabilitySet::IPC_LOCK, || {
        (0..4).map(|_| common::rebuild(port).map_err(|e| e.to_string())).collect()
    });
    assert_eq!(outcomes, [const { Ok::<(), String>(()) }; 4]);
    assert_eq!(port.free_frames(), free);
    lab.is_served(port, 20);
}

/// Does `work` with no capability but this one.
fn without_privileges<T>(but: rustix::thread::CapabilitySet, work: impl FnOnce() -> T) -> T {
    // this thread's only
    let kept = rustix::thread::capabilities(None).unwrap();
    let sets = rustix::thread::CapabilitySets { effective: kept.effective & but, ..kept };
    rustix::thread::set_capabilities(None, sets).unwrap();
    let done = work();
    rustix::thread::set_capabilities(None, kept).unwrap();
    done
}

fn gauge(port: &port_xdp::XdpPort, name: &str) -> u64 {
    let mut found = None;
    base::counter::Report::report(&**port.stats(), &mut |figure| {
        if figure.name == name {
            found = Some(figure.value);
        }
    });
    found.unwrap()
}

#[test]
fn a_port_keeps_its_socket_when_there_is_no_other_and_says_so() {
    let lab = Lab::new("last", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    let spares = gauge(port, "xdp_spare_sockets");
    assert!(spares > 0);
    let refused = without_privileges(rustix::thread::CapabilitySet::IPC_LOCK, || {
        (0..spares).for_each(|_| common::rebuild(port).unwrap());
        common::rebuild(port).unwrap_err()
    });
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    let why = "none is left of those opened in advance, and opening another: Operation not permitted (os error 1)";
    assert_eq!(port.stats().trouble(), Some(port_xdp::Trouble { serves: true, why: why.into() }));
    assert_eq!((gauge(port, "xdp_spare_sockets"), gauge(port, "xdp_queue_without_socket")), (0, 0));
    lab.is_served(port, 20);
    // where others can be opened it has one more each time
    common::rebuild(port).unwrap();
    assert_eq!((port.stats().trouble(), gauge(port, "xdp_spare_sockets")), (None, 1));
    assert_eq!(port.free_frames(), free);
}

#[test]
fn nobody_waits_for_a_socket_by_which_nothing_leaves_though_there_is_no_other() {
    let lab = Lab::new("kept", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    let broadcast = ethernet([0xff; 6], None, 0x88b5, &[0; 50]);
    without_privileges(rustix::thread::CapabilitySet::IPC_LOCK, || {
        (0..gauge(port, "xdp_spare_sockets")).for_each(|_| common::rebuild(port).unwrap());
    });
    lab.is_served(port, 20);
    sh("ip", &["link", "set", "vs", "down"]);
    send(port, &broadcast);
    assert_eq!((port.outstanding(), port.stats().cut_off.get()), (1, 0));
    let refused = without_privileges(rustix::thread::CapabilitySet::IPC_LOCK, || port.rebuild().unwrap_err());
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    // more than the ring has room for
    for n in 1..=10_000 {
        assert!(port.transmit_room() > 0);
        send(port, &broadcast);
        assert_eq!((port.outstanding(), port.stats().cut_off.get()), (1, n));
    }
    // until something leaves again
    sh("ip", &["link", "set", "vs", "up"]);
    eventually("nothing leaves", || {
        port.flush();
        port.outstanding() == 0
    });
    lab.is_served(port, 20);
}

#[test]
fn what_the_kernel_refuses_costs_no_socket() {
    if is_child() {
        let mut opened = open(&config(&[dns()])).unwrap();
        let port = &mut opened.ports[0];
        let spares = gauge(port, "xdp_spare_sockets");
        without_privileges(rustix::thread::CapabilitySet::IPC_LOCK, || {
            // no room for rings: the one that there is goes on
            let (limited, before) =
                (rustix::process::Resource::As, rustix::process::getrlimit(rustix::process::Resource::As));
            let pages: u64 =
                std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
            let limit = rustix::process::Rlimit { current: Some(pages * 4096 + 16_384), ..before };
            rustix::process::setrlimit(limited, limit).unwrap();
            let refused = (0..2 * spares).all(|_| port.rebuild().is_err());
            rustix::process::setrlimit(limited, before).unwrap();
            assert!(refused && port.descriptor().is_some());
            assert!(port.stats().trouble().unwrap().why.starts_with("making rings: Cannot allocate memory"));
            assert_eq!(gauge(port, "xdp_spare_sockets"), spares);
            common::rebuild(port).unwrap();
            // no interface to bind to; its driver may use for a while what the last socket had
            let (free, rebuilds) = (port.free_frames(), port.stats().rebuilds.get());
            sh("ip", &["link", "del", "vs"]);
            assert!((0..2 * spares).all(|_| port.rebuild().is_err()));
            assert_eq!(port.free_frames(), free);
            assert_eq!(port.stats().rebuilds.get(), rebuilds, "no socket was made");
            let trouble = port.stats().trouble().unwrap();
            assert!(!trouble.serves && trouble.why.starts_with("binding it: No such device"), "{trouble:?}");
            assert_eq!(gauge(port, "xdp_spare_sockets"), spares - 1);
            assert_eq!(gauge(port, "xdp_queue_without_socket"), 1);
            // what is to be sent finds room and is dropped: a stack that waited would not look at its timers either
            assert!(port.transmit_room() > 0);
            send(port, &ethernet([0xff; 6], None, 0x88b5, &[0; 50]));
            assert_eq!((port.stats().cut_off.get(), port.outstanding(), port.free_frames()), (1, 0, free));
        });
        println!("CHILD IS DONE");
        return;
    }
    let _lab = Lab::new("refused", 1);
    let out = again("what_the_kernel_refuses_costs_no_socket", &[]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("CHILD IS DONE"), "{said}{}", String::from_utf8_lossy(&out.stderr));
}

/// Runs `test` again as a user of its own, at whose limit on locked memory nobody else's counts: with this limit, and these capabilities
/// beside those that opening needs. Asks what serves in it.
fn limited(test: &str, queues: u32, limit_bytes: u64, more: &str) {
    static USERS: AtomicU32 = AtomicU32::new(0);
    let n = USERS.fetch_add(1, Ordering::Relaxed);
    let lab = Lab::new(&format!("limit{n}"), queues);
    let limit = format!("--memlock={limit_bytes}:{limit_bytes}");
    let user = format!("--reuid={}", 1_000_000 + 8 * std::process::id() + n);
    let needed = format!("-all,+net_raw,+net_admin,+bpf,+dac_override{more}");
    let [inherited, ambient] = ["inh", "ambient"].map(|set| format!("--{set}-caps={needed}"));
    let through = ["prlimit", &limit, "setpriv", &user, "--clear-groups", &inherited, &ambient];
    let mut child = again(test, &through).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("CHILD IS READY")), "the child ended: {:?}", child.wait());
    let client = lab.client(|| ask(20));
    assert!(said.any(|line| line.contains("CHILD IS DONE")), "the child ended: {:?}", child.wait());
    assert_eq!(client.join().unwrap(), 20);
    child.wait().unwrap();
}

/// Answers 20 questions at whatever port they come to.
fn serve(ports: &mut [port_xdp::XdpPort]) {
    println!("CHILD IS READY");
    let until = std::time::Instant::now() + PATIENCE;
    let mut answered = 0;
    while answered < 20 {
        assert!(std::time::Instant::now() < until, "{answered} questions came");
        for port in &mut *ports {
            let mut turns = 0..2;
            answered += echo(port, |_| turns.next().is_none());
        }
    }
    println!("CHILD IS DONE");
}

/// Rebuilds again and again, while there is no room for the memory of another socket: the one that there is goes on.
fn finds_no_room(port: &mut port_xdp::XdpPort) {
    let before = port.stats().rebuilds.get();
    for _ in 0..3 {
        let refused = without_privileges(rustix::thread::CapabilitySet::empty(), || port.rebuild()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOBUFS));
    }
    let trouble = port.stats().trouble().unwrap();
    assert!(trouble.serves && trouble.why.starts_with("registering memory: No buffer space"), "{trouble:?}");
    assert!(port.descriptor().is_some(), "a socket was given up for one that cannot be had");
    assert_eq!((port.stats().rebuilds.get(), gauge(port, "xdp_queue_without_socket")), (before, 0));
}

/// With few frames, which any limit has room for; bytes of those of one queue.
fn small() -> port_xdp::OpenConfig {
    port_xdp::OpenConfig { rx_slots: 64, tx_slots: 64, spare_frames: 64, ..config(&[dns()]) }
}
const QUEUE_BYTES: u64 = 320 * 2048;

#[test]
fn a_socket_whose_memory_counts_nowhere_is_not_closed_to_make_room() {
    if !is_child() {
        return limited("a_socket_whose_memory_counts_nowhere_is_not_closed_to_make_room", 1, 65_536, ",+ipc_lock");
    }
    let mut opened = open(&small()).unwrap();
    finds_no_room(&mut opened.ports[0]);
    serve(&mut opened.ports);
}

#[test]
fn a_socket_whose_memory_others_have_too_is_not_closed_to_make_room() {
    if !is_child() {
        let test = "a_socket_whose_memory_others_have_too_is_not_closed_to_make_room";
        return limited(test, 2, 3 * QUEUE_BYTES, "");
    }
    let mut opened = open(&small()).unwrap();
    assert_eq!(u64::from(opened.got.frames) * 2048, 2 * QUEUE_BYTES);
    opened.ports.iter_mut().for_each(finds_no_room);
    serve(&mut opened.ports);
}

#[test]
fn a_socket_whose_memory_counts_is_closed_where_that_makes_room() {
    if !is_child() {
        let test = "a_socket_whose_memory_counts_is_closed_where_that_makes_room";
        return limited(test, 1, QUEUE_BYTES * 3 / 2, "");
    }
    let mut opened = open(&small()).unwrap();
    assert_eq!(u64::from(opened.got.frames) * 2048, QUEUE_BYTES);
    let port = &mut opened.ports[0];
    let free = port.free_frames();
    for _ in 0..3 {
        let renew = || eventually("it has no socket", || port.rebuild().is_ok());
        without_privileges(rustix::thread::CapabilitySet::empty(), renew);
    }
    assert_eq!((port.free_frames(), port.stats().trouble()), (free, None));
    // closing makes none where the limit has become lower
    let limited = rustix::process::Resource::Memlock;
    let limit = rustix::process::Rlimit { current: Some(65_536), ..rustix::process::getrlimit(limited) };
    rustix::process::setrlimit(limited, limit).unwrap();
    finds_no_room(port);
    serve(&mut opened.ports);
}

#[test]
fn an_interface_is_opened_where_what_was_there_before_still_has_the_limits_room() {
    if !is_child() {
        let test = "an_interface_is_opened_where_what_was_there_before_still_has_the_limits_room";
        return limited(test, 1, QUEUE_BYTES * 3 / 2, "");
    }
    let port_xdp::Opened { ports, handle, .. } = open(&small()).unwrap();
    drop(handle);
    // as the kernel has it when it lets go of a socket: the program is another's already
    let leaves = std::thread::spawn(move || {
        eventually("no program came", || Device::find("vs").unwrap().unwrap().xdp_program.is_some());
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(ports);
    });
    let mut opened = open(&small()).unwrap();
    leaves.join().unwrap();
    serve(&mut opened.ports);
}

#[test]
fn a_queue_whose_socket_the_steering_program_is_not_given_is_said_to_have_none() {
    let lab = Lab::new("place", 1);
    let mut opened = open(&config(&[dns()])).unwrap();
    let port = &mut opened.ports[0];
    let refused = std::thread::scope(|scope| {
        let refused = scope.spawn(|| {
            forbid(libc::SYS_bpf);
            let refused = common::rebuild(port).unwrap_err().to_string();
            port.flush();
            refused
        });
        refused.join().unwrap()
    });
    assert!(refused.contains("Operation not permitted"), "{refused}");
    let trouble = port.stats().trouble().unwrap();
    assert!(!trouble.serves && trouble.why.starts_with("giving it to the steering program: "), "{trouble:?}");
    assert_eq!(gauge(port, "xdp_queue_without_socket"), 1);
    // and offers it until it is taken
    port.flush();
    assert_eq!((port.stats().trouble(), gauge(port, "xdp_queue_without_socket")), (None, 0));
    lab.is_served(port, 20);
}

//! One thread receives what waits at another's port, while that one does nothing, and while it does.

#[allow(dead_code, reason = "the other tests use the rest")]
mod common;

use base::Burst;
use common::{Lab, PATIENCE, answer, ask, config, dns, eventually};
use port::{Inlet, Port};
use port_xdp::{XdpPort, open};
use rustix::event::{Timespec, epoll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Answers through `port` what it takes from `inlet`; how many.
fn help(port: &mut XdpPort, inlet: &dyn Inlet, received: &mut Burst) -> usize {
    let limit = port.transmit_room();
    inlet.lease(&mut |waiting| {
        waiting.receive(received, limit, &mut |frame| port.give(frame));
        waiting.refill(&mut || port.take());
    });
    received.iter_mut().for_each(|frame| answer(frame.bytes_mut()));
    let answered = port.transmit(received);
    port.flush();
    answered
}

fn waits(epoll: &OwnedFd) -> bool {
    let mut events = [const { std::mem::MaybeUninit::uninit() }; 4];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let (events, _) = epoll::wait(epoll.as_fd(), &mut events, Some(&now)).unwrap();
    !events.is_empty()
}

/// Both ports of the server, the first of which is helped.
fn two(name: &str) -> (Lab, Vec<XdpPort>, port_xdp::Handle, Arc<dyn Inlet>) {
    let lab = Lab::new(name, 2);
    let opened = open(&config(&[dns()])).unwrap();
    let inlet = opened.ports[0].inlet().expect("an AF_XDP port has one");
    // every question comes to the first queue
    let vc = ["netns", "exec", &lab.client, "ethtool", "-L", "vc", "rx", "1", "tx", "1"];
    common::sh("ip", &vc);
    (lab, opened.ports, opened.handle, inlet)
}

#[test]
fn another_thread_answers_for_one_that_does_not_run() {
    let (lab, mut ports, _handle, inlet) = two("helped");
    let free: Vec<usize> = ports.iter().map(XdpPort::free_frames).collect();
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    inlet.watch(watch.as_fd(), true);
    // what stands already is no error
    inlet.watch(watch.as_fd(), true);
    for round in 0..3 {
        assert!(!waits(&watch));
        let client = lab.client(|| ask(100));
        eventually("nothing came", || waits(&watch));
        let (mut answered, mut received) = (0, Burst::new());
        let until = std::time::Instant::now() + PATIENCE;
        while answered < 100 {
            assert!(std::time::Instant::now() < until, "{answered} in round {round}");
            answered += help(&mut ports[1], &*inlet, &mut received);
        }
        assert_eq!(client.join().unwrap(), 100, "round {round}");
        // a socket made anew is not watched until that is asked for again
        common::rebuild(&mut ports[0]).unwrap();
        inlet.watch(watch.as_fd(), true);
    }
    inlet.watch(watch.as_fd(), false);
    let client = lab.client(|| ask(1));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!waits(&watch));
    eventually("no answer", || help(&mut ports[1], &*inlet, &mut Burst::new()) == 1);
    assert_eq!(client.join().unwrap(), 1);
    // every frame is home again, whoever's it was, but for those that the device has to fill
    common::rebuild(&mut ports[0]).unwrap();
    eventually("frames are missing", || {
        for port in &mut ports {
            port.flush();
        }
        ports.iter().map(XdpPort::free_frames).eq(free.iter().copied())
    });
    // a port that is gone has nothing
    drop(ports.remove(0));
    assert_eq!(help(&mut ports[0], &*inlet, &mut Burst::new()), 0);
}

#[test]
fn two_threads_take_turns_at_one_port() {
    let (lab, mut ports, _handle, inlet) = two("turns");
    let done = Arc::new(AtomicBool::new(false));
    let (mut helper, mut owner) = (ports.pop().unwrap(), ports.pop().unwrap());
    let ends = done.clone();
    let owners = std::thread::spawn(move || common::echo(&mut owner, |_| ends.load(Ordering::Relaxed)));
    let ends = done.clone();
    let helpers = std::thread::spawn(move || {
        let (mut received, mut answered) = (Burst::new(), 0);
        while !ends.load(Ordering::Relaxed) {
            answered += help(&mut helper, &*inlet, &mut received);
            std::thread::yield_now();
        }
        answered
    });
    let clients: Vec<_> = (0..4).map(|_| lab.client(|| ask(2000))).collect();
    let asked: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    done.store(true, Ordering::Relaxed);
    let answered = [owners.join().unwrap(), helpers.join().unwrap()];
    assert_eq!((asked, answered.iter().sum::<usize>()), (8000, 8000));
    assert!(answered.iter().all(|n| *n > 0), "{answered:?}");
}

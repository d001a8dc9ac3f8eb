//! Threads that hang.

use crate::common::{LISTEN, PATIENCE, Server, Stats, dig_until};
use crate::guests::{crossed_from_the_second, of};
use lab::{Lab, Options, Process};

const ASK: &str = "@198.18.0.1 www.example.com";

/// The thread of this name of a process.
fn thread_of(pid: u32, name: &str) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut tasks = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let is = |task: &String| std::fs::read_to_string(format!("/proc/{pid}/task/{task}/comm")).unwrap().trim() == name;
    tasks.find(is).expect("a thread of that name")
}

/// Has the next call to the kernel to transmit, by the first thread, take eight seconds. It ends by itself.
fn hold_up_the_first(lab: &Lab, server: &Server) -> Process {
    lab::require_programs(&["strace"]);
    let thread = thread_of(server.process.id(), "dataplane-0");
    let mut command = lab.server().command("strace");
    let inject = "inject=sendto:delay_enter=8000000:when=1";
    command.args(["-qq", "-o", "/dev/null", "-p", &thread, "-e", "trace=sendto", "-e", inject]);
    Process::spawn(command).unwrap()
}

fn hang(stats: &Stats) -> u64 {
    stats.sum("dataplane_stalled_threads", &[])
}

#[test]
fn a_thread_that_hangs_leaves_its_queue_to_the_kernel_until_it_comes_round() {
    let lab = Lab::new().unwrap();
    let server = Server::start(lab.server(), &["--interface", "vs", "--listen", "198.18.0.1:53", "--tier", "xdp"]);
    dig_until(&lab, ASK, "198.18.0.80");
    let before = server.stats().on_sockets();
    let _strace = hold_up_the_first(&lab, &server);
    let hangs = || {
        dig_until(&lab, ASK, "198.18.0.80");
        let stats = server.stats();
        hang(&stats) == 1 && stats.on_sockets() > before
    };
    assert!(lab::wait_until(hangs, PATIENCE), "{}", server.process.log());
    server.wait_until("it is said", |_| {
        server.process.log().contains("dataplane thread 0 hangs: queue 0 is the kernel's")
    });
    server.wait_until("the thread to come round", |stats| hang(stats) == 0);
    let taken = server.stats().taken();
    dig_until(&lab, ASK, "198.18.0.80");
    server.wait_until("the thread to answer again", |stats| stats.taken() > taken);
    // once for this, and whenever the machine gave it no processor for long
    assert!(server.stats().sum("dataplane_stalls_total", &[]) >= 1);
}

#[test]
fn queues_that_the_first_thread_serves_for_others_are_served_when_it_hangs() {
    // without a NIC that deals packets out, each question comes to any of the queues
    let lab = Lab::with(&Options { queues: 2, ..Options::default() }).unwrap();
    let server =
        Server::start(lab.server(), &[&LISTEN[..], &["--cpus", "0,1", "--balance", "on", "--tier", "xdp"]].concat());
    dig_until(&lab, ASK, "198.18.0.80");
    let asked = server.ctl(&["threads", "1"]);
    assert!(asked.status.success(), "{asked:?}");
    // the second thread has nothing left, and what comes to its queue does not wake it
    let is_stood_for =
        || of(&server.stats(), "dataplane_flow_groups", "1") == 0 && crossed_from_the_second(&lab, &server) == 0;
    assert!(lab::wait_until(is_stood_for, PATIENCE), "{}", server.process.log());
    assert_eq!(server.stats().sum("dataplane_threads_on_duty", &[]), 1);
    let strace = hold_up_the_first(&lab, &server);
    // all groups are the first thread's; questions in them are answered by the other where they come to it, and by the kernel's sockets
    let is_answered = || {
        dig_until(&lab, ASK, "198.18.0.80");
        let stats = server.stats();
        hang(&stats) == 1
            && stats.sum("dataplane_threads_on_duty", &[]) == 2
            && of(&stats, "dataplane_crossing_orphans_total", "1") > 0
    };
    assert!(lab::wait_until(is_answered, PATIENCE), "{:?}\n{}", server.stats(), server.process.log());
    server.wait_until("the thread to come round", |stats| hang(stats) == 0);
    drop(strace);
    // and it is as it was
    assert!(lab::wait_until(is_stood_for, PATIENCE), "{:?}\n{}", server.stats(), server.process.log());
    assert_eq!(server.stats().sum("dataplane_threads_on_duty", &[]), 1);
    assert_eq!(server.stats().sum("dataplane_panics_total", &[]), 0);
}

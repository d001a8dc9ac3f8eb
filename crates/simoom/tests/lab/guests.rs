//! More threads than queues: those without one answer through another's, and threads come and go.

use crate::common::{LISTEN, PATIENCE, Server, Stats, dig_until};
use crate::web::{Web, contents, curl};
use lab::Lab;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const WEB: [&str; 8] =
    ["--interface", "vs", "--listen", "198.18.0.1:80", "--listen", "[2001:db8:18::1]:80", "--cpus", "0,1"];

/// Times that threads come or go during downloads, at least: some that are short end within one.
const CHANGES: usize = 10;

pub(crate) fn of(stats: &Stats, name: &str, thread: &str) -> u64 {
    stats.sum(name, &[("thread", thread)])
}

/// Nobody comes round while nothing happens; the looks at the counters are by other threads.
fn sleeps(server: &Server) {
    let begun = Instant::now();
    loop {
        let before = server.stats().sum("dataplane_cycles_total", &[]);
        std::thread::sleep(Duration::from_secs(1));
        let cycles = server.stats().sum("dataplane_cycles_total", &[]) - before;
        if cycles <= 10 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{cycles} cycles in a second without work");
    }
}

#[test]
fn one_queue_and_two_threads_answer_questions_and_sleep() {
    let lab = Lab::new().unwrap();
    let server = Server::start(lab.server(), &[&LISTEN[..], &["--cpus", "0,1", "--tier", "xdp"]].concat());
    let log = server.process.log();
    assert!(log.contains("handed over between threads, of which one has no queue"), "{log}");
    for at in ["198.18.0.1", "2001:db8:18::1"] {
        for _ in 0..20 {
            dig_until(&lab, &format!("@{at} www.example.com A"), "198.18.0.80");
        }
    }
    server.wait_until("both threads count the same, and neither all", |stats| {
        let through_host = of(stats, "dataplane_guest_frames_total", "1");
        // handed over, or fetched by the one without a queue itself where the other was not given the processor
        let fetched = stats.sum("dataplane_helped_frames_total", &[("thread", "1"), ("to", "itself")]);
        let came = of(stats, "dataplane_crossed_frames_total", "0") + fetched;
        (1..40).contains(&through_host) && came == through_host
    });
    let stats = server.stats();
    assert_eq!(stats.sum("dataplane_crossing_lost_total", &[]) + stats.sum("dataplane_guest_stalls_total", &[]), 0);
    sleeps(&server);
}

#[test]
fn downloads_go_on_while_threads_come_and_go() {
    let lab = Lab::new().unwrap();
    let web = Web::start(lab.server(), &WEB);
    let (begun, changes, done) = (Instant::now(), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let downloads: Vec<_> = ["198.18.0.1", "[2001:db8:18::1]"]
            .into_iter()
            .map(|at| {
                let url = format!("http://{at}/5000000.bin");
                let (lab, changes) = (&lab, &changes);
                scope.spawn(move || {
                    let mut bodies = vec![curl(lab, &[&url, &url, &url])];
                    while changes.load(Ordering::Relaxed) < CHANGES && begun.elapsed() < PATIENCE {
                        bodies.push(curl(lab, &[&url, &url, &url]));
                    }
                    bodies
                })
            })
            .collect();
        let mover = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for count in ["1", "2"] {
                    let asked = web.server.ctl(&["threads", count]);
                    assert!(asked.status.success(), "{asked:?}");
                    assert_eq!(String::from_utf8_lossy(&asked.stdout), format!("{count} of 2 threads serve\n"));
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let bodies: Vec<_> = downloads.into_iter().map(|download| download.join()).collect();
        // the mover ends whatever became of them
        done.store(true, Ordering::Relaxed);
        mover.join().unwrap();
        let wanted = contents(5_000_000).repeat(3);
        let hurried = || web.tcp().sum("dataplane_hurried_moves_total", &[]);
        for body in bodies.into_iter().flat_map(|bodies| bodies.unwrap()) {
            // curl tells how its last download ended: one before may have been cut short
            assert!(body == wanted, "{} bytes, hurried moves: {}\n{}", body.len(), hurried(), web.server.process.log());
        }
    });
    assert!(changes.into_inner() >= CHANGES);
    assert_eq!(web.tcp().sum("dataplane_panics_total", &[]), 0, "{}", web.server.process.log());
    let one = web.server.ctl(&["threads", "1"]);
    assert!(one.status.success(), "{one:?}");
    web.server.wait_until("the second thread gives everything away", |stats| {
        of(stats, "dataplane_flow_groups", "1") == 0 && stats.sum("dataplane_threads_on_duty", &[]) == 1
    });
    assert_eq!(curl(&lab, &["http://198.18.0.1/65536.bin"]), contents(65_536));
    sleeps(&web.server);
    let refused = web.server.ctl(&["threads", "3"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.lines().count() == 1 && said.contains("there are 2 threads: give 1 to 2"), "{said}");
    assert_eq!(refused.status.code(), Some(1));
}

/// Of ten questions that come to the second queue, how many its own thread handed over.
pub(crate) fn crossed_from_the_second(lab: &Lab, server: &Server) -> u64 {
    let before = server.stats();
    let begun = Instant::now();
    let second = |stats: &Stats| stats.sum("xdp_frames_received_total", &[("queue", "1")]);
    while second(&server.stats()) < second(&before) + 10 {
        assert!(begun.elapsed() < PATIENCE, "nothing comes to the second queue");
        dig_until(lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    }
    let crossed = |stats: &Stats| of(stats, "dataplane_crossed_frames_total", "1");
    crossed(&server.stats()) - crossed(&before)
}

#[test]
fn a_queue_of_a_thread_that_is_not_needed_is_served_by_another() {
    // without a NIC that deals packets out, each question comes to any of the queues
    let lab = Lab::with(&lab::Options { queues: 2, ..lab::Options::default() }).unwrap();
    let server =
        Server::start(lab.server(), &[&LISTEN[..], &["--cpus", "0,1", "--balance", "on", "--tier", "xdp"]].concat());
    let ask = || dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    (0..10).for_each(|_| ask());
    let asked = server.ctl(&["threads", "1"]);
    assert!(asked.status.success(), "{asked:?}");
    server.wait_until("the second thread gives everything away", |stats| of(stats, "dataplane_flow_groups", "1") == 0);
    let crossed = || crossed_from_the_second(&lab, &server);
    // soon it is the first thread's, and the other is not woken any more
    assert!(lab::wait_until(|| crossed() == 0, PATIENCE), "{}", server.process.log());
    assert_eq!(crossed(), 0);
    sleeps(&server);
    let asked = server.ctl(&["threads", "2"]);
    assert!(asked.status.success(), "{asked:?}");
    server.wait_until("the second thread has groups again", |stats| of(stats, "dataplane_flow_groups", "1") > 0);
    (0..20).for_each(|_| ask());
}

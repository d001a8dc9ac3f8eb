//! Our own services as applications: the same code that runs inline.

use crate::config::{Bounds, Echo, Kv};
use crate::error::{Error, reason};
use crate::secrets::random;
use crate::wall::{WALL_EVERY, Wall};
use app::{Bound, Service};
use base::Clock;
use base::counter::Report;
use guard::client::Attached;
use guard::{client, jail};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a connection of the store may have in hand, in its address space.
const CONNECTION_BYTES: u64 = 256 << 10;
/// How soon one of the server's threads has told the time.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// `simoom kv-app`: what the store needs to know, settled by the server.
#[derive(Debug, clap::Args)]
pub struct KvApp {
    #[arg(long)]
    memory_bytes: u64,
    #[arg(long)]
    item_bytes: u64,
    #[arg(long)]
    connections: usize,
    #[arg(long)]
    port: Vec<u16>,
    #[arg(long)]
    idle_s: Option<u64>,
    #[arg(long)]
    send_timeout_s: u64,
    #[arg(long)]
    shared_nothing: bool,
}

/// `simoom echo-app`.
#[derive(Debug, clap::Args)]
pub struct EchoApp {
    #[arg(long)]
    port: Vec<u16>,
    #[arg(long)]
    any_source_port: bool,
}

/// What a thread of the store counts, in an order that both processes know: its own, and the first one has what is shared.
fn kv_counters(thread: usize, stats: Arc<kv::Stats>, shared: impl FnOnce() -> Arc<kv::Shared>) -> Vec<Arc<dyn Report>> {
    let mut all: Vec<Arc<dyn Report>> = vec![stats];
    if thread == 0 {
        all.push(shared());
    }
    all
}

/// Counters of the kinds that a thread of the store shows, which nothing counts with. What they are called does not depend on how large the store
/// is, and a large one's table of keys would be written here for nothing.
pub(super) fn kv_kinds(thread: usize) -> Vec<Arc<dyn Report>> {
    let limits =
        kv::Limits { memory_bytes: 1 << 20, item_bytes: 1 << 10, threads: 1, secret: [0; 2], shared_nothing: false };
    kv_counters(thread, Arc::default(), || Arc::new(kv::Shared::new(limits)))
}

/// The same of echo.
pub(super) fn echo_kinds() -> Vec<Arc<dyn Report>> {
    vec![Arc::<echo::Stats>::default()]
}

/// What the store may map: items, the table of keys and what a connection has in hand, amply.
pub(super) fn kv_bounds(kv: &Kv) -> Bounds {
    let bounds = Bounds::default();
    let own = kv.memory_bytes.saturating_mul(2).saturating_add(CONNECTION_BYTES.saturating_mul(kv.connections as u64));
    Bounds { memory_bytes: bounds.memory_bytes.saturating_add(own), ..bounds }
}

/// The arguments of [`kv`].
pub(super) fn kv_arguments(kv: &Kv) -> Vec<String> {
    let mut all = vec!["kv-app".to_owned()];
    let mut add = |name: &str, value: u64| all.extend([name.to_owned(), value.to_string()]);
    add("--memory-bytes", kv.memory_bytes);
    add("--item-bytes", kv.item_bytes);
    add("--connections", kv.connections as u64);
    add("--send-timeout-s", kv.send_timeout_s.into());
    if let Some(idle) = kv.idle_s {
        add("--idle-s", idle.into());
    }
    all.extend(kv.listen.iter().flat_map(|at| ["--port".to_owned(), at.port().to_string()]));
    all.extend(kv.shared_nothing.then(|| "--shared-nothing".to_owned()));
    all
}

/// The arguments of [`echo`].
pub(super) fn echo_arguments(echo: &Echo) -> Vec<String> {
    let mut all = vec!["echo-app".to_owned()];
    all.extend(echo.listen.iter().flat_map(|at| ["--port".to_owned(), at.port().to_string()]));
    all.extend(echo.any_source_port.then(|| "--any-source-port".to_owned()));
    all
}

/// What this process was granted, a thread each.
fn granted() -> Result<Vec<Attached>, Error> {
    let granted = client::attach().map_err(|error| Error::environment(reason(&error)))?;
    granted.ok_or_else(|| Error::input("this command is started by a server: see --place"))
}

/// Runs a service on every thread until the server ends.
fn serve<S: Service>(
    threads: &[Attached],
    make: impl Fn(usize) -> (S, Vec<Arc<dyn Report>>) + Sync,
) -> Result<String, Error> {
    jail::inner().map_err(|error| Error::environment(reason(&error)))?;
    let run = |attached: &Attached, thread: usize| {
        let (service, counters) = make(thread);
        client::run_showing(attached, service, &counters)
    };
    on_each(threads, run);
    Ok(String::new())
}

/// Runs every thread's part of a service until the server ends, the first one's here.
fn on_each<T: Sync>(threads: &[T], run: impl Fn(&T, usize) -> io::Result<()> + Sync) {
    let run = &|thread: usize, of: &T| or_end(thread, || run(of, thread));
    std::thread::scope(|scope| {
        for (thread, of) in threads.iter().enumerate().skip(1) {
            scope.spawn(move || run(thread, of));
        }
        threads.iter().take(1).for_each(|of| run(0, of));
    });
}

/// One thread's part. If it cannot go on it ends the process, which the server starts again: the other threads would serve for ever without it,
/// and what is sent to it would wait for nobody.
fn or_end(thread: usize, run: impl FnOnce() -> io::Result<()>) {
    let why = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => reason(&error),
        // which was shown
        Err(_) => "a panic".to_owned(),
    };
    let error = Error::environment(format!("thread {thread} has ended, and this process with it: {why}"));
    // that nobody reads it is no reason to stay
    let _ = io::stderr().write_all(format!("simoom: {error}\n").as_bytes());
    std::process::exit(error.status().into())
}

/// The clock by which the server's threads tell the time. They run when an application is started, and tell it in their first cycle.
fn told_clock(threads: &[Attached]) -> Result<Clock, Error> {
    let until = Instant::now() + TOLD_WITHIN;
    loop {
        for attached in threads {
            if let Some(clock) = attached.zero().map_err(|error| Error::environment(reason(&error)))? {
                return Ok(clock);
            }
        }
        if Instant::now() >= until {
            return Err(Error::environment("no thread of the server's tells the time"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a thread that tends the store, and its clock, for as long as there is one, as a server does that has it inside: the walk through the
/// allocator's heaps is nothing for those that serve.
fn start_tending(shared: &Arc<kv::Shared>, wall: Wall) -> Result<(), Error> {
    let store = Arc::downgrade(shared);
    let tend = move || {
        while let Some(shared) = store.upgrade() {
            shared.tend();
            drop(shared);
            wall.set();
            std::thread::sleep(WALL_EVERY);
        }
    };
    match std::thread::Builder::new().name("tend".to_owned()).spawn(tend) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::environment(format!("a thread cannot be started: {}", reason(&error)))),
    }
}

/// The store.
///
/// # Errors
/// What it was granted is not there.
pub(crate) fn kv(options: &KvApp) -> Result<String, Error> {
    let threads = granted()?;
    let number = || random().map(u64::from_ne_bytes);
    let secret = number().and_then(|first| Ok([first, number()?]));
    let secret = secret.map_err(|error| Error::environment(format!("/dev/urandom: {}; mount /dev", reason(&error))))?;
    let limits = kv::Limits {
        memory_bytes: options.memory_bytes,
        item_bytes: options.item_bytes,
        threads: threads.len(),
        secret,
        shared_nothing: options.shared_nothing,
    };
    let shared = Arc::new(kv::Shared::new(limits));
    let wall = Wall::since(told_clock(&threads)?);
    let told = kv::Options {
        connections: Bound::new(options.connections),
        buffers: Bound::new(options.connections),
        idle: options.idle_s.map(Duration::from_secs),
        stuck: Duration::from_secs(options.send_timeout_s),
        clock: wall.items().clone(),
        ports: options.port.clone(),
        ..kv::Options::default()
    }
    .among(threads.len());
    start_tending(&shared, wall)?;
    serve(&threads, |thread| {
        let stats = shared.stats();
        let server = kv::Server::new(shared.clone(), kv::Options { thread, ..told.clone() }, stats.clone());
        (server, kv_counters(thread, stats, || shared.clone()))
    })
}

/// Echo.
///
/// # Errors
/// What it was granted is not there.
pub(crate) fn echo(options: &EchoApp) -> Result<String, Error> {
    let threads = granted()?;
    let told = echo::Options { ports: options.port.clone(), any_source_port: options.any_source_port };
    serve(&threads, |_| {
        let stats = Arc::<echo::Stats>::default();
        (echo::Server::with_stats(told.clone(), stats.clone()), vec![stats])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Which thread is to fail, in a process that a test has started.
    const FAILS: &str = "SIMOOM_TEST_THREAD_FAILS";
    /// How long a busy machine may take to end a process.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// The other threads go on for as long as the process does.
    #[test]
    fn a_process_ends_with_any_of_its_threads() {
        if let Ok(fails) = std::env::var(FAILS) {
            return on_each(&[(); 4], |(), thread| match fails.strip_prefix(&format!("{thread} ")) {
                Some("panics") => panic!("as a service may"),
                Some(_) => Err(io::Error::other("as a channel may")),
                None => loop {
                    std::thread::park();
                },
            });
        }
        for (fails, why) in [("0 panics", "a panic"), ("2 panics", "a panic"), ("1 errs", "as a channel may")] {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["a_process_ends_with_any_of_its_threads", "--nocapture"])
                .env(FAILS, fails)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let until = Instant::now() + PATIENCE;
            while child.try_wait().unwrap().is_none() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            // it is gone, or should be
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let line = format!("simoom: thread {} has ended, and this process with it: {why}", &fails[..1]);
            assert_eq!(output.status.code(), Some(1), "{fails}: {said}");
            assert_eq!(said.lines().filter(|said| *said == line).count(), 1, "{fails}: {said}");
        }
    }

    /// What figures are called, in the order in which they come first, and the memory that the store is for.
    fn shown(counters: &[Arc<dyn Report>]) -> (Vec<String>, u64) {
        let (mut all, mut memory_bytes) = (Vec::new(), 0);
        for counter in counters {
            counter.report(&mut |figure| {
                let name = format!("{} {:?} {} {}", figure.name, figure.labels, figure.gauge, figure.help);
                if figure.name == "kv_memory_limit_bytes" {
                    memory_bytes = figure.value;
                }
                if !all.contains(&name) {
                    all.push(name);
                }
            });
        }
        (all, memory_bytes)
    }

    #[test]
    fn a_small_store_tells_what_the_counters_of_any_are_called() {
        let (memory_bytes, item_bytes) = (256 << 20, 1 << 20);
        let limits = kv::Limits { memory_bytes, item_bytes, threads: 4, secret: [1, 2], shared_nothing: false };
        let shared = Arc::new(kv::Shared::new(limits));
        for thread in 0..2 {
            let ((small, small_bytes), (large, _)) =
                (shown(&kv_kinds(thread)), shown(&kv_counters(thread, shared.stats(), || shared.clone())));
            assert_eq!(small, large, "thread {thread}");
            assert!(small_bytes <= 1 << 20, "{small_bytes}");
        }
    }
}

//! Processor time as the kernel accounts it, and where threads run.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

/// When a processor, or all of them, did nothing: what the kernel counts since it started.
///
/// Busy is what is left of the time that went by. The kernel's own figures of that are samples of its tick, which a processor that
/// sleeps between short pieces of work misses: with 20 frames a wake-up they told 26% to 31% of a processor that was idle for 62% of
/// the time. Idle time is measured where the tick stops meanwhile, as it does by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// idle, waiting for I/O, and stolen by the host, in clock ticks (USER_HZ, which is 100 on every Linux: proc(5))
    idle: u64,
    processors: u64,
    at: Instant,
}

impl Ticks {
    /// Of processor `cpu`, or of all of them.
    pub(crate) fn now(cpu: Option<usize>) -> Result<Ticks> {
        let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Ticks::parse(&text, cpu, Instant::now()).ok_or_else(|| anyhow!("/proc/stat has no line for {}", line_name(cpu)))
    }

    fn parse(stat: &str, cpu: Option<usize>, at: Instant) -> Option<Ticks> {
        let name = line_name(cpu);
        let line = stat.lines().find(|line| line.split(' ').next() == Some(name.as_str()))?;
        let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal (proc(5))
        let [_, _, _, idle, iowait, _, _, ..] = fields[..] else { return None };
        let processors = if cpu.is_some() { 1 } else { stat.lines().filter(|line| is_of_one(line)).count() as u64 };
        Some(Ticks { idle: idle + iowait + fields.get(7).unwrap_or(&0), processors, at })
    }

    /// Busy time from `earlier` to `self` in seconds, interrupts and softirqs included.
    pub(crate) fn busy_s_since(self, earlier: Ticks) -> f64 {
        let idle_s = self.idle.saturating_sub(earlier.idle) as f64 / 100.0;
        let all_s = self.at.duration_since(earlier.at).as_secs_f64() * self.processors as f64;
        // idle time is told in hundredths
        (all_s - idle_s).max(0.0)
    }
}

fn is_of_one(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

fn line_name(cpu: Option<usize>) -> String {
    cpu.map_or_else(|| "cpu".into(), |cpu| format!("cpu{cpu}"))
}

/// Processor time that the processes of a group have used, in seconds: a server may have forked its workers.
pub(crate) fn group_s(group: u32) -> Result<f64> {
    let mut total_s = None;
    for entry in fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        // processes come and go while the list is read
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some(process) = Process::parse(&text).filter(|process| process.group == group) else { continue };
        *total_s.get_or_insert(0.0) += process.used_s;
    }
    total_s.ok_or_else(|| anyhow!("no process is in group {group}"))
}

/// The processes of a group.
pub(crate) fn group_pids(group: u32) -> Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        // processes come and go while the list is read
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let pid = text.split(' ').next().and_then(|pid| pid.parse::<u32>().ok());
        pids.extend(pid.filter(|_| Process::parse(&text).is_some_and(|process| process.group == group)));
    }
    if pids.is_empty() { Err(anyhow!("no process is in group {group}")) } else { Ok(pids) }
}

/// Resident memory of the processes of a group in bytes; what they share counts for each.
pub(crate) fn group_resident_bytes(group: u32) -> Result<u64> {
    group_pids(group)?.into_iter().map(resident_bytes).sum()
}

struct Process {
    group: u32,
    used_s: f64,
}

impl Process {
    fn parse(stat: &str) -> Option<Process> {
        // the program's name stands in parentheses and may hold spaces and parentheses itself
        let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Process { group: number(2)? as u32, used_s: (number(11)? + number(12)?) as f64 / 100.0 })
    }
}

/// Resident memory of a process in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line =
        text.lines().find_map(|line| line.strip_prefix("VmRSS:")).with_context(|| format!("no VmRSS in {path}"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().with_context(|| format!("VmRSS in {path}"))?;
    Ok(kib * 1024)
}

/// Processors online, whichever of them this process may run on.
pub(crate) fn online() -> Result<usize> {
    let text =
        fs::read_to_string("/sys/devices/system/cpu/online").context("cannot read which processors are online")?;
    listed(&text).with_context(|| format!("no list of processors: {}", text.trim()))
}

/// How many numbers a list such as `0-3,6` has.
fn listed(text: &str) -> Option<usize> {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    text.trim().split(',').map(count).sum()
}

/// Keeps the calling thread, and those it starts later, on one processor.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        bail!("there is no processor {cpu}");
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on processor {cpu}"))
}

/// Has a thread take its processor from whoever spins there at once, as an interrupt would.
pub(crate) fn preempt(thread: u32) -> Result<()> {
    schedule(thread, "--fifo", "50")
}

/// Has a thread that wakes leave its processor to who runs there until that one sleeps or has had its slice.
pub(crate) fn give_way(thread: u32) -> Result<()> {
    schedule(thread, "--batch", "0")
}

fn schedule(thread: u32, policy: &str, priority: &str) -> Result<()> {
    let done = Command::new("chrt").args([policy, "--pid", priority, &thread.to_string()]).output();
    let gone = || !Path::new("/proc").join(thread.to_string()).exists();
    let done = done.context("cannot run chrt")?.status.success() || gone();
    ensure!(done, "chrt cannot have thread {thread} run as {policy} says");
    Ok(())
}

/// This process's threads whose names begin so, as directories of proc(5). One that has ended may still be among them, and one that runs
/// may be left out: who joins a thread is told before the kernel takes it off its list, which goes by number while others end.
///
/// # Errors
/// The kernel's.
pub(crate) fn threads(prefix: &str) -> Result<Vec<PathBuf>> {
    let tasks = fs::read_dir("/proc/self/task").context("/proc/self/task")?.flatten().map(|task| task.path());
    let is = |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with(prefix));
    Ok(tasks.filter(is).collect())
}

/// A thread that has a processor before all others, until this value goes.
#[derive(Debug)]
pub(crate) struct Ahead {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Starts it; `work` returns soon after its flag is set.
    ///
    /// # Errors
    /// It cannot be put on its processor, or before all others: no `chrt`, or not root.
    pub(crate) fn start(name: &str, cpu: usize, work: impl FnOnce(&AtomicBool) + Send + 'static) -> Result<Ahead> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, (tell, told)) = (stop.clone(), mpsc::channel());
        let run = move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let ready = pin(cpu).and_then(|()| preempt(id));
            let goes_on = ready.is_ok();
            // the other end waits for it
            let _ = tell.send(ready);
            if goes_on {
                work(&stopped);
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run).context("cannot start a thread")?;
        let ahead = Ahead { stop, thread: Some(thread) };
        told.recv().with_context(|| format!("thread {name} has ended"))??;
        Ok(ahead)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // it has nothing to tell
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;

    /// These tasks, which have to be so many soon.
    pub(crate) fn assert_threads(prefix: &str, count: usize) -> Vec<PathBuf> {
        let mut tasks = Vec::new();
        let is = || {
            tasks = threads(prefix).unwrap();
            tasks.len() == count
        };
        assert!(lab::wait_until(is, Duration::from_secs(10)), "not {count} threads {prefix}: {tasks:?}");
        tasks
    }

    const STAT: &str = "cpu  10 0 20 100 5 1 4 2 0 0\ncpu0 5 1 10 50 3 1 4 1 7 0\ncpu10 1 1 1 1 1 1 1 1 0 0\nintr 5\n";

    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting_nor_stolen() {
        let at = Instant::now();
        assert_eq!(Ticks::parse(STAT, None, at), Some(Ticks { idle: 107, processors: 2, at }));
        assert_eq!(Ticks::parse(STAT, Some(0), at), Some(Ticks { idle: 54, processors: 1, at }));
        assert_eq!(Ticks::parse(STAT, Some(1), at), None);
        assert_eq!(Ticks::parse("cpu 1 2\n", None, at), None);
        let early = Ticks { idle: 100, processors: 2, at };
        let late = |idle| Ticks { idle, at: at + Duration::from_secs(2), ..early };
        assert_eq!(late(350).busy_s_since(early), 1.5);
        // a tick more than there was time for
        assert_eq!(late(501).busy_s_since(early), 0.0);
    }

    #[test]
    fn a_processor_that_works_in_short_pieces_is_busy_for_all_of_them() {
        let used = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
        };
        let (mut busy_s, mut used_s) = (0.0, 0.0);
        let mut work = || {
            let (before, used_before, begun) = (Ticks::now(None).unwrap(), used(), Instant::now());
            while begun.elapsed() < Duration::from_millis(500) {
                let piece = Instant::now();
                while piece.elapsed() < Duration::from_micros(300) {
                    std::hint::spin_loop();
                }
                std::thread::sleep(Duration::from_micros(300));
            }
            used_s = used() - used_before;
            busy_s = Ticks::now(None).unwrap().busy_s_since(before);
            // whatever else runs adds to it; three figures are told in hundredths
            busy_s > used_s - 0.05
        };
        // what a hypervisor takes may be in a thread's time, and is not in how busy processors were
        assert!((0..5).any(|_| work()), "{busy_s} of {used_s}");
    }

    #[test]
    fn processors_are_counted_wherever_one_is_pinned() {
        for (text, count) in [("0\n", 1), ("0-1\n", 2), ("0-3,6,8-9", 7)] {
            assert_eq!(listed(text), Some(count), "{text}");
        }
        for wrong in ["", "x", "3-1", "0,,1"] {
            assert_eq!(listed(wrong), None, "{wrong}");
        }
        let before = online().unwrap();
        let pinned = std::thread::spawn(|| pin(0).and_then(|()| online()));
        assert_eq!(pinned.join().unwrap().unwrap(), before);
    }

    #[test]
    fn a_process_with_a_strange_name_is_read() {
        let stat = "42 (a ) b) S 1 41 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 100 1000 1";
        let process = Process::parse(stat).unwrap();
        assert_eq!((process.group, process.used_s), (41, 2.0));
        assert!(Process::parse("42 (x) S 1").is_none());
    }

    #[test]
    fn this_process_is_there() {
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        assert!(group_s(u32::MAX).is_err());
        let group = rustix::process::getpgrp().as_raw_nonzero().get() as u32;
        assert!(group_s(group).unwrap() >= 0.0);
        assert!(group_pids(group).unwrap().contains(&std::process::id()));
        assert!(group_resident_bytes(group).unwrap() >= resident_bytes(std::process::id()).unwrap() / 2);
        assert!(group_pids(u32::MAX).is_err());
        assert!(pin(1 << 20).is_err());
    }
}

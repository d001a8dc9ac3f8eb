//! What an application's process may ask of the kernel: a filter of system calls in two parts.
//!
//! The outer one is put on before the program is executed and lets it load: read files, map memory, start threads. The inner one is
//! put on by the client library when the program has what it needs, and takes away files and execution as well. Neither ever lets it
//! make a socket, another process, a mount, a namespace or a device; what is not named in the lists fails with EPERM, and what only an
//! attacker would ask for (ptrace, bpf, io_uring, ...) ends the process.
//!
//! A filter is inherited by threads and programs and never comes off. A program that does not link the client library keeps
//! the outer one.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule as Rule,
};
use std::collections::BTreeMap;
use std::io;

/// Memory, time, threads, signals of its own, descriptors that it has.
const PLAIN: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
];

/// The same where only one architecture has it.
#[cfg(target_arch = "x86_64")]
const PLAIN_HERE: &[i64] = &[libc::SYS_arch_prctl, libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const PLAIN_HERE: &[i64] = &[];

/// What a program needs to load.
const LOADING: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_statx,
];
#[cfg(target_arch = "x86_64")]
const LOADING_HERE: &[i64] = &[libc::SYS_access, libc::SYS_readlink, libc::SYS_stat, libc::SYS_lstat];
#[cfg(not(target_arch = "x86_64"))]
const LOADING_HERE: &[i64] = &[];

/// What ends the process.
const FATAL: &[i64] = &[
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Reads the process's own auxiliary vector, and nothing else: by that rustix finds the vDSO, without which each look at the clock would be
/// a system call. From linux/prctl.h; libc has it for Android alone.
const PR_GET_AUXV: libc::c_int = 0x4155_5856;

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("seccomp: {error}"))
}

fn when(argument: u8, op: Op, value: u64) -> io::Result<Condition> {
    Condition::new(argument, Len::Dword, op, value).map_err(failed)
}

fn rule(conditions: Vec<Condition>) -> io::Result<Rule> {
    Rule::new(conditions).map_err(failed)
}

type Rules = BTreeMap<i64, Vec<Rule>>;

/// `moves`: its threads may choose the processors that they run on.
fn plain(moves: bool) -> io::Result<Rules> {
    let mut rules: Rules = PLAIN.iter().chain(PLAIN_HERE).map(|call| (*call, Vec::new())).collect();
    // threads, and no processes; clone3 passes its flags in memory, so that libc has to do without it
    let thread = when(0, Op::MaskedEq(libc::CLONE_THREAD as u64), libc::CLONE_THREAD as u64)?;
    rules.insert(libc::SYS_clone, vec![rule(vec![thread])?]);
    // no holes in what is shared
    rules.insert(libc::SYS_madvise, vec![rule(vec![when(2, Op::Ne, libc::MADV_REMOVE as u64)?])?]);
    let fcntl = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC];
    let fcntl = fcntl.into_iter().map(|command| rule(vec![when(1, Op::Eq, command as u64)?]));
    rules.insert(libc::SYS_fcntl, fcntl.collect::<io::Result<_>>()?);
    // what is set on the process itself: names of memory and threads, that it gains no privileges, that others do not look into it
    let prctl = [libc::PR_SET_NAME, libc::PR_SET_NO_NEW_PRIVS, libc::PR_GET_NAME, libc::PR_SET_VMA, PR_GET_AUXV];
    let prctl = prctl.into_iter().map(|option| rule(vec![when(0, Op::Eq, option as u64)?]));
    let closed = rule(vec![when(0, Op::Eq, libc::PR_SET_DUMPABLE as u64)?, when(1, Op::Eq, 0)?]);
    rules.insert(libc::SYS_prctl, prctl.chain([closed]).collect::<io::Result<_>>()?);
    if moves {
        // each thread itself: the kernel lets a process move all others of its user
        rules.insert(libc::SYS_sched_setaffinity, vec![rule(vec![when(0, Op::Eq, 0)?])?]);
    }
    // its own limits are read, not set
    rules.insert(libc::SYS_prlimit64, vec![rule(vec![Condition::new(2, Len::Qword, Op::Eq, 0).map_err(failed)?])?]);
    // abort(3) sends a signal to the thread itself; what this process executes keeps its number
    let ourselves = when(0, Op::Eq, std::process::id().into())?;
    rules.insert(libc::SYS_tgkill, vec![rule(vec![ourselves])?]);
    // is it a terminal
    rules.insert(libc::SYS_ioctl, vec![rule(vec![when(1, Op::Eq, libc::TCGETS)?])?]);
    Ok(rules)
}

fn compile(rules: Rules, otherwise: SeccompAction, then: SeccompAction) -> io::Result<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().map_err(failed)?;
    let filter = SeccompFilter::new(rules, otherwise, then, arch).map_err(failed)?;
    filter.try_into().map_err(failed)
}

fn apply(filters: &[BpfProgram]) -> io::Result<()> {
    filters.iter().try_for_each(|filter| seccompiler::apply_filter_all_threads(filter).map_err(failed))
}

/// Puts the outer filter on this process; what it executes inherits it. Sets that no program gains privileges. Where the program's threads
/// stay on the processors that the process has by now, `moves` is false: then none of them can leave these.
///
/// # Errors
/// The kernel's: one without seccomp.
pub fn outer(moves: bool) -> io::Result<()> {
    let mut rules = plain(moves)?;
    rules.extend(LOADING.iter().chain(LOADING_HERE).map(|call| (*call, Vec::new())));
    // the inner filter
    rules.insert(libc::SYS_seccomp, Vec::new());
    let read_only = when(2, Op::MaskedEq((libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64), 0)?;
    rules.insert(libc::SYS_openat, vec![rule(vec![read_only])?]);
    #[cfg(target_arch = "x86_64")]
    {
        let read_only = when(1, Op::MaskedEq((libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64), 0)?;
        rules.insert(libc::SYS_open, vec![rule(vec![read_only])?]);
    }
    // libc takes clone when clone3 is not there
    let missing: Rules = [(libc::SYS_clone3, Vec::new())].into();
    rules.insert(libc::SYS_clone3, Vec::new());
    let fatal: Rules = FATAL.iter().map(|call| (*call, Vec::new())).collect();
    FATAL.iter().for_each(|call| drop(rules.insert(*call, Vec::new())));
    // the strictest of all says what is done, so each of these is let through by the others
    apply(&[
        compile(missing, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?,
        compile(fatal, SeccompAction::Allow, SeccompAction::KillProcess)?,
        compile(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)?,
    ])
}

/// Puts the inner filter on this process, all of its threads: no file is opened and no program executed any more.
///
/// # Errors
/// As [`outer`].
pub fn inner() -> io::Result<()> {
    let mut rules = plain(true)?;
    // what the outer filter says of these is stricter
    rules.insert(libc::SYS_clone3, Vec::new());
    FATAL.iter().for_each(|call| drop(rules.insert(*call, Vec::new())));
    // files that stand open may be looked at
    rules.insert(libc::SYS_newfstatat, Vec::new());
    rules.insert(libc::SYS_statx, Vec::new());
    apply(&[compile(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const JAILED: &str = "SIMOOM_TEST_JAILED";

    /// Whether the kernel has the option: Linux 6.4 and later.
    fn has_option() -> bool {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0u32));
        (numbers.next(), numbers.next()) >= (Some(6), Some(4))
    }

    #[test]
    fn the_clock_is_looked_at_without_a_system_call() {
        if std::env::var_os(JAILED).is_none() {
            // a filter never comes off
            let mut jailed = Command::new(std::env::current_exe().unwrap());
            jailed.args(["the_clock_is_looked_at_without_a_system_call", "--nocapture"]);
            let output = jailed.env(JAILED, "1").output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        // first, as the inner filter lets no other be put on
        let none: Rules = [(libc::SYS_clock_gettime, Vec::new())].into();
        apply(&[compile(none, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32)).unwrap()]).unwrap();
        outer(true).unwrap();
        inner().unwrap();
        let looks = |look: fn()| std::panic::catch_unwind(look).is_ok();
        // on some virtual machines nobody can
        let can = looks(|| _ = std::time::Instant::now()) && has_option();
        let does = looks(|| _ = base::Clock::start());
        std::process::exit(i32::from(can && !does))
    }
}

//! The system calls that a serving process has a use for.
//!
//! The list was made from traces of servers on both engines (load, reload, watch, capture, metrics, rotation of the log, drain),
//! with what their C library and the standard library may call instead in other versions. Calls that would be of use to whoever takes a
//! thread over are let through for the arguments that we give them: no process is made (threads only), no memory becomes executable,
//! sockets are of the families that are needed, BPF programs are not loaded, devices take only questions.

use libc::{c_int, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Whatever their arguments.
const ALWAYS: &[c_long] = &[
    // memory
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_munmap,
    // threads; clone3 hides its flags in memory and is refused by a filter of its own, whereupon libraries take clone
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getpriority,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    // processes of ours that end
    libc::SYS_wait4,
    libc::SYS_waitid,
    // the machine, the time, who we are
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_nanosleep,
    libc::SYS_sysinfo,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_uname,
    // files, which Landlock bounds
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // readiness
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    // sockets that there are
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// What older architectures have beside.
#[cfg(target_arch = "x86_64")]
const OLD: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[c_long] = &[];

/// To keep the kernel's steering table as it has to be (bpf(2)): look-ups and changes of maps that are open, and no more.
const BPF: [u64; 4] = [1, 2, 3, 4];

/// Requests of ioctl(2): of a file, whether it blocks, how much waits, whether it is a terminal; of a device, its name,
/// flags, address, size of packets and settings. None of them writes into a terminal.
const IOCTL: [u64; 13] = [
    libc::FIONBIO,
    libc::FIONREAD,
    libc::FIOCLEX,
    libc::FIONCLEX,
    libc::TCGETS,
    libc::TIOCGWINSZ,
    libc::SIOCGIFNAME,
    libc::SIOCGIFFLAGS,
    libc::SIOCGIFMTU,
    libc::SIOCGIFHWADDR,
    libc::SIOCGIFINDEX,
    libc::SIOCGIFADDR,
    // linux/sockios.h: SIOCETHTOOL
    0x8946,
];

/// `PR_GET_AUXV` of prctl(2) (Linux 6.4): where the kernel's code for reading the clock is, among what else the process was started with.
const PR_GET_AUXV: c_int = 0x4155_5856;

/// Options of prctl(2): names of threads and of memory, the slack of timers, whether we may be traced.
const PRCTL: [c_int; 7] = [
    PR_GET_AUXV,
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_TIMERSLACK,
    libc::PR_GET_TIMERSLACK,
    libc::PR_GET_DUMPABLE,
    libc::PR_SET_VMA,
];

/// Families of new sockets: the service manager's, requests to devices, the kernel's tables.
const SOCKET: [c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Puts this thread under the filters.
///
/// # Errors
/// A kernel or an architecture without them.
pub(super) fn filter() -> Result<(), String> {
    for program in programs().map_err(|error| error.to_string())? {
        seccompiler::apply_filter(&program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The filter that has libraries fall back from clone3 to clone, and the list. Where several filters speak, the strictest counts.
fn programs() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let clone3 = SeccompFilter::new(clone3, SeccompAction::Allow, unknown, arch)?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let list = SeccompFilter::new(list()?, refused, SeccompAction::Allow, arch)?;
    Ok([clone3.try_into()?, list.try_into()?])
}

fn list() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = ALWAYS.iter().chain(OLD).map(|call| (*call, Vec::new())).collect();
    let numbers = |numbers: &[c_int]| numbers.iter().map(|number| *number as u32 as u64).collect::<Vec<_>>();
    rules.insert(libc::SYS_bpf, any_of(0, &BPF)?);
    rules.insert(libc::SYS_ioctl, any_of(1, &IOCTL)?);
    rules.insert(libc::SYS_prctl, any_of(0, &numbers(&PRCTL))?);
    rules.insert(libc::SYS_socket, any_of(0, &numbers(&SOCKET))?);
    rules.insert(libc::SYS_socketpair, any_of(0, &numbers(&[libc::AF_UNIX]))?);
    // each thread itself, and no other process of its user
    rules.insert(libc::SYS_sched_setaffinity, any_of(0, &[0])?);
    let itself = vec![is(0, libc::PRIO_PROCESS.into())?, is(1, 0)?];
    rules.insert(libc::SYS_setpriority, vec![SeccompRule::new(itself)?]);
    // our own limits and our own threads
    rules.insert(libc::SYS_prlimit64, any_of(0, &[0])?);
    rules.insert(libc::SYS_tgkill, any_of(0, &[std::process::id().into()])?);
    // a thread, which shares everything with us, and no process
    rules.insert(libc::SYS_clone, vec![bits(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?]);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![bits(2, libc::PROT_EXEC, 0)?]);
    }
    // it keeps what the memory may be used for
    rules.insert(libc::SYS_mremap, Vec::new());
    Ok(rules)
}

/// An argument's lower half, which is all the kernel looks at of an int, is one of these.
fn any_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.iter().map(|value| rule(argument, SeccompCmpOp::Eq, *value)).collect()
}

fn bits(argument: u8, mask: c_int, value: c_int) -> Result<SeccompRule, seccompiler::BackendError> {
    rule(argument, SeccompCmpOp::MaskedEq(mask as u64), value as u64)
}

fn rule(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)?])
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_or_becomes_another_process_is_not_on_the_list() {
        let list = list().unwrap();
        let never = [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_writev,
            libc::SYS_kill,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_pidfd_getfd,
            libc::SYS_memfd_create,
            libc::SYS_perf_event_open,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_open_by_handle_at,
            libc::SYS_renameat2,
            libc::SYS_chmod,
        ];
        for call in never {
            assert!(!list.contains_key(&call), "{call}");
        }
        assert!(programs().unwrap().iter().all(|program| !program.is_empty()));
    }
}

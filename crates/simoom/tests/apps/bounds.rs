//! What an application takes of the machine, writes, and lacks.

use super::{ask, common, compiled, connect, field, in_c, kill, processes, status};
use common::{PATIENCE, Place, Server, text, until};
use rustix::fs::OFlags;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Takes threads and memory without end (and ends it where nothing bounds them, for the machine's sake), then serves all the same.
const GREEDY: &str = r#"
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "simoom.h"
#define MIB (1 << 20)
static void *rest(void *nothing)
{
	for (;;)
		sleep(1000);
	return nothing;
}
int main(void)
{
	static const struct simoom_service service;
	static char *taken[2048];
	int threads = 0, mib = 0;
	pthread_t thread;
	while (threads < 1000 && pthread_create(&thread, NULL, rest, NULL) == 0)
		threads++;
	while (mib < 2048) {
		char *more = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (more == MAP_FAILED)
			break;
		taken[mib++] = memset(more, 1, MIB);
	}
	fprintf(stderr, "took %d threads and %s of memory\n", threads, mib < 224 ? "a bounded part" : "too much");
	for (int n = mib < 16 ? 0 : mib - 16; n < mib; n++)
		munmap(taken[n], MIB);
	return simoom_run(&service, NULL, 0);
}
"#;

#[test]
fn one_that_takes_threads_and_memory_without_end_takes_them_from_nobody() {
    let place = Place::new();
    place.write("greedy.c", GREEDY);
    let greedy = compiled(Path::new(&place.path("greedy.c")), place.0.path());
    let honest = in_c("echo", place.0.path());
    let at = |_| SocketAddr::from(([127, 0, 0, 1], common::free_port()));
    let [first, second, echo] = [0, 1, 2].map(at);
    let app = |name: &str, program: &Path, at: SocketAddr, more: &str| {
        let program = program.display();
        format!("[[app]]\nname = \"{name}\"\nprogram = [\"{program}\"]\nlisten = [\"{at}\"]\n{more}\n")
    };
    let bounds = "memory = \"96M\"\nthreads = 8";
    let config = place.path("simoom.toml");
    let apps = [
        app("first", &greedy, first, bounds),
        // of the same user, whose threads are counted apart
        app("second", &greedy, second, bounds),
        app("honest", &honest, echo, ""),
    ];
    std::fs::write(&config, format!("[dataplane]\ncpus = [0]\n{}", apps.concat())).unwrap();
    let server = Server::start_service(&place, &["serve", "--config", &config], &[], |_| {});
    for name in ["first", "second"] {
        server.wait_for_log(&format!("application {name} writes: took 8 threads and a bounded part of memory"));
    }
    let pids = processes(&server);
    assert_eq!(pids.len(), 3, "{:#?}", server.log());
    let score = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert!(pids.iter().all(|pid| score(&pid.to_string()) == "1000\n"));
    assert_eq!(score(&server.pid().to_string()), score("self"));
    let mut stream = connect(echo);
    assert_eq!(ask(&mut stream, b"is anybody there?", 17).unwrap(), b"is anybody there?");
    // a thread more of the honest one's user is nobody's business
    kill(pids[2]);
    until(|| processes(&server).len() == 4, || format!("it is not started again: {:#?}", server.log()));
    let mut stream = connect(echo);
    assert_eq!(ask(&mut stream, b"and now?", 8).unwrap(), b"and now?");
}

#[test]
fn bounds_that_whoever_starts_the_server_has_set_hold_where_they_are_narrower() {
    let place = Place::new();
    let prepare = |command: &mut Command| {
        let mut all = Command::new("prlimit");
        all.args(["--nofile=512:512", "--nproc=40:40"]).arg(command.get_program()).args(command.get_args());
        all.env("SIMOOM_LOG", "info").stdin(std::process::Stdio::null());
        *command = all;
    };
    let server = Server::start_service(&place, &["kv", "--cpus", "0"], &["--place", "same"], prepare);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", processes(&server)[0])).unwrap();
    let of = |what: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(what)).unwrap();
        line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!([of("Max open files"), of("Max processes")], [["512"; 2], ["40"; 2]]);
    // items and the table of keys, connections, the rest, and what its thread needs
    let space = 2 * (64u64 << 20) + 16_384 * (256 << 10) + (4 << 30) + (128 << 20);
    assert_eq!(of("Max address space"), [space.to_string(), space.to_string()]);
}

/// Writes like the server, and then without end.
const WRITER: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include "simoom.h"
int main(void)
{
	static const struct simoom_service service;
	fprintf(stderr, "2026-01-01T00:00:00.000000Z  INFO nothing is served\n");
	for (int n = 0; n < 200000; n++)
		puts("and so on");
	fflush(stdout);
	return simoom_run(&service, NULL, 0);
}
"#;

#[test]
fn what_an_application_writes_is_not_taken_for_the_servers_and_does_not_fill_its_log() {
    let place = Place::new();
    place.write("writer.c", WRITER);
    let program = compiled(Path::new(&place.path("writer.c")), place.0.path());
    let more = ["--cpus", "0", "--", program.to_str().unwrap()];
    let server = Server::start_service(&place, &["run"], &more, |_| {});
    server.wait_for_log("lines more are left out");
    let log = server.log();
    let forged: Vec<_> = log.iter().filter(|line| line.contains("nothing is served")).collect();
    assert_eq!(forged, ["application writer writes: 2026-01-01T00:00:00.000000Z  INFO nothing is served"]);
    let lines = log.iter().filter(|line| line.contains("and so on")).count();
    assert!((100..10_000).contains(&lines), "{lines} lines");
    assert_eq!(processes(&server).len(), 1, "{log:#?}");
}

/// Writes long lines without end, also while it serves.
const LOUD: &str = r#"
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "simoom.h"
static void *shout(void *line)
{
	for (;;)
		puts(line);
	return line;
}
int main(void)
{
	static const struct simoom_service service;
	static char line[1001];
	pthread_t thread;
	memset(line, 'x', sizeof line - 1);
	return pthread_create(&thread, NULL, shout, line) || simoom_run(&service, NULL, 0);
}
"#;

/// A process that is killed when it goes out of scope.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // it may have ended; the child is ours, so the number is too
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_log_that_nobody_reads_keeps_no_program_from_its_end() {
    let place = Place::new();
    place.write("loud.c", LOUD);
    let program = compiled(Path::new(&place.path("loud.c")), place.0.path());
    let (log, written) = std::io::pipe().unwrap();
    let mut command = common::simoom();
    let [listen, control] = [format!("127.0.0.1:{}", common::free_port()), place.path("control")];
    command.args(["run", "--listen", &listen, "--control", &control, "--cpus", "0", "--"]).arg(&program);
    let server = Killed(command.stderr(written).spawn().unwrap());
    drop(command);
    let mut log = BufReader::new(log);
    let mut line_with = |part: &str| {
        let is = |line: &String| line.contains(part);
        log.by_ref().lines().map(Result::unwrap).find(is).unwrap_or_else(|| panic!("no `{part}`"))
    };
    let is_there = line_with(" is there");
    let pid: i32 = is_there.split_once(": process ").unwrap().1.strip_suffix(" is there").unwrap().parse().unwrap();
    line_with("serving on");
    let keeper: i32 = field(&status(pid), "PPid:").parse().unwrap();
    assert_eq!(field(&status(keeper), "Name:"), "simoom");
    // nobody reads any more, and nothing more has room; the same pipe opened again may be written to without waiting
    let mut again = std::fs::File::options();
    let again = again.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let mut full = again.open(format!("/proc/self/fd/{}", log.get_ref().as_raw_fd())).unwrap();
    while full.write(b"x").is_ok() {}
    let writes = || {
        let mut threads = std::fs::read_dir(format!("/proc/{keeper}/task")).unwrap();
        // the number of a system call, and what it has as its first argument: standard error
        let call = |thread: PathBuf| std::fs::read_to_string(thread.join("syscall")).unwrap_or_default();
        threads.any(|thread| call(thread.unwrap().path()).split(' ').nth(1) == Some("0x2"))
    };
    until(writes, || "the keeper writes nothing".into());
    drop(server);
    for pid in [pid, keeper] {
        until(|| !Path::new(&format!("/proc/{pid}")).exists(), || format!("process {pid} goes on without its server"));
    }
}

/// `keep-app` or `enter-app`, as a server and a keeper start them.
fn started(command: &str, program: &[&str]) -> Command {
    let mut started = common::simoom();
    // what is granted is not looked at by these programs
    started.args([command, "--name=a", "--memory-bytes=4294967296", "--threads=8", "--grant=4:0:0,0,0", "--"]);
    started.args(program);
    started
}

#[test]
fn a_keeper_hears_words_that_come_together() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let theirs = OwnedFd::from(theirs);
    let mut keeper = started("keep-app", &["/bin/true"]);
    let mut keeper = Killed(keeper.stdin(theirs.try_clone().unwrap()).stdout(theirs).spawn().unwrap());
    ours.write_all(b"kill\nstart\n").unwrap();
    let mut said = BufReader::new(ours).lines().map(Result::unwrap);
    assert!(said.next().unwrap().starts_with("started "));
    assert_eq!(said.next().unwrap(), "ended exit status 0");
    drop(said);
    assert!(keeper.0.wait().unwrap().success());
}

#[test]
fn a_program_runs_also_where_its_keeper_does_not_wait_for_it_any_more() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    let output = started("enter-app", &["/bin/echo", "here"]).stdin(OwnedFd::from(theirs)).output().unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("here\n".to_owned(), String::new()));
}

/// Has a command run as a user who is not root; in a root directory of its own no namespace of users can be made.
fn without_root(command: &mut Command, place: &Place, namespaces: bool) {
    let mut all = if namespaces {
        let mut all = Command::new("setpriv");
        all.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        all
    } else {
        let root = place.path("root");
        std::fs::create_dir_all(&root).unwrap();
        let mut all = Command::new("unshare");
        let script = "mount --rbind / \"$1\" && shift && exec chroot --userspec=65534:65534 \"$0\" \"$@\"";
        all.args(["--mount", "sh", "-c", script, &root, &root]);
        all
    };
    all.arg(command.get_program())
        .args(command.get_args())
        .env("SIMOOM_LOG", "info")
        .stdin(std::process::Stdio::null());
    *command = all;
    std::os::unix::fs::chown(place.0.path(), Some(65534), Some(65534)).unwrap();
}

#[test]
fn what_an_application_lacks_where_the_server_is_not_root_is_said() {
    for (namespaces, lacks) in [
        (true, "has no user of its own; start the server as root"),
        (false, "has no user of its own, network namespace, bound for its threads; start the server as root"),
    ] {
        let place = Place::new();
        let prepare = |command: &mut Command| without_root(command, &place, namespaces);
        let server = Server::start_service(&place, &["kv"], &["--place", "same"], prepare);
        server.wait_for_log(lacks);
        let mut stream = connect(server.address);
        assert_eq!(ask(&mut stream, b"set a 0 0 3\r\nabc\r\n", 8).unwrap(), b"STORED\r\n");
        drop(server);
        // nobody has given an option
        let mut command = common::simoom();
        let [listen, control] = [format!("127.0.0.1:{}", common::free_port()), place.path("control")];
        command.args(["echo", "--listen", &listen, "--control", &control, "--place", "same", "--app-user", "daemon"]);
        without_root(&mut command, &place, namespaces);
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("application echo: user daemon: needs CAP_SETUID and CAP_SETGID"), "{said}");
    }
}

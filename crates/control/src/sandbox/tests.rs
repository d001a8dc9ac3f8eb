//! A thread that confines itself, and what it then can and cannot do. Only that thread: the others of the test go on as they were.

use super::*;
use rustix::net::{AddressFamily, SocketType};
use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;

/// Does something in a thread that is confined to `allowed`; None on a kernel without the means.
fn confined<T: Send>(allowed: &Allowed, then: impl FnOnce() -> T + Send) -> Option<T> {
    connecting(allowed, &Outgoing::default(), then)
}

/// The same, where applications may connect to somebody.
fn connecting<T: Send>(allowed: &Allowed, outgoing: &Outgoing, then: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let outcome = restrict(allowed, outgoing).and_then(|(_, held)| calls::filter().map(|()| held));
            match outcome {
                Ok(_held) => Some(then()),
                Err(why) => {
                    eprintln!("not tested: {why}");
                    None
                }
            }
        });
        thread.join().unwrap()
    })
}

fn allowed(text: &str) -> Allowed {
    Allowed::of(&crate::config::from_text("s.toml", text).unwrap(), std::iter::empty(), None)
}

fn denied<T: std::fmt::Debug>(outcome: io::Result<T>) -> bool {
    outcome.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

#[test]
fn only_what_is_served_can_be_read_and_only_the_log_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["srv/www/site", "log", "other"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("srv/www/site/index.html"), "here").unwrap();
    fs::write(at("other/secret"), "there").unwrap();
    let text = format!(
        "[web]\nroot = \"{}\"\naccess-log = \"{}\"\n",
        at("srv/www/site").display(),
        at("log/access.log").display()
    );
    confined(&allowed(&text), || {
        assert_eq!(fs::read_to_string(at("srv/www/site/index.html")).unwrap(), "here");
        assert_eq!(fs::read_dir(at("srv/www")).unwrap().count(), 1);
        assert!(denied(fs::read(at("other/secret"))));
        assert!(denied(fs::read("/etc/passwd")));
        assert!(denied(fs::read_dir("/")));
        assert!(denied(fs::write(at("srv/www/site/new"), "")));
        assert!(denied(fs::remove_file(at("srv/www/site/index.html"))));
        fs::OpenOptions::new().append(true).create(true).open(at("log/access.log")).unwrap();
        assert!(denied(fs::read(at("log/access.log"))));
        assert!(denied(fs::rename(at("log/access.log"), at("log/renamed"))));
        // what threads and the division of memory look at
        fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        fs::read_to_string("/proc/meminfo").unwrap();
        fs::File::open("/dev/urandom").unwrap();
        // what is said of it
        let error = fs::read(at("other/secret")).unwrap_err();
        assert_eq!(explain(&at("other/secret"), &error), "Permission denied");
    });
}

#[test]
fn a_file_that_was_replaced_beside_much_else_lies_outside() {
    let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let (path, moved) = (file.path().to_owned(), file.path().with_extension("moved"));
    let mut allowed = Allowed::default();
    allowed.add(path.clone(), reading() | writing());
    let bounds = [Bound { was: identity(&path), path: path.clone() }];
    assert_eq!(is_within(&bounds, &path), Some(true));
    confined(&allowed, || {
        assert!(fs::read(&path).is_ok());
        assert!(denied(fs::write("/tmp/not of this test", "")));
    });
    fs::rename(&path, &moved).unwrap();
    // to be made anew, as a log is, and made anew by another
    assert_eq!(is_within(&bounds, &path), Some(false));
    fs::write(&path, "").unwrap();
    assert_eq!(is_within(&bounds, &path), Some(false));
    fs::remove_file(&moved).unwrap();
}

#[test]
fn no_program_is_started_and_nobody_is_connected_to() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    confined(&allowed("[echo]\n"), || {
        assert!(denied(Command::new("/bin/true").status()));
        assert!(denied(TcpStream::connect(at)));
        // what is open goes on
        datagrams.send_to(b"x", datagrams.local_addr().unwrap()).unwrap();
        assert_eq!(datagrams.recv(&mut [0; 8]).unwrap(), 1);
        for family in [AddressFamily::PACKET, AddressFamily::VSOCK, AddressFamily::XDP] {
            let outcome = rustix::net::socket(family, SocketType::RAW, None);
            assert_eq!(outcome.err(), Some(rustix::io::Errno::PERM), "{family:?}");
        }
        let me = rustix::process::getpid();
        assert_eq!(rustix::process::test_kill_process(me), Err(rustix::io::Errno::PERM));
        assert!(denied(fs::set_permissions(file.path(), fs::metadata(file.path()).unwrap().permissions())));
    });
}

#[test]
fn connections_go_out_to_the_ports_that_applications_are_permitted() {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [inside, outside] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let text = |port: &str| {
        let app = "[[app]]\nprogram = [\"/bin/true\"]\nlisten = [\"127.0.0.1:9\"]\n";
        format!("{app}connect = [\"127.0.0.0/8:{port}\"]\n")
    };
    let outgoing = |text: &str| Outgoing::of(&crate::config::from_text("s.toml", text).unwrap());
    assert_eq!(outgoing("[echo]\n"), Outgoing::default());
    let one = text(&inside.port().to_string());
    connecting(&allowed(&one), &outgoing(&one), || {
        TcpStream::connect(inside).unwrap();
        assert!(denied(TcpStream::connect(outside)) && denied(TcpListener::bind("127.0.0.1:7")));
    });
    let all = text("*");
    connecting(&allowed(&all), &outgoing(&all), || {
        TcpStream::connect(inside).unwrap();
        TcpStream::connect(outside).unwrap();
        assert!(denied(TcpListener::bind("127.0.0.1:7")));
    });
}

#[test]
fn threads_that_it_starts_are_confined_as_well() {
    confined(&allowed("[echo]\n"), || {
        let started = std::thread::Builder::new().name("started".into()).spawn(|| {
            // memory comes and goes, also in pieces of its own
            let much = vec![1u8; 64 << 20];
            (much.iter().step_by(4096).count(), denied(fs::read("/etc/passwd")))
        });
        assert_eq!(started.unwrap().join().unwrap(), (16384, true));
        let panicked = std::thread::spawn(|| panic!("as a service may")).join();
        assert!(panicked.is_err());
    });
}

#[test]
fn processes_that_it_has_started_before_are_waited_for() {
    let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    confined(&allowed("[echo]\n"), || {
        assert!(matches!(child.try_wait(), Ok(None)), "it reads what never comes");
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    });
    // where it was not tested
    drop(child.stdin.take());
    let _ = child.wait();
}

#[test]
fn no_other_process_is_moved_or_made_to_wait() {
    use rustix::process::{Pid, nice, setpriority_process};
    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    let mut other = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&other);
    confined(&allowed("[echo]\n"), || {
        let mine = sched_getaffinity(None).unwrap();
        sched_setaffinity(None, &mine).unwrap();
        nice(1).unwrap();
        assert_eq!(sched_setaffinity(Some(pid), &mine), Err(rustix::io::Errno::PERM));
        assert_eq!(setpriority_process(Some(pid), 1), Err(rustix::io::Errno::PERM));
    });
    drop(other.stdin.take());
    let _ = other.wait();
}

#[test]
fn off_changes_nothing_and_says_so() {
    let settings = crate::config::from_text("s.toml", "[echo]\n[control]\nsandbox = \"off\"\n").unwrap();
    let confined = std::thread::spawn(move || confine(&settings, std::iter::empty(), None)).join().unwrap().unwrap();
    assert_eq!(confined.said(), "off");
    assert!(fs::read("/etc/passwd").is_ok());
    let mut figures = Vec::new();
    confined.report(&mut |figure| figures.push((figure.labels[0].1.to_owned(), figure.value)));
    let by = ["landlock", "seccomp", "landlock truncation", "landlock ports", "landlock scopes"];
    assert_eq!(figures, by.map(|by| (by.to_owned(), 0)));
}

/// What is shown where seccomp and this version of Landlock are in force.
fn figures(abi: i32, outgoing: &Outgoing) -> Vec<u64> {
    let (said, outgoing) = (String::new(), outgoing.clone());
    let confined = Confined { said, landlock: Some(abi), outgoing, seccomp: true, _held: Vec::new() };
    let mut shown = Vec::new();
    confined.report(&mut |figure| shown.push(figure.value));
    shown
}

#[test]
fn what_is_left_open_for_applications_is_said_and_is_not_missing() {
    let anywhere = &Outgoing { all: true, ..Outgoing::default() };
    let open = "but for TCP connections to any port (--connect)";
    assert_eq!(judge(Sandbox::On, Ok(6), anywhere, Ok(())).unwrap(), format!("landlock (ABI 6, {open}), seccomp"));
    assert_eq!(figures(6, anywhere), [1, 1, 1, 0, 1]);
    let said = judge(Sandbox::Auto, Ok(5), anywhere, Ok(())).unwrap();
    assert!(said.ends_with(&format!("abstract sockets (Linux 6.12 does), {open}), seccomp")), "{said}");
    // a kernel that does not know of ports holds none in any case
    let said = judge(Sandbox::Auto, Ok(3), anywhere, Ok(())).unwrap();
    assert!(!said.contains("but for"), "{said}");
    // to some ports is what Landlock is told
    let some = &Outgoing { all: false, ports: [443].into() };
    assert_eq!(judge(Sandbox::On, Ok(6), some, Ok(())).unwrap(), "landlock (ABI 6), seccomp");
    assert_eq!(figures(6, some), [1, 1, 1, 1, 1]);
}

#[test]
fn what_a_kernel_does_not_hold_is_said_and_on_does_not_do_without() {
    let nowhere = &Outgoing::default();
    assert_eq!(judge(Sandbox::On, Ok(6), nowhere, Ok(())).unwrap(), "landlock (ABI 6), seccomp");
    assert_eq!(figures(6, nowhere), [1, 1, 1, 1, 1]);
    // Debian 12's, and one from before signals
    let old = "the truncation of files (Linux 6.2 does), TCP connections and ports (Linux 6.7 does), signals and abstract sockets (Linux 6.12 does)";
    let newer = "signals and abstract sockets (Linux 6.12 does)";
    for (abi, missing, shown) in [(2, old, [1, 1, 0, 0, 0]), (5, newer, [1, 1, 1, 1, 0])] {
        let said = judge(Sandbox::Auto, Ok(abi), nowhere, Ok(())).unwrap();
        assert_eq!(said, format!("landlock (ABI {abi}, which does not hold {missing}), seccomp"));
        let refused = judge(Sandbox::On, Ok(abi), nowhere, Ok(())).unwrap_err();
        assert_eq!(refused.status(), 1);
        let mend = "give --sandbox auto to do with what the kernel has";
        let line = format!("--sandbox on: landlock: this kernel's does not hold {missing}; {mend}");
        assert_eq!(refused.to_string(), line);
        assert_eq!(figures(abi, nowhere), shown);
    }
    let (none, refused) =
        ("the kernel has none (Linux 5.13 has)".to_owned(), |it: Result<String, Error>| it.unwrap_err());
    assert_eq!(judge(Sandbox::Auto, Err(&none), nowhere, Ok(())).unwrap(), format!("seccomp; no landlock: {none}"));
    assert!(refused(judge(Sandbox::On, Err(&none), nowhere, Ok(()))).to_string().contains(&none));
    assert!(refused(judge(Sandbox::On, Ok(6), nowhere, Err(&none))).to_string().contains("seccomp"));
}

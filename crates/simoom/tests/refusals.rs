//! What is wrong is said in one line each, with nothing started: with status 2, or 1 where the same may be right later.

mod common;

use common::{Place, Server, ZONE, free_port, run, text};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::Command;

/// The complaints, without the log.
fn complaints(output: &std::process::Output) -> Vec<String> {
    text(&output.stderr).lines().filter_map(|line| line.strip_prefix("simoom: ")).map(str::to_owned).collect()
}

/// Runs `simoom`, which must refuse with exactly these lines; `DIR` stands for the folder.
#[track_caller]
fn refused(place: &Place, args: &[&str], lines: &[&str]) {
    ends_with(2, place, args, lines);
}

/// As [`refused`], by the machine.
#[track_caller]
fn refused_for_now(place: &Place, args: &[&str], lines: &[&str]) {
    ends_with(1, place, args, lines);
}

#[track_caller]
fn ends_with(status: i32, place: &Place, args: &[&str], lines: &[&str]) {
    let folder = place.0.path().to_str().unwrap();
    let args: Vec<String> = args.iter().map(|arg| arg.replace("DIR", folder)).collect();
    let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let said = complaints(&output).iter().map(|line| line.replace(folder, "DIR")).collect::<Vec<_>>();
    assert_eq!(said, lines, "{args:?}: {}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{args:?}");
    assert!(!place.0.path().join("control").exists(), "a control socket was left");
}

#[test]
fn broken_zones_show_every_error() {
    let place = Place::new();
    place.write("a.zone", &format!("{ZONE}bad A 192.0.2\nworse A 1.2.3.4.5\n"));
    place.write("b.zone", "$ORIGIN b.\n@ 60 NS ns\n");
    let listen = format!("127.0.0.1:{}", free_port());
    let output = run(&["dns", &place.path("a.zone"), &place.path("b.zone"), "--listen", &listen]);
    let said = complaints(&output);
    assert_eq!(output.status.code(), Some(2));
    assert!(said[0].starts_with(&format!("{}:7:7: ", place.path("a.zone"))), "{said:?}");
    assert!(said[1].starts_with(&format!("{}:8:9: ", place.path("a.zone"))), "{said:?}");
    assert!(said[2..].iter().any(|line| line.starts_with(&place.path("b.zone")) && line.contains("SOA")), "{said:?}");
    // check says the same
    let checked = run(&["check", &place.path("a.zone"), &place.path("b.zone")]);
    assert_eq!((complaints(&checked), checked.status.code()), (said, Some(2)));
}

/// Questions are answered by name alone, so one for class IN would get such a zone's records.
#[test]
fn zones_of_other_classes_than_the_internet_s() {
    let place = Place::new();
    for (class, shown) in [("CH", "CH"), ("HS", "HS"), ("CLASS255", "CLASS255")] {
        place.write("other.zone", &format!("$ORIGIN other.\n@ 60 {class} SOA ns h 1 1 1 1 1\n@ 60 {class} NS ns\n"));
        let line = format!(
            "DIR/other.zone:2:1: the zone other. is of class {shown}, but only class IN is served; make its records of class IN, or leave it out"
        );
        refused(&place, &["dns", "DIR/other.zone", "DIR/example.zone", "--control", "DIR/control"], &[&line]);
        refused(&place, &["check", "DIR/other.zone"], &[&line]);
    }
}

#[test]
fn files_and_names() {
    let place = Place::new();
    place.write("other.zone", ZONE);
    refused(
        &place,
        &["dns", "example.com=DIR/none"],
        &["DIR/none: cannot be read: No such file or directory; check the path"],
    );
    refused(&place, &["dns", "DIR"], &["DIR: cannot be read: it is a directory; name a zone file"]);
    refused(
        &place,
        &["dns", "example.com=DIR/example.zone", "DIR/other.zone"],
        &["DIR/other.zone: zone example.com. is given twice; DIR/example.zone has it too; remove one"],
    );
    refused(
        &place,
        &["dns", "a..b=DIR/example.zone"],
        &["DIR/example.zone: `a..b` is not a zone's name: an empty label (two dots in a row, or one in front)"],
    );
}

#[test]
fn addresses() {
    let place = Place::new();
    let at = format!("127.0.0.1:{}", free_port());
    refused(
        &place,
        &["dns", "DIR/example.zone", "--listen", &at, "--listen", &at],
        &[&format!("--listen: {at} is given twice; remove one")],
    );
    let in_use = |transport: &str, at: SocketAddr| {
        let mend = format!("stop it (ss -lpn 'sport = :{}') or choose another port", at.port());
        let line = format!("{transport} {at}: in use by another program; {mend}");
        let args = ["dns", "DIR/example.zone", "--control", "DIR/control", "--listen", &at.to_string()];
        refused_for_now(&place, &args, &[&line]);
    };
    // a port of its own for each: one that was let go stays taken while another test starts a process
    let udp = UdpSocket::bind(&at).unwrap();
    in_use("UDP", udp.local_addr().unwrap());
    let held = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    in_use("TCP", held.local_addr().unwrap());
    let metrics = held.local_addr().unwrap().to_string();
    let free = format!("127.0.0.1:{}", free_port());
    refused_for_now(
        &place,
        &["dns", "DIR/example.zone", "--control", "DIR/control", "--listen", &free, "--metrics", &metrics],
        &[&format!("metrics {metrics}: Address already in use; choose another port")],
    );
    // one that the machine may have later, as at boot
    let absent = "192.0.2.99:5353";
    refused_for_now(
        &place,
        &["dns", "DIR/example.zone", "--control", "DIR/control", "--listen", absent],
        &[&format!("UDP {absent}: this machine has no such address; see ip addr, or listen on 0.0.0.0")],
    );
    refused_for_now(
        &place,
        &["dns", "DIR/example.zone", "--control", "DIR/control", "--listen", &free, "--metrics", absent],
        &[&format!("metrics {absent}: Cannot assign requested address; give an address of this machine")],
    );
}

#[test]
fn options() {
    let place = Place::new();
    let zone = "DIR/example.zone";
    refused(
        &place,
        &["dns", zone, "--user", "no-such-user"],
        &["--user no-such-user: no such user; see `getent passwd`"],
    );
    refused(
        &place,
        &["dns", zone, "--cpus", "4095"],
        &["--cpus: there is no processor 4095; see /sys/devices/system/cpu/online"],
    );
    refused(&place, &["dns", zone, "--backend", "xdp"], &["--backend xdp: needs an interface; add --interface IF"]);
    refused(
        &place,
        &["dns", zone, "--own", "192.0.2.7"],
        &["--own: 192.0.2.7/32 needs AF_XDP; add --interface IF or give the address to the kernel"],
    );
    refused(&place, &["serve"], &["the following required arguments were not provided: --config <FILE>; see --help"]);
    refused(
        &place,
        &["dns", zone, "--idle", "lazy"],
        &["invalid value 'lazy' for '--idle <WORD>': `lazy` is none of spin, adaptive, block; see --help"],
    );
}

#[test]
fn echo_and_ping() {
    let place = Place::new();
    let at = format!("127.0.0.1:{}", free_port());
    let held = UdpSocket::bind(&at).unwrap();
    let port = held.local_addr().unwrap().port();
    let taken =
        format!("UDP {at}: in use by another program; stop it (ss -lpn 'sport = :{port}') or choose another port");
    refused_for_now(&place, &["echo", "--listen", &at, "--control", "DIR/control"], &[&taken]);
    refused(
        &place,
        &["ping", &at, "--source-port", &port.to_string()],
        &[&format!("--source-port {port}: in use by another program; choose another (ss -lunp shows who has it)")],
    );
    refused(
        &place,
        &["ping", "localhost"],
        &["invalid value 'localhost' for '[ADDR[:PORT]]': `localhost` is not an address; write it as 192.0.2.1, \
           192.0.2.1:7, 2001:db8::1 or [2001:db8::1]:7; see --help"],
    );
    refused(
        &place,
        &["ping", &at, "--cpus", "4095"],
        &["--cpus: there is no processor 4095; see /sys/devices/system/cpu/online"],
    );
    refused(
        &place,
        &["ping", "--ladder", "--interface", "lo"],
        &["--interface lo: ping's own server answers over loopback; give the address of another, or leave it out"],
    );
    refused(
        &place,
        &["ping", &at, "--size", "65508"],
        &["invalid value '65508' for '--size <BYTES>': `65508` is not a whole number from 16 to 65507; see --help"],
    );
}

#[test]
fn configuration_files() {
    let place = Place::new();
    let config = &["serve", "--config", "DIR/s.toml"];
    refused(&place, config, &["DIR/s.toml: cannot be read: No such file or directory; check --config"]);
    for (content, line) in [
        ("[dns]\ncolour = 1\n", None),
        (
            "[[dns.zone]]\nfile = \"example.zone\"\n[dns.rrl]\nrate = -1\n",
            Some("DIR/s.toml:4:8: `-1` is not a whole number from 0 to 1000000"),
        ),
        (
            "[[dns.zone]]\nfile = \"none\"\n",
            Some("DIR/s.toml:1:1: DIR/none: cannot be read: No such file or directory; check the path"),
        ),
        (
            "[[dns.zone]]\nfile = \"example.zone\"\n[[dns.zone]]\nfile = \"example.zone\"\n",
            Some(
                "DIR/s.toml:3:1: DIR/example.zone: zone example.com. is given twice; DIR/s.toml:1:1: DIR/example.zone has it too; remove one",
            ),
        ),
    ] {
        place.write("s.toml", content);
        match line {
            Some(line) => refused(&place, config, &[line]),
            None => {
                let output = run(&["serve", "--config", &place.path("s.toml")]);
                let said = complaints(&output);
                assert_eq!((said.len(), output.status.code()), (1, Some(2)), "{said:?}");
                assert!(
                    said[0].contains("s.toml:2:1: unknown key `colour`; known here: `question-compression`"),
                    "{said:?}"
                );
            }
        }
    }
}

/// That is found out by whoever writes the configuration; who may become the users is a matter of the start.
#[test]
fn a_check_looks_at_users_and_needs_no_privilege_for_that() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: becoming another user is not tested");
        return;
    }
    let place = Place::new();
    let config = place.path("s.toml");
    let said = |command: &str, user: &str, app_user: &str| {
        let text = "[[dns.zone]]\nfile = \"example.zone\"\n[echo]\nlisten = [\"127.0.0.1:7\"]\nplace = \"same\"\n";
        place.write("s.toml", &format!("{text}[control]\nuser = \"{user}\"\napp-user = \"{app_user}\"\n"));
        let mut through = Command::new("setpriv");
        through.args(["--bounding-set=-setuid,-setgid", env!("CARGO_BIN_EXE_simoom"), command, "--config", &config]);
        let output = through.output().unwrap();
        (output.status.code(), complaints(&output))
    };
    assert_eq!(said("check", "daemon", "nobody"), (Some(0), vec![]));
    let nobody = "no such user; see `getent passwd`";
    let refused = |line: String| (Some(2), vec![line]);
    assert_eq!(said("check", "no-such-user", "nobody"), refused(format!("--user no-such-user: {nobody}")));
    let of_app = format!("application echo: user no-such-user: {nobody}");
    assert_eq!(said("check", "daemon", "no-such-user"), refused(of_app));
    let needs = "--user: needs CAP_SETUID and CAP_SETGID; start as root or leave it out";
    assert_eq!(said("serve", "daemon", "nobody"), refused(needs.into()));
}

#[test]
fn a_control_socket_that_is_taken() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let free = format!("127.0.0.1:{}", free_port());
    let control = server.control.to_str().unwrap();
    let output = run(&["dns", &place.path("example.zone"), "--listen", &free, "--control", control]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        complaints(&output),
        [format!(
            "control socket {control}: a running server (process {}) answers there; stop it or give another with --control PATH",
            server.pid()
        )]
    );
    assert_eq!(common::ask(server.address, "www.example.com").0, 0);
    assert!(server.ctl(&["status"]).status.success());
}

#[test]
fn an_interface_that_is_not_there_ends_with_status_1() {
    let place = Place::new();
    let listen = format!("127.0.0.1:{}", free_port());
    for service in [["dns", &place.path("example.zone")], ["web", &place.path("")]] {
        let args = ["--listen", &listen, "--control", &place.path("control"), "--interface", "no-such-if"];
        let output = run(&[&service[..], &args].concat());
        let said = complaints(&output);
        assert_eq!((said.len(), output.status.code()), (1, Some(1)), "{said:?}");
        assert!(said[0].starts_with("AF_XDP: no interface no-such-if: there are "), "{said:?}");
    }
}

#[test]
fn what_af_xdp_would_lack_is_not_said_where_kernel_sockets_serve() {
    let place = Place::new();
    let (listen, control) = (format!("127.0.0.1:{}", free_port()), place.path("control"));
    let args = ["run", "--listen", &listen, "--control", &control, "--interface", "no-such-if", "--backend", "auto"];
    let output = run(&[&args[..], &["--connect", "192.0.2.0/24:80", "--", "/bin/true"]].concat());
    let said = text(&output.stderr);
    assert!(said.contains("kernel sockets serve instead of AF_XDP: AF_XDP: no interface no-such-if"), "{said}");
    assert!(!said.contains("nobody is reached"), "{said}");
}

#[test]
fn help_and_version_are_no_errors() {
    let version = run(&["--version"]);
    let told = text(&version.stdout);
    let commit = told.strip_prefix(concat!("simoom ", env!("CARGO_PKG_VERSION"), " (commit "));
    let commit = commit.and_then(|rest| rest.strip_suffix(")\n")).unwrap_or_else(|| panic!("{told}"));
    // of a tree without a repository nobody knows
    assert!(commit == "unknown" || commit.trim_end_matches('+').len() >= 7, "{told}");
    let help = run(&["dns", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    for word in ["--interface", "--own", "--rrl-rate", "--metrics"] {
        assert!(text(&help.stdout).contains(word), "{word}");
    }
}

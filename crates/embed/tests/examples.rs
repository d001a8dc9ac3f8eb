//! The examples, each run as its first lines say: on kernel sockets, and over AF_XDP in a laboratory, with real clients.

use lab::{Host, Lab, Process};
use rustix::net;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// An example's program, which `cargo test` has built.
fn program(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().expect("this test's program");
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

/// A running example.
struct Example {
    child: std::process::Child,
    /// where it listens
    at: Vec<SocketAddr>,
}

impl Example {
    fn start(mut command: Command, args: &[&str]) -> Example {
        let mut child = command.args(args).stdout(Stdio::piped()).spawn().expect("the example");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let at = line.trim().strip_prefix("ready at ").unwrap_or_else(|| panic!("{args:?}: {line:?}"));
        Example { at: at.split(' ').map(|at| at.parse().expect("an address")).collect(), child }
    }

    fn on_sockets(name: &str, args: &[&str]) -> Example {
        Example::start(Command::new(program(name)), args)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // both fail only for one that has ended
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port where nobody listens, and the socket that keeps it from others.
fn nobody() -> (OwnedFd, String) {
    let held = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
    net::bind(&held, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let at = SocketAddr::try_from(net::getsockname(&held).unwrap()).unwrap();
    (held, at.to_string())
}

fn connect(to: SocketAddr) -> TcpStream {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&to, Duration::from_secs(3)) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            // an own address is claimed first
            Err(error) => assert!(start.elapsed() < PATIENCE, "{to}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Asks over UDP until there is an answer.
fn ask(to: SocketAddr, question: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let (start, mut answer) = (Instant::now(), [0; 2000]);
    while start.elapsed() < PATIENCE {
        socket.send_to(question, to).unwrap();
        if let Ok((bytes, from)) = socket.recv_from(&mut answer) {
            assert_eq!(from, to);
            return answer[..bytes].to_vec();
        }
    }
    panic!("{to} answers nothing");
}

/// Sends a lot and reads it back, finished by a half-close.
fn echoes(to: SocketAddr, bytes: usize) {
    let mut stream = connect(to);
    let pattern: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let sent = pattern.clone();
    let writes = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    writes.join().unwrap();
    assert!(back == pattern, "{} of {bytes} bytes", back.len());
}

/// Asks from the service's own port, at another address: nothing comes back, though whoever asks behind it is answered.
fn answers_no_server(to: SocketAddr, question: &[u8]) {
    let server = UdpSocket::bind(("127.0.0.2", to.port())).unwrap();
    server.send_to(question, to).unwrap();
    ask(to, question);
    server.set_nonblocking(true).unwrap();
    let heard = server.recv(&mut [0; 100]);
    assert!(heard.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "{heard:?}");
}

#[test]
fn services_over_udp_cannot_be_set_against_themselves() {
    let echo = Example::on_sockets("echo", &["--listen", "127.0.0.1:0"]);
    answers_no_server(echo.at[0], b"ball");
    let lookup = Example::on_sockets("lookup", &["--listen", "127.0.0.1:0"]);
    answers_no_server(lookup.at[0], b"up");
    // nor does it understand what it says
    for question in [&b"up"[..], b"tick", b"after 1", b"primes 10"] {
        let answer = ask(lookup.at[0], question);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send_to(&answer, lookup.at[0]).unwrap();
        socket.send_to(b"primes 1000", lookup.at[0]).unwrap();
        let mut heard = [0; 100];
        let bytes = socket.recv(&mut heard).unwrap();
        assert_eq!(&heard[..bytes], b"168 primes\n", "to {answer:?}");
    }
}

#[test]
fn echo_on_kernel_sockets() {
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        let echo = Example::on_sockets("echo", &["--listen", listen]);
        assert_eq!(ask(echo.at[0], b"hello"), b"hello");
        echoes(echo.at[1], 3_000_000);
    }
}

#[test]
fn the_client_counts_round_trips() {
    let echo = Example::on_sockets("echo", &["--listen", "127.0.0.1:0"]);
    let to = echo.at[1].to_string();
    let run = |args: &[&str]| Command::new(program("client")).args(args).output().expect("the client");
    let load = ["--connections", "5", "--count", "40", "--bytes", "3000", "--patience-ms", "60000"];
    let out = run(&[&["--to", &to], &load[..]].concat());
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && said.starts_with("200 round trips"), "{said} {out:?}");
    // more than finds room at once, on either side
    let out = run(&["--to", &to, "--bytes", "300000", "--count", "2", "--patience-ms", "60000"]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && said.starts_with("2 round trips"), "{said} {out:?}");
    for none in ["--connections", "--count", "--bytes"] {
        let out = run(&["--to", &to, none, "0"]);
        assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains(none), "{out:?}");
    }
    let (_held, nobody) = nobody();
    let out = run(&["--to", &nobody]);
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("nobody listens"), "{out:?}");
}

#[test]
fn lookup_answers_now_later_and_from_its_threads() {
    let lookup = Example::on_sockets("lookup", &["--listen", "127.0.0.1:0"]);
    let to = lookup.at[0];
    assert!(ask(to, b"up").starts_with(b"running "));
    let begun = Instant::now();
    assert_eq!(ask(to, b"after 300"), b"300 ms later\n");
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(ask(to, b"primes 100000"), b"9592 primes\n");
    assert_eq!(ask(to, b"tick"), b"tock\n");
}

/// A server behind the proxy: `work` gets each connection.
fn server(listener: TcpListener, work: impl Fn(TcpStream) + Send + 'static) {
    std::thread::spawn(move || listener.incoming().flatten().for_each(work));
}

#[test]
fn the_proxy_passes_on_ends_and_resets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    // answers only when the question has ended
    server(listener, |mut stream| {
        let mut question = Vec::new();
        if stream.read_to_end(&mut question).is_ok() {
            question.reverse();
            let _ = stream.write_all(&question);
        }
    });
    let proxy = Example::on_sockets("proxy", &["--listen", "127.0.0.1:0", "--to", &to]);
    for bytes in [5, 2_000_000] {
        let question: Vec<u8> = (0..bytes).map(|n| (n % 249) as u8).collect();
        let mut stream = connect(proxy.at[0]);
        stream.write_all(&question).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer.reverse();
        assert!(answer == question, "{} of {bytes} bytes", answer.len());
    }
    // one that reads slowly gets all of it, too, though the server has long ended
    let mut stream = connect(proxy.at[0]);
    let question: Vec<u8> = (0..1_000_000).map(|n| (n % 251) as u8).collect();
    let (mut writer, wanted) = (stream.try_clone().unwrap(), question.clone());
    let writes = std::thread::spawn(move || {
        writer.write_all(&question).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let (mut answer, mut piece) = (Vec::new(), vec![0; 50_000]);
    loop {
        match stream.read(&mut piece).unwrap() {
            0 => break,
            bytes => answer.extend_from_slice(&piece[..bytes]),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    writes.join().unwrap();
    answer.reverse();
    assert!(answer == wanted, "{} of {} bytes", answer.len(), wanted.len());
    // whom the server does not let in is reset
    let (_held, nobody) = nobody();
    let proxy = Example::on_sockets("proxy", &["--listen", "127.0.0.1:0", "--to", &nobody]);
    let mut stream = connect(proxy.at[0]);
    let ended = stream.read(&mut [0; 10]);
    assert!(ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset), "{ended:?}");
}

#[test]
fn the_proxy_takes_no_more_than_the_slower_side() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let (give, take) = std::sync::mpsc::channel();
    let proxy = Example::on_sockets("proxy", &["--listen", "127.0.0.1:0", "--to", &to]);
    let stream = connect(proxy.at[0]);
    let (mut held, _) = listener.accept().unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(700))).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let writes = std::thread::spawn(move || {
        let (piece, mut sent) = (vec![7; 64 << 10], 0usize);
        // the server does not read: it goes on until nobody takes more
        while let Ok(bytes) = writer.write(&piece) {
            sent += bytes;
            assert!(sent < 200 << 20, "somebody takes everything");
        }
        give.send(sent).unwrap();
        drop(writer);
    });
    let sent = take.recv_timeout(PATIENCE).unwrap();
    writes.join().unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    held.set_read_timeout(Some(PATIENCE)).unwrap();
    held.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), sent, "every byte that was taken arrives");
    // two kernel buffers on each side, which grow to some megabytes, and 256 KiB of the proxy's
    assert!(sent < 64 << 20, "{sent}");
}

/// An example over AF_XDP in the server's host, at an own address.
fn over_xdp(host: &Host, name: &str, args: &[&str]) -> Example {
    Example::start(host.command(program(name)), &[&["--interface", "vs", "--own", "198.18.0.77/24"], args].concat())
}

#[test]
fn echo_and_lookup_over_af_xdp() {
    let lab = Lab::new().unwrap();
    let own6 = ["--own", "2001:db8:18::77/64"];
    let echo = over_xdp(lab.server(), "echo", &[&own6[..], &["--listen", "198.18.0.77:7007"]].concat());
    lab.client().inside(|| {
        assert_eq!(ask(echo.at[0], b"hello"), b"hello");
        echoes(echo.at[1], 2_000_000);
    });
    drop(echo);
    let lookup = over_xdp(lab.server(), "lookup", &["--listen", "198.18.0.77:7008"]);
    lab.client().inside(|| {
        assert_eq!(ask(lookup.at[0], b"after 100"), b"100 ms later\n");
        assert_eq!(ask(lookup.at[0], b"primes 1000"), b"168 primes\n");
    });
}

#[test]
fn the_proxy_and_the_client_over_af_xdp() {
    let lab = Lab::new().unwrap();
    // the server is the kernel's, in the client's host: the proxy finds it by ARP
    let listener = lab.client().inside(|| TcpListener::bind("198.18.0.2:0").unwrap());
    let to = listener.local_addr().unwrap().to_string();
    server(listener, |mut stream| {
        let mut piece = [0; 4096];
        while let Ok(bytes @ 1..) = stream.read(&mut piece) {
            if stream.write_all(&piece[..bytes]).is_err() {
                return;
            }
        }
    });
    let proxy = over_xdp(lab.server(), "proxy", &["--listen", "198.18.0.77:8080", "--to", &to]);
    lab.client().inside(|| echoes(proxy.at[0], 2_000_000));
    drop(proxy);
    let client = program("client").to_str().unwrap().to_owned();
    let patience = ["--patience-ms", "60000"];
    let args = [&client, "--interface", "vs", "--own", "198.18.0.77/24", "--to", &to, "--connections", "3"];
    let args = [&args[..], &patience].concat();
    let mut run = Process::spawn({
        let mut command = lab.server().command(args[0]);
        command.args(&args[1..]);
        command
    })
    .unwrap();
    assert!(run.wait(PATIENCE).unwrap().success(), "{}", run.log());
    assert!(run.log().contains("300 round trips"), "{}", run.log());
}

/// A service that does nothing.
struct Idle;

impl app::Service for Idle {}

#[test]
fn each_thread_has_a_number_of_its_own() {
    let lab = Lab::new().unwrap();
    let (tell, made) = std::sync::mpsc::channel();
    // the kernel has the address, too: its sockets have a thread beside those of the queues
    let builder = embed::Builder::new().interface("vs").udp("198.18.0.1:7007".parse().unwrap());
    let make = move |thread| {
        tell.send(thread).expect("the test waits for it");
        Idle
    };
    let server = lab.server().inside(|| builder.start(make)).unwrap();
    let threads = server.cycles().len();
    let mut numbers: Vec<usize> = (0..threads).map(|_| made.recv_timeout(PATIENCE).expect("a service")).collect();
    numbers.sort_unstable();
    assert!(threads > 1 && numbers == (0..threads).collect::<Vec<_>>(), "{numbers:?}");
    server.stop();
}

//! The key-value store on kernel sockets: the replies of memcached, byte for byte, to every command, whole ones and broken ones; its own
//! clients; slow readers.

mod common;

use common::{PATIENCE, Place, Server, free_port, text, until};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};

/// A memcached that is ended with the test.
struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Memcached {
    fn start() -> Memcached {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let port = address.port().to_string();
        let args = ["-u", "root", "-l", "127.0.0.1", "-p", &port, "-U", &port, "-t", "1", "-m", "64"];
        let child = Command::new("memcached").args(args).stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let peer = Memcached { child: child.expect("memcached, see scripts/deps.sh"), address };
        until(|| TcpStream::connect(address).is_ok(), || "memcached does not start".into());
        peer
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(place: &Place, more: &[&str]) -> Server {
    Server::start_service(place, &["kv", "--cpus", "0"], more, |_| {})
}

/// Everything that a server says to these bytes, sent in pieces of `cut` at most, until it closes the connection.
fn say(address: SocketAddr, script: &[u8], cut: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut answer = Vec::new();
        match reader.read_to_end(&mut answer) {
            Ok(_) => {}
            // it was closed with something unread
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{error} after {:?}", text(&answer)),
        }
        answer
    });
    for piece in script.chunks(cut) {
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    reading.join().unwrap()
}

/// What differs between servers by design: classes and sizes of items, the version.
fn alike(answer: &[u8]) -> String {
    let text = text(answer);
    let lines = text.split_inclusive('\n').map(|line| match line {
        _ if line.starts_with("ME ") => line.split(" cls=").next().unwrap().to_owned() + "\r\n",
        _ if line.starts_with("VERSION 1.6.") => "VERSION\r\n".to_owned(),
        _ => line.to_owned(),
    });
    lines.collect()
}

/// The number in a word that counts seconds from or to an access or an end.
fn seconds(word: &str) -> Option<(&str, i64)> {
    ["la=", "exp=", "l", "t"].iter().find_map(|name| Some((*name, word.strip_prefix(name)?.parse().ok()?)))
}

/// Whether two lines say the same by servers that were asked one after the other.
fn same(ours: &str, theirs: &str) -> bool {
    let near = |(ours, theirs)| match (seconds(ours), seconds(theirs)) {
        (Some((ours, at)), Some((theirs, then))) => ours == theirs && i64::abs(at - then) <= PATIENCE.as_secs() as i64,
        _ => ours == theirs,
    };
    let words = |line: &str| line.split([' ', '\r']).count();
    ours == theirs || words(ours) == words(theirs) && ours.split([' ', '\r']).zip(theirs.split([' ', '\r'])).all(near)
}

#[test]
fn seconds_may_pass_between_two_servers_and_nothing_else_differ() {
    assert!(same("ME a exp=-1 la=0 cas=1 fetch=yes", "ME a exp=-1 la=1 cas=1 fetch=yes"));
    assert!(same("VA 1 t100 l0", "VA 1 t99 l2"));
    assert!(same("VA 1 t100 l0\r", "VA 1 t100 l9\r"));
    assert!(!same("VA 1 t100 l0\r", "VA 1 t100 l0") && !same("END\r", "END"));
    for theirs in ["VA 1 t10 l0", "VA 2 t100 l0", "VA 1 t100", "VA 1 l100 l0", "VA 1 t100 lx"] {
        assert!(!same("VA 1 t100 l0", theirs), "{theirs}");
    }
}

fn compare(ours: SocketAddr, theirs: SocketAddr, script: &[u8], cut: usize) {
    let (ours, theirs) = (alike(&say(ours, script, cut)), alike(&say(theirs, script, usize::MAX)));
    let lines = |text: &str| text.split('\n').count();
    let differ = ours.split('\n').zip(theirs.split('\n')).position(|(ours, theirs)| !same(ours, theirs));
    if differ.is_some() || lines(&ours) != lines(&theirs) {
        let at = differ.unwrap_or(lines(&ours).min(lines(&theirs)));
        let near = |text: &str| text.lines().skip(at.saturating_sub(2)).take(5).map(String::from).collect::<Vec<_>>();
        panic!(
            "at line {at} of the answer\nours   {:#?}\ntheirs {:#?}\nto {}",
            near(&ours),
            near(&theirs),
            text(script).lines().map(|line| line.chars().take(80).collect::<String>() + "\n").collect::<String>()
        );
    }
}

/// Each on a connection of its own, one after the other on the same servers.
fn scripts() -> Vec<Vec<u8>> {
    let mut scripts: Vec<Vec<u8>> = [
        // storage
        "set a 5 0 3\r\nabc\r\nget a\r\ngets a b\r\nadd a 0 0 1\r\nx\r\nadd b 1 0 1\r\ny\r\nreplace c 0 0 1\r\nz\r\nreplace b 4294967295 0 2\r\nzz\r\nget a b c\r\n",
        "append a 9 9 2\r\nde\r\nprepend a 0 0 2\r\n--\r\nget a\r\nappend none 0 0 1\r\nx\r\nprepend none 0 0 1\r\nx\r\ngets a\r\n",
        "set n 0 0 2\r\n10\r\ngets n\r\ncas n 0 0 1 1\r\n5\r\ncas none 0 0 1 1\r\n5\r\nget n none\r\n",
        "set empty 0 0 0\r\n\r\nget empty\r\nincr empty 1\r\n",
        "set q 0 0 1 noreply\r\nq\r\nget q\r\nadd q 0 0 1 noreply\r\nr\r\nget q\r\ndelete q noreply\r\nget q\r\n",
        "set r 0 0 1 norepl\r\nq\r\nget r\r\nset r 0 0 1 noreply extra\r\nq\r\nget r\r\n",
        // times
        "set t 0 -1 1\r\nx\r\nget t\r\nset t 0 100 1\r\nx\r\nget t\r\ntouch t -1\r\nget t\r\ntouch t 5\r\n",
        "set t 0 2592001 1\r\nx\r\nget t\r\nset t 0 4102444800 1\r\nx\r\nget t\r\ntouch t 0\r\ntouch t 0 noreply\r\ntouch t x\r\ntouch t\r\ntouch none 0\r\n",
        "set g 7 0 1\r\nx\r\ngat 100 g none\r\ngats 0 g\r\ngat x g\r\ngat 10\r\ngat\r\ngats\r\ngat -1 g\r\nget g\r\n",
        // numbers
        "set i 0 0 2\r\n10\r\nincr i 5\r\ndecr i 7\r\nget i\r\ndecr i 100\r\nget i\r\nincr i 18446744073709551615\r\nincr i 2\r\nget i\r\n",
        "set i 0 0 3\r\nabc\r\nincr i 1\r\ndecr i 1\r\nincr i x\r\nincr i -1\r\nincr i\r\nincr none 1\r\ndecr none 1\r\nincr i 1 noreply\r\nincr i 1 2 3\r\n",
        "set i 0 0 5\r\n12 34\r\nincr i 1\r\nget i\r\nset i 0 0 2\r\n-1\r\nincr i 1\r\nset i 0 0 2\r\n99\r\nincr i 1\r\nget i\r\ndecr i 95\r\nget i\r\nincr i 1\r\nget i\r\n",
        "set i 0 0 21\r\n184467440737095516160\r\nincr i 1\r\nset i 0 0 3\r\n 7 \r\nincr i 1\r\nget i\r\n",
        // delete
        "set d 0 0 1\r\nx\r\ndelete d\r\ndelete d\r\ndelete d 0\r\ndelete d 1\r\ndelete d 0 noreply\r\ndelete d 1 noreply\r\ndelete d 0 1\r\ndelete\r\ndelete a b c d\r\n",
        // lines
        "\r\n\n \r\nx\r\nget\r\nget \r\ngets\r\nGET a\r\nnonsense\r\nsett a 0 0 1\r\nset\r\nset a\r\nset a 0 0\r\nset a 0 0 x\r\nset a x 0 1\r\nset a 0 x 1\r\n",
        "set a 0 0 -1\r\nset a 0 0 2147483647\r\nset a 0 0 2147483646\r\n",
        "   get    a   \r\n get a\rb\r\nget a\nget a\r\r\nset sp  0  0  1 \r\nx\r\nget sp\r\n",
        "set a 0 0 3\r\nabcd\r\nget a\r\nset a 0 0 3\r\nab\r\nget a\r\n\r\nmn\r\n",
        "set tab\ta 0 0 1\r\nx\r\nget tab\ta\r\n",
        "get a\0b c\r\nset nu\0l 0 0 1\r\nx\r\nget nu\r\n",
        "incr a\r\nverbosity\r\nverbosity 1\r\nverbosity x\r\nverbosity 1 noreply\r\nversion\r\nversion 1\r\nmn\r\nshutdown\r\n",
        "stats nonsense\r\nstats detail\r\nstats detail x\r\nstats reset\r\nbget a\r\nbget\r\n",
        "move HTTP/1.1\r\nget a\r\n",
        "get HTTP/1.1\r\nget a\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\nget a\r\n",
        "quit\r\nget a\r\n",
        "quit now\r\nget a\r\n",
        // flushing
        "set f 0 0 1\r\nx\r\nflush_all\r\nget f\r\nset f 0 0 1\r\nx\r\nget f\r\nflush_all 0\r\nget f\r\nflush_all x\r\nflush_all noreply\r\nflush_all 1 2 3\r\nflush_all -1\r\nflush_all 0 noreply\r\nget f\r\n",
        // meta
        "mn\r\nmg\r\nmg a\r\nmg none\r\nmg none v k Oabc q\r\nmg none k O1\r\nset m 3 0 4\r\nbody\r\nmg m\r\nmg m v\r\nmg m s v f c k t l h Ox q\r\nmg m h l t\r\n",
        "mg m vv\r\nmg m v v\r\nmg m y\r\nmg m Tx\r\nmg m T100 t\r\nmg m t\r\nmg m T0 t\r\nmg m T-1\r\nmg m\r\n",
        "ms k 2\r\nhi\r\nmg k v\r\nms k 2 c k Oo\r\nho\r\nms k S2\r\nhi\r\nms k\r\nms\r\nms k x\r\nms k -1\r\nms k 2 F7 T100\r\nha\r\nmg k v f t c\r\nms k 2 q\r\nhe\r\nmg k v\r\n",
        "ms k 2 ME\r\nxx\r\nms e 2 ME\r\nxx\r\nms k 2 MA\r\nyy\r\nms k 2 MP\r\nzz\r\nmg k v\r\nms none 2 MR\r\nxx\r\nms k 2 MR\r\nrr\r\nms k 2 MX\r\nrr\r\nms k 2 MSS\r\nrr\r\nms k 2 M\r\nrr\r\nmg k v\r\nms none 1 MA q\r\nx\r\n",
        "ms k 2 C1\r\nxx\r\nmg k c\r\nms none 2 C1\r\nxx\r\nms k 2 Cx\r\nxx\r\nms k 2 MA C1\r\nyy\r\nms k 2 Fx\r\nyy\r\nms k 2 y\r\nyy\r\nms k 3\r\nabcd\r\nmg k v\r\nms k 3 q\r\nabcde\r\nmg k v\r\n",
        "ms k 1 O12345678901234567890123456789012\r\nx\r\nms k 1 O1234567890123456789012345678901\r\nx\r\nmg none O12345678901234567890123456789012\r\nmd none O12345678901234567890123456789012\r\n",
        "ms YmluYXJ5IGtleQ== 3 b k\r\nabc\r\nmg YmluYXJ5IGtleQ== b v k\r\nmg YmluYXJ5IGtleQ== v\r\nmg !!! b\r\nms !!! 2 b\r\nxx\r\nme YmluYXJ5IGtleQ== b\r\nmd YmluYXJ5IGtleQ== b k q\r\nmd YmluYXJ5IGtleQ== b k\r\nme !!! b\r\n",
        "ms YWI= 1 b\r\ny\r\nmg YWJ= b k v\r\nms YWJj 1 b\r\nz\r\nmg YWJ!j b k v\r\nmg Y-W_J:j b k v\r\nmg YQ==YWJj b k\r\nmg YWI=YWJ b k\r\nmg YW=j b k v\r\nmg =WJj b k\r\nmg YWJj= b\r\nmg Y=== b\r\nmg ==== b\r\nmg = b\r\nmg YWJjY b\r\nmg YWJj==== b\r\nmg YWJjYQ=a b k\r\n",
        "ms d 1\r\nx\r\nmd d k Oq\r\nmd d k Oq\r\nmd d q\r\nms d 1\r\nx\r\nmd d C1\r\nmd d y\r\nmd d q q\r\nmd\r\nms d 1 T100\r\nx\r\nmd d I T30\r\nmg d v t c\r\nmg d v\r\nmg d v k\r\nms d 1\r\ny\r\nmg d v\r\n",
        "mg viv N30 t v\r\nmg viv N30 t v\r\nmg viv4 t N30\r\nmg viv4 t N30\r\nmg viv R60 t\r\nmg viv2 N30\r\nmg viv2 R60\r\nms viv2 1 T100\r\nv\r\nmg viv2 R60\r\nmg viv2 R160 k\r\nmg viv2 R160 k\r\nmg viv3 Nx\r\nmg viv2 Rx\r\n",
        "ms st 1 T100\r\na\r\nmd st I\r\nms st 1 C1 I\r\nb\r\nmg st v t\r\nmg st v t\r\nms st 1 C999999 I\r\nc\r\nmg st v\r\n",
        "ma num\r\nma num N0 J13 v\r\nma num v t c k Oo\r\nma num D5 v\r\nma num MD v\r\nma num M- D100 v\r\nma num MI\r\nma num M+ q\r\nma num MX\r\nma num Dx\r\nma num Jx\r\nma num y\r\nma none q\r\nma none k Ox\r\nma\r\n",
        "ma num T100 t v\r\nma num t v\r\nma num C1 v\r\nma num2 N100 J5 t v q\r\nms num2 3\r\nabc\r\nma num2\r\nma num2 q\r\n",
        "me none\r\nme\r\nms meta 3 T100\r\nabc\r\nme meta\r\nmg meta\r\nme meta\r\nmx\r\nm\r\nmgg a\r\n",
        "mg a a b c d e f g h i j k l m n o p q r s t u v w x y z\r\nms a 1 a b c d e f g h i j k l m n o p q r s t u v\r\nx\r\nmd a 1 2 3 4 5 6 7 8 9 0 a b c d e f g h\r\n",
    ]
    .iter()
    .map(|script| script.as_bytes().to_vec())
    .collect();
    let long = |bytes: usize| "k".repeat(bytes);
    for bytes in [249, 250, 251, 300] {
        let key = long(bytes);
        // each alone: with the refusal memcached forgets what it has answered before and not yet sent
        let commands = [
            "set KEY 0 0 1\r\nx",
            "get KEY",
            "get a KEY",
            "gets KEY a",
            "incr KEY 1",
            "touch KEY 0",
            "gat 0 KEY",
            "delete KEY",
            "ms KEY 1\r\nx",
            "mg KEY v k",
            "ma KEY",
            "me KEY",
            "md KEY",
            "set KEY 0 0 1 noreply\r\nx",
            "delete KEY 0 noreply",
            "cas KEY 0 0 1 1\r\nx",
        ];
        scripts.extend(commands.map(|command| format!("{}\r\n", command.replace("KEY", &key)).into_bytes()));
    }
    // many keys, longer than any buffer for a line
    let keys: String = (0..3000).map(|n| format!(" key{n}")).collect();
    let stores: String =
        (0..3000).step_by(7).map(|n| format!("set key{n} {n} 0 4 noreply\r\nv{:03}\r\n", n % 1000)).collect();
    scripts.push(format!("{stores}get{keys}\r\ngets{keys}\r\n").into_bytes());
    // a NUL ends them
    scripts
        .push("set a 0 0 1\r\nx\r\nget a a\0 a\r\nget a  a a \0a\r\ngat 0 a a\0\r\nget a \0\r\nget a a\r\0\r\n".into());
    scripts.push(format!("{stores}get{keys}\0{keys}\r\nget key0 key7\0{keys}\r\nget key0 key7\r\n").into_bytes());
    // no line at all
    scripts.push(long(2000).into_bytes());
    scripts.push(format!("set a 0 0 1 {}\r\nx\r\nget a\r\n", long(1500)).into_bytes());
    // sizes around every edge, large values changed in every way
    for bytes in [1, 1900, 1950, 2048, 4095, 4096, 4097, 8192, 100_000, 500_000, 1_048_000] {
        let value = |salt: usize| {
            (0..bytes).map(|n| char::from(b'a' + ((n * 7 + n / 251 + salt) % 26) as u8)).collect::<String>()
        };
        scripts.push(
            format!(
                "set big {bytes} 0 {bytes}\r\n{}\r\nget big\r\nappend big 0 0 5\r\nabcde\r\nprepend big 0 0 5\r\n12345\r\nget big\r\nincr big 1\r\n\
                 replace big 0 0 {bytes}\r\n{}\r\nmg big s v\r\nappend big 0 0 {bytes}\r\n{}\r\nget big\r\nset big 0 0 {bytes}\r\n{}xx\r\nget big\r\n\
                 ms big {bytes} T100 c\r\n{}\r\nmg big s t\r\nadd big 0 0 {bytes} noreply\r\n{}\r\ndelete big\r\nget big\r\n",
                value(0), value(1), value(2), value(3), value(4), value(5)
            )
            .into_bytes(),
        );
    }
    scripts.extend(numbers());
    // the largest, and one byte more; what was there before is gone
    for (bytes, flags) in
        [(1_048_511, 0), (1_048_512, 0), (1_048_513, 0), (1_048_514, 0), (1_048_509, 1), (1_048_510, 1), (2_000_000, 0)]
    {
        let value = "v".repeat(bytes);
        scripts.push(
            format!("set max 0 0 1\r\nx\r\nset max {flags} 0 {bytes}\r\n{value}\r\nmg max s\r\nms max 1\r\nx\r\nms max {bytes} F{flags}\r\n{value}\r\nmg max s\r\n\
                     add max 0 0 1\r\nx\r\nappend max {flags} 0 {bytes}\r\n{value}\r\nmg max s\r\nset max 0 0 {bytes} noreply\r\n{value}\r\nmg max s\r\ndelete max\r\n")
                .into_bytes(),
        );
    }
    scripts
}

/// Numbers in values of every length, around the edges of what a cell and a chunk holds, and of what memcached takes for a number.
fn numbers() -> impl Iterator<Item = Vec<u8>> {
    let lengths = [25, 1900, 1949, 1950, 1951, 2000, 2048, 4095, 4096, 4097, 4106, 8193, 100_000];
    // with the keys below, and flags or none
    let largest = [524_222, 524_223, 524_224, 524_226, 524_227, 524_228, 600_000];
    lengths.into_iter().chain(largest).map(|bytes| {
        let many = |text: &str, filler: &str| filler.repeat(bytes - text.len());
        let behind = |filler: &str, text: &str| many(text, filler) + text;
        let before = |text: &str, filler: &str| text.to_owned() + &many(text, filler);
        let mut values = vec![before("7", " "), behind(" ", "9223372036854775000")];
        if bytes <= 100_000 {
            // of numbers that are negative as signed ones memcached looks for a minus up to the next NUL, behind an item that fills its
            // chunk in what lies there, which may be a pointer with such an octet
            values.push(behind(" ", "18446744073709551615"));
            values.extend(["-18446744073709551606", "+7", "-7"].map(|text| behind(" ", text)));
            values.extend(["99", "+99", "-"].map(|text| behind("0", text)));
            values.extend(["99 ", "99", "99\0"].map(|text| before(text, "x")));
            values.extend([behind("-", "7"), behind("9", ""), before("184467440737095516150", " ")]);
            // memcached looks for a minus behind large numbers, wherever it stands
            values.push(before("18446744073709551614 x", "-"));
        }
        let count = values.len();
        let store = |(n, value): (usize, String)| {
            let flags = n % 2;
            format!(
                "set k{n:02} {flags} 0 {bytes}\r\n{value}\r\nincr k{n:02} 1\r\nma k{n:02} D12 v\r\ndecr k{n:02} 3\r\n"
            )
        };
        let stores: String = values.into_iter().enumerate().map(store).collect();
        let keys: String = (0..count).map(|n| format!(" k{n:02}")).collect();
        format!("{stores}get{keys}\r\n").into_bytes()
    })
}

#[test]
fn every_command_is_answered_as_memcached_does() {
    let (place, theirs) = (Place::new(), Memcached::start());
    let ours = start(&place, &[]);
    for script in scripts() {
        compare(ours.address, theirs.address, &script, usize::MAX);
    }
}

/// What `stats` counts, command by command.
#[test]
fn commands_are_counted_as_memcached_does() {
    let (place, theirs) = (Place::new(), Memcached::start());
    let ours = start(&place, &[]);
    let counted = |address| -> BTreeMap<String, i64> {
        let answer = text(&say(address, b"stats\r\nquit\r\n", 100));
        let figures = answer.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        let counts = ["cmd_", "get_", "touch_", "delete_", "incr_", "decr_", "cas_", "total_items"];
        let figures = figures.filter(|(name, _)| counts.iter().any(|count| name.starts_with(count)));
        figures.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    };
    let ours_names = counted(ours.address);
    for command in [
        "set a 0 0 1\r\nx",
        "touch a 0",
        "touch none 0",
        "gat 0 a",
        "gats 0 none a",
        "mg a T0",
        "mg none T0",
        "mg a v",
        "mg a s q",
        "mg none v q",
        "mg vivified N0 v",
        "mg vivified2 N0 T5",
        "get a none a",
        "gets a none",
        "ma n",
        "ma n N0",
        "ma n",
        "ma n MD",
        "incr none 1",
        "incr a 1",
        "decr none 1",
        "md n",
        "md n",
        "md a I",
        "delete a",
        "delete a",
        "ms m 1\r\nx",
        "ms m 1 ME\r\nx",
        "ms m 1 MA\r\nx",
        "ms m 1 C1\r\nx",
        "me m",
        "me none",
        "mn",
        "cas m 0 0 1 1\r\nx",
        "cas none 0 0 1 1\r\nx",
        "add m 0 0 1\r\nx",
        "replace none 0 0 1\r\nx",
        "append m 0 0 1\r\nx",
        "flush_all",
        "get m",
        "nonsense",
    ] {
        let moved = [ours.address, theirs.address].map(|address| {
            let before = counted(address);
            say(address, format!("{command}\r\n").as_bytes(), 100);
            let after = counted(address);
            let moved = after.into_iter().map(|(name, count)| (name.clone(), count - before.get(&name).unwrap_or(&0)));
            moved.filter(|(name, by)| *by != 0 && ours_names.contains_key(name)).collect::<BTreeMap<_, _>>()
        });
        assert_eq!(moved[0], moved[1], "ours and memcached's after {command:?}");
    }
}

/// The same code in a process of its own, on the same processor and on another one.
#[test]
fn a_store_in_a_process_of_its_own_answers_the_same() {
    for placement in ["same", "cpu=1"] {
        let place = Place::new();
        let (server, memcached) = (start(&place, &["--place", placement]), Memcached::start());
        for (n, script) in scripts().into_iter().enumerate() {
            // whole, and in pieces of a few bytes
            let cut = if n % 3 == 0 && script.len() < 5000 { 1 + n % 11 } else { usize::MAX };
            compare(server.address, memcached.address, &script, cut);
        }
    }
}

#[test]
fn commands_may_be_cut_anywhere() {
    let (place, theirs) = (Place::new(), Memcached::start());
    let ours = start(&place, &[]);
    for script in scripts().iter().filter(|script| script.len() < 3000) {
        compare(ours.address, theirs.address, script, 1);
    }
    for (script, cut) in
        scripts().iter().filter(|script| script.len() >= 3000).zip([997, 1460, 4096, 5003].iter().cycle())
    {
        compare(ours.address, theirs.address, script, *cut);
    }
}

/// Numbers that follow from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    fn command(&mut self) -> String {
        const KEYS: [&str; 8] = ["a", "b", "c", "d", "number", "e-longer-key", "YQ==", "f"];
        const READ: [&str; 6] = ["a", "b", "c", "e-longer-key", "YQ==", "f"];
        const TIMES: [&str; 6] = ["0", "0", "100", "-1", "4102444800", "x"];
        let key = self.of(&KEYS);
        let bytes = [0, 1, 2, 3, 20, 500, 2100, 9000][self.below(8)];
        let value = match self.below(3) {
            0 => format!("{:0bytes$}", 7 % 10usize.pow(bytes.min(1) as u32).max(1)),
            1 => self.of(&["12", "9", "007", "18446744073709551615", "1 2", ""]).to_owned(),
            _ => "v".repeat(bytes),
        };
        let value = if value.len() > bytes.max(20) { value[..bytes].to_owned() } else { value };
        let (time, noreply) = (self.of(&TIMES), self.of(&["", "", "", " noreply", " x"]));
        // what is refused leaves its value to be taken for a line, and one without an end in what was read closes the connection
        let value = if time == "x" || noreply == " x" { value.chars().take(20).collect() } else { value };
        let bytes = value.len();
        let flags = {
            let count = self.below(4);
            let all = [
                "v", "k", "c", "t", "f", "s", "h", "q", "Oop", "T50", "N60", "R30", "b", "I", "C3", "F9", "u", "y",
                "J7", "D3", "MI", "MD", "ME", "MA", "MS",
            ];
            (0..count).map(|_| format!(" {}", self.of(&all))).collect::<String>()
        };
        match self.below(22) {
            0..=3 => format!("set {key} {} {time} {bytes}{noreply}\r\n{value}\r\n", self.below(5)),
            4 => format!("{} {key} 1 {time} {bytes}{noreply}\r\n{value}\r\n", self.of(&["add", "replace"])),
            5 => format!("{} {key} 1 {time} {bytes}{noreply}\r\n{value}\r\n", self.of(&["append", "prepend"])),
            6 => format!("cas {key} 1 {time} {bytes} {}{noreply}\r\n{value}\r\n", self.below(40)),
            // not of what is counted: memcached changes a copy while an answer holds the item, and the copy has another length
            7 | 8 => format!("{} {} {}\r\n", self.of(&["get", "gets"]), self.of(&READ), self.of(&READ)),
            9 => format!("{} {time} {}\r\n", self.of(&["gat", "gats"]), self.of(&READ)),
            10 => format!("delete {key}{noreply}\r\n"),
            11 | 12 => {
                format!("{} number {}{noreply}\r\n", self.of(&["incr", "decr"]), self.of(&["1", "100", "7", "x"]))
            }
            13 => format!("touch {key} {time}{noreply}\r\n"),
            14 | 15 => {
                // makes nothing under a key in base64: memcached forgets that it came so, and sends it raw
                let flags = if flags.contains(" b") { flags.replace(" N60", "") } else { flags };
                format!("mg {}{flags}\r\n", self.of(&READ))
            }
            16 | 17 => format!("ms {key} {bytes}{flags}\r\n{value}\r\n"),
            18 => format!("md {key}{flags}\r\n"),
            19 => format!("ma {}{flags}\r\n", self.of(&["counter", "counter2"])),
            20 => self
                .of(&[
                    "mn\r\n",
                    "flush_all\r\n",
                    "verbosity 1\r\n",
                    "nonsense\r\n",
                    "me a\r\n",
                    "\r\n",
                    "stats bad\r\n",
                ])
                .to_owned(),
            // one or two bytes short, which the line ends behind it are taken for
            _ => format!("set {key} 0 0 {}\r\n{value}\r\n\n\n", bytes + self.below(3)),
        }
    }
}

#[test]
fn random_scripts_are_answered_as_memcached_does() {
    let (place, theirs) = (Place::new(), Memcached::start());
    let ours = start(&place, &[]);
    for seed in 0..600 {
        let mut draw = Draw(seed);
        let count = 1 + draw.below(40);
        let commands: Vec<String> = (0..count).map(|_| draw.command()).collect();
        let cut = [usize::MAX, 1, 7, 100][draw.below(4)];
        // seen when it fails
        println!("seed {seed}, pieces of {cut}");
        compare(ours.address, theirs.address, commands.concat().as_bytes(), cut);
    }
}

#[test]
fn a_flush_that_is_put_off_comes() {
    let (place, theirs) = (Place::new(), Memcached::start());
    let ours = start(&place, &[]);
    let both = [ours.address, theirs.address];
    compare(
        both[0],
        both[1],
        b"set f 0 0 1\r\nx\r\nflush_all 1000\r\nget f\r\nflush_all 1000 noreply\r\ngets f\r\nflush_all 2\r\nget f\r\n",
        7,
    );
    let gone = |address| say(address, b"get f\r\n", 100) == b"END\r\n";
    until(|| both.iter().all(|address| gone(*address)), || "it is still there".into());
    compare(both[0], both[1], b"set f 0 0 1\r\ny\r\nset g 0 1 1\r\ny\r\n", 7);
    until(|| both.iter().all(|address| say(*address, b"get g\r\n", 100) == b"END\r\n"), || "g does not expire".into());
    assert_eq!(text(&say(ours.address, b"get f\r\n", 100)), "VALUE f 0 1\r\ny\r\nEND\r\n");
}

#[test]
fn several_threads_share_all_items() {
    let place = Place::new();
    let ours = Server::start_service(&place, &["kv", "--cpus", "0,1"], &[], |_| {});
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let address = ours.address;
            scope.spawn(move || {
                for n in 0..40 {
                    let script = format!("set k{thread}-{n} 0 0 5\r\nv{n:04}\r\nquit\r\n");
                    assert_eq!(text(&say(address, script.as_bytes(), 9)), "STORED\r\n");
                    let script = format!("get k{thread}-{n}\r\nincr sum 1\r\nadd sum 0 0 1\r\n1\r\nquit\r\n");
                    let answer = text(&say(address, script.as_bytes(), 1000));
                    assert!(answer.starts_with(&format!("VALUE k{thread}-{n} 0 5\r\nv{n:04}\r\nEND\r\n")), "{answer}");
                }
            });
        }
    });
    // every connection counted once, the first few that found nothing excepted
    let answer = text(&say(ours.address, b"get sum\r\nstats\r\nquit\r\n", 1000));
    let sum: u32 = answer.lines().nth(1).unwrap().trim().parse().unwrap();
    assert!(sum >= 320 - 8, "{sum}");
    let figure = |name: &str| -> u64 {
        let line = answer.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
    };
    assert_eq!((figure("curr_items"), figure("cmd_set"), figure("get_hits")), (321, 640, 321));
    assert_eq!((ours.stat("kv_items"), ours.stat("kv_get_hits_total")), (321, 321));
}

#[test]
fn clients_of_memcached_work() {
    let place = Place::new();
    let ours = start(&place, &["--udp", "on"]);
    let python = "
import sys
from pymemcache.client.base import Client
c = Client(('127.0.0.1', int(sys.argv[1])), no_delay=True)
assert c.set('a', 'x' * 300000, noreply=False) and c.get('a') == b'x' * 300000
assert c.set_many({str(n): str(n) for n in range(500)}, noreply=False) == []
assert c.get_many([str(n) for n in range(600)]) == {str(n): str(n).encode() for n in range(500)}
assert c.add('a', '1', noreply=False) is False and c.replace('a', '10', noreply=False) is True
assert c.append('a', '0', noreply=False) and c.prepend('a', '1', noreply=False) and c.get('a') == b'1100'
assert c.incr('a', 5) == 1105 and c.decr('a', 1105) == 0 and c.incr('none', 1) is None
value, cas = c.gets('a')
assert c.cas('a', 'new', cas, noreply=False) is True and c.cas('a', 'newer', cas, noreply=False) is False
assert c.touch('a', 100, noreply=False) and c.delete('a', noreply=False) and c.get('a') is None
assert c.stats()[b'curr_items'] == 500 and c.version().startswith(b'1.6.')
assert c.flush_all(noreply=False) and c.get('1') is None
c.quit()
";
    let port = ours.address.port().to_string();
    let done = Command::new("/usr/bin/python3").args(["-c", python, &port]).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    // libmemcached
    let server = format!("--servers={}", ours.address);
    let file = place.path("file");
    std::fs::write(&file, "from a file").unwrap();
    let run = |tool: &str, args: &[&str]| {
        let done =
            Command::new(tool).arg(&server).args(args).output().unwrap_or_else(|error| panic!("{tool}: {error}"));
        assert!(done.status.success(), "{tool}: {}{}", text(&done.stdout), text(&done.stderr));
        text(&done.stdout)
    };
    run("memccp", &[&file]);
    assert_eq!(run("memccat", &["file"]).trim(), "from a file");
    run("memcexist", &["file"]);
    run("memctouch", &["--expire=100", "file"]);
    assert!(run("memcstat", &[]).contains("curr_items"));
    run("memcrm", &["file"]);
    run("memcping", &[]);
    run("memcflush", &[]);
    // over UDP
    say(ours.address, b"set u 3 0 5\r\nvalue\r\nset large 0 0 3000\r\n", 1000);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(ours.address).unwrap();
    let asked = |request: &[u8]| {
        socket.send(&[&[9, 8, 0, 0, 0, 1, 0, 0], request].concat()).unwrap();
        let mut answer = [0; 2000];
        let bytes = lab::patiently(|| socket.recv(&mut answer)).unwrap();
        assert_eq!(answer[..8], [9, 8, 0, 0, 0, 1, 0, 0]);
        text(&answer[8..bytes])
    };
    assert_eq!(asked(b"get u none\r\n"), "VALUE u 3 5\r\nvalue\r\nEND\r\n");
    assert!(asked(b"mg u T30\r\n").starts_with("CLIENT_ERROR only get"));
    assert_eq!(asked(b"mg u v\r\nmn\r\n"), "VA 5\r\nvalue\r\nMN\r\n");
}

#[test]
fn a_quiet_miss_over_udp_is_answered_by_no_datagram_as_by_memcached() {
    let (place, theirs) = (Place::new(), Memcached::start());
    let ours = start(&place, &["--udp", "on"]);
    for address in [ours.address, theirs.address] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect(address).unwrap();
        let quiet = [&b"mg none q\r\n"[..], b"mg none q k\r\nmg none q\r\n"];
        // what is asked last is answered first
        for (number, request) in (0..).zip(quiet.into_iter().chain([&b"mg none k\r\n"[..]])) {
            socket.send(&[&[0, number, 0, 0, 0, 1, 0, 0], request].concat()).unwrap();
        }
        let mut answer = [0; 100];
        let bytes = lab::patiently(|| socket.recv(&mut answer)).unwrap();
        assert_eq!(text(&answer[..bytes]), "\0\u{2}\0\0\0\u{1}\0\0EN knone\r\n", "{address}");
    }
}

#[test]
fn no_other_server_is_answered_over_udp() {
    for placement in ["inline", "same"] {
        let place = Place::new();
        let ours = start(&place, &["--udp", "on", "--place", placement]);
        let [own_port, any] = [([127, 0, 0, 2], ours.address.port()), ([127, 0, 0, 1], 0)]
            .map(|at| UdpSocket::bind(SocketAddr::from(at)).unwrap());
        let count = |reason| ours.stat_if_any(&format!("kv_drops_total  reason={reason}")).unwrap_or(0);
        let dropped = || ["own port", "no read"].map(count);
        for (socket, request, counts) in
            [(&own_port, &b"mn\r\n"[..], [1, 0]), (&any, b"x", [1, 1]), (&any, b"ERROR\r\n", [1, 2])]
        {
            socket.send_to(&[&[9, 8, 0, 0, 0, 1, 0, 0], request].concat(), ours.address).unwrap();
            // one at a time: an application that gets no processor meanwhile is told no second one
            until(|| dropped() == counts, || format!("{placement}: {:?}", dropped()));
        }
        assert_eq!(ours.stat("kv_datagrams_total"), 0);
    }
}

#[test]
fn who_does_not_read_is_made_to_wait_and_then_sent_away() {
    let place = Place::new();
    let ours = start(&place, &["--memory", "16M", "--send-timeout", "15"]);
    let value = "w".repeat(500_000);
    say(ours.address, format!("set w 0 0 500000\r\n{value}\r\n").as_bytes(), usize::MAX);
    let mut stuck: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(ours.address).unwrap()).collect();
    // each asks for a gigabyte and reads nothing
    for stream in &mut stuck {
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write_all("get w\r\n".repeat(2000).as_bytes());
    }
    // the store is overwritten meanwhile, and others are served
    for n in 0..60 {
        let answer =
            say(ours.address, format!("set v{n} 0 0 500000\r\n{value}\r\nget v{n}\r\n").as_bytes(), usize::MAX);
        assert!(answer.starts_with(b"STORED\r\nVALUE "), "{n}: {}", text(&answer[..answer.len().min(80)]));
        assert!(answer.ends_with(format!("{}\r\nEND\r\n", &value[..500]).as_bytes()) || answer.len() > 500_000);
    }
    // what was begun when the value was there comes whole
    let mut first = stuck.swap_remove(0);
    first.set_nonblocking(false).unwrap();
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = vec![0; 19 + 500_000];
    first.read_exact(&mut answer).unwrap();
    assert!(answer[..19] == *b"VALUE w 0 500000\r\nw" && answer[18..500_018].iter().all(|byte| *byte == b'w'));
    let sent_away = || -> u64 {
        let figures = text(&ours.ctl(&["stats"]).stdout);
        let line = figures.lines().find_map(|line| line.strip_prefix("kv_drops_total  reason=slow reader"));
        line.map_or(0, |count| count.trim().parse().unwrap())
    };
    until(|| sent_away() >= 19, || format!("only {} of 19", sent_away()));
    assert!(resident_kib(&ours) < 200 << 10, "{} KiB", resident_kib(&ours));
}

/// Memory of the process that has the items, which is the server or its application, without what that shares with the server.
fn resident_kib(server: &Server) -> u64 {
    let process = |line: &String| line.split(": process ").nth(1)?.strip_suffix(" is there")?.parse().ok();
    let pid: u32 = server.log().iter().find_map(process).unwrap_or(server.pid());
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = |name: &str| -> u64 {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.trim().trim_end_matches(" kB").parse().unwrap()
    };
    kib("VmRSS:") - kib("RssShmem:")
}

#[test]
fn a_full_store_goes_on_storing_and_its_memory_is_bounded_whatever_sizes_come() {
    for placement in ["inline", "same"] {
        fill_with_all_sizes(placement);
    }
}

fn fill_with_all_sizes(placement: &str) {
    const MEMORY_MIB: u64 = 64;
    let place = Place::new();
    let ours = start(&place, &["--memory", &format!("{MEMORY_MIB}M"), "--place", placement]);
    // the table of keys and what else there is beside the items
    let bound_kib = resident_kib(&ours) + (MEMORY_MIB << 10) * 5 / 4;
    let fill = |bytes: usize, name: &str| {
        let count = 2 * ((MEMORY_MIB as usize) << 20) / (bytes + 100);
        let value = "f".repeat(bytes);
        let mut reader = TcpStream::connect(ours.address).unwrap();
        reader.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = std::io::BufWriter::new(reader.try_clone().unwrap());
        let reading = std::thread::spawn(move || {
            let mut answers = vec![0; count * b"STORED\r\n".len()];
            reader.read_exact(&mut answers).unwrap();
            answers
        });
        for n in 0..count {
            stream.write_all(format!("set {name}{n} 0 0 {bytes}\r\n{value}\r\n").as_bytes()).unwrap();
        }
        stream.flush().unwrap();
        // memcached says the same of each
        assert!(reading.join().unwrap() == b"STORED\r\n".repeat(count), "{name}");
        // the newest is there
        let newest = say(ours.address, format!("get {name}{}\r\nquit\r\n", count - 1).as_bytes(), usize::MAX);
        assert!(newest.len() > bytes, "{name}: {}", text(&newest[..newest.len().min(80)]));
    };
    for round in 0..2 {
        for (bytes, name) in [(100, "small"), (30_000, "large"), (1500, "middle"), (700_000, "huge")] {
            fill(bytes, &format!("{name}{round}-"));
            until(
                || resident_kib(&ours) < bound_kib,
                || format!("{placement}: {} KiB after {name} {round}, more than {bound_kib}", resident_kib(&ours)),
            );
        }
    }
    assert!(ours.stat("kv_pages_moved_total") > 0 && ours.stat("kv_evictions_total") > 0);
}

#[test]
fn threads_that_share_nothing_have_stores_of_their_own() {
    let place = Place::new();
    let ours = Server::start_service(&place, &["kv", "--cpus", "0,1"], &["--shared-nothing"], |_| {});
    // each connection sees what it has stored itself
    for n in 0..40 {
        let script = format!("set k{n} 0 0 2\r\n{n:02}\r\nget k{n}\r\nappend k{n} 0 0 1\r\nx\r\nquit\r\n");
        let expected = format!("STORED\r\nVALUE k{n} 0 2\r\n{n:02}\r\nEND\r\nSTORED\r\n");
        assert_eq!(text(&say(ours.address, script.as_bytes(), usize::MAX)), expected);
    }
    // some of what others have stored is another thread's
    let keys: String = (0..40).map(|n| format!(" k{n}")).collect();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..40 {
        let answer = text(&say(ours.address, format!("get{keys}\r\nquit\r\n").as_bytes(), usize::MAX));
        seen.insert(answer.matches("VALUE").count());
    }
    let (least, most) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
    assert!(seen.len() <= 2 && (seen.len() == 1 || least + most == 40), "{seen:?}");
    assert_eq!(ours.stat("kv_items"), 40);
    // what is flushed is everybody's
    assert_eq!(text(&say(ours.address, b"flush_all\r\nquit\r\n", usize::MAX)), "OK\r\n");
    for _ in 0..10 {
        assert_eq!(text(&say(ours.address, format!("get{keys}\r\nquit\r\n").as_bytes(), usize::MAX)), "END\r\n");
    }
}

/// Whatever thread they came to: one may have all of them, and no two have more.
#[test]
fn connections_are_bounded_over_all_threads_together() {
    let place = Place::new();
    for (accept, placement) in
        [("per-core", "inline"), ("affinity", "inline"), ("per-core", "same"), ("shared", "same")]
    {
        let more = ["--connections", "12", "--per-source", "100", "--accept", accept, "--place", placement];
        let server = Server::start_service(&place, &["kv", "--cpus", "0,1"], &more, |_| {});
        let asked = || -> std::io::Result<TcpStream> {
            let mut stream = TcpStream::connect(server.address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let _ = stream.write_all(b"version\r\n");
            Ok(stream)
        };
        let answers = |stream: &mut TcpStream| stream.read(&mut [0; 100]).is_ok_and(|bytes| bytes > 0);
        for round in 0..3 {
            let mut streams: Vec<_> = (0..12).map(|_| asked().unwrap()).collect();
            assert!(streams.iter_mut().all(answers), "{accept}, {placement}, {round}: {:#?}", server.log());
            // one too many is reset by the service, even before connect(2) has returned, or waits where its thread has all
            let mut late = asked();
            if let Ok(late) = &mut late {
                late.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
                assert!(!answers(late), "{accept}, {placement}, {round}");
            }
            drop((late, streams));
            until(|| server.stat("kv_connections") == 0, || "connections are left".into());
        }
    }
}

use super::*;
use crate::store::Limits;
use app::{CallError, ObjectId, Range};
use proptest::prelude::*;
use std::collections::VecDeque;

/// An engine with one connection, which takes what its bounds allow and holds it until the peer reads.
struct Engine {
    pieces: VecDeque<Piece>,
    /// own bytes and ranges that it queues
    quota: usize,
    ranges: usize,
    /// bytes delivered and not given back
    delivered: usize,
    most_delivered: usize,
    most_owned: usize,
    timer: Option<Instant>,
    shut: bool,
    closed: bool,
    aborted: bool,
}

enum Piece {
    Owned(Vec<u8>),
    Object(Arc<app::Content>, usize, usize),
}

impl Piece {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Piece::Owned(bytes) => bytes.clone(),
            Piece::Object(content, start, bytes) => content.bytes(ObjectId(0))[*start..start + bytes].to_vec(),
        }
    }
}

impl Engine {
    fn new(quota: usize, ranges: usize) -> Engine {
        Engine {
            pieces: VecDeque::new(),
            quota,
            ranges,
            delivered: 0,
            most_delivered: 0,
            most_owned: 0,
            timer: None,
            shut: false,
            closed: false,
            aborted: false,
        }
    }

    fn owned(&self) -> usize {
        let owned = |piece: &Piece| if let Piece::Owned(bytes) = piece { bytes.len() } else { 0 };
        self.pieces.iter().map(owned).sum()
    }
}

impl Streams for Engine {
    fn accept(&mut self, _: Connection, _: u64) -> Result<(), CallError> {
        Ok(())
    }
    fn reject(&mut self, _: Connection) -> Result<(), CallError> {
        self.aborted = true;
        Ok(())
    }
    fn sendv(&mut self, _: Connection, ranges: &[Range<'_>]) -> Result<u64, CallError> {
        assert!(!self.shut && !self.closed && !self.aborted, "sent after the end");
        let mut taken = 0;
        for range in ranges {
            assert!(range.is_valid());
            if self.pieces.len() >= self.ranges {
                break;
            }
            match range {
                Range::Owned(bytes) => {
                    let fits = bytes.len().min(self.quota - self.owned());
                    self.pieces.push_back(Piece::Owned(bytes[..fits].to_vec()));
                    taken += fits as u64;
                    if fits < bytes.len() {
                        break;
                    }
                }
                Range::Object { content, start, bytes, .. } => {
                    self.pieces.push_back(Piece::Object((*content).clone(), *start as usize, *bytes as usize));
                    taken += bytes;
                }
            }
        }
        self.most_owned = self.most_owned.max(self.owned());
        Ok(taken)
    }
    fn room(&self, _: Connection) -> usize {
        self.quota - self.owned()
    }
    fn recv_done(&mut self, _: Connection, bytes: usize) -> Result<(), CallError> {
        self.delivered = self.delivered.checked_sub(bytes).expect("more given back than delivered");
        Ok(())
    }
    fn shutdown(&mut self, _: Connection) -> Result<(), CallError> {
        self.shut = true;
        Ok(())
    }
    fn close(&mut self, _: Connection) -> Result<(), CallError> {
        self.closed = true;
        Ok(())
    }
    fn abort(&mut self, _: Connection) -> Result<(), CallError> {
        self.aborted = true;
        Ok(())
    }
    fn timer_set(&mut self, _: Connection, at: Option<Instant>) -> Result<(), CallError> {
        self.timer = at;
        Ok(())
    }
}

const CONNECTION: Connection = Connection { index: 0, generation: 0 };

/// A server with one connection and its peer.
struct Bench {
    server: Server,
    engine: Engine,
    now: Instant,
    read: Vec<u8>,
}

fn shared(memory_bytes: u64) -> Arc<Shared> {
    Arc::new(Shared::new(Limits {
        memory_bytes,
        item_bytes: 1 << 20,
        threads: 1,
        secret: [3, 4],
        shared_nothing: false,
    }))
}

fn server(shared: &Arc<Shared>) -> Server {
    let [connections, buffers, pendings] = [4, 2, 2].map(Bound::new);
    let options = Options { connections, buffers, pendings, ..Options::default() };
    Server::new(shared.clone(), options, shared.stats())
}

impl Bench {
    fn new(quota: usize, ranges: usize) -> Bench {
        Bench::with(server(&shared(16 << 20)), quota, ranges)
    }

    fn with(mut server: Server, quota: usize, ranges: usize) -> Bench {
        let mut engine = Engine::new(quota, ranges);
        let any = "192.0.2.1:11211".parse().unwrap();
        let now = Instant::ZERO;
        server.knock(now, &mut engine, Listener(0), CONNECTION, Addresses { local: any, peer: any });
        Bench { server, engine, now, read: Vec::new() }
    }

    /// Sends as much as the window allows, in one piece; how much.
    fn send(&mut self, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(WINDOW_BYTES - self.engine.delivered)];
        if !bytes.is_empty() && !self.engine.closed && !self.engine.aborted {
            self.engine.delivered += bytes.len();
            self.engine.most_delivered = self.engine.most_delivered.max(self.engine.delivered);
            self.server.recv(self.now, &mut self.engine, CONNECTION, 0, bytes);
        }
        bytes.len()
    }

    /// Reads one piece of what waits; false when nothing does.
    fn read(&mut self) -> bool {
        let Some(piece) = self.engine.pieces.pop_front() else { return false };
        let bytes = piece.bytes();
        drop(piece);
        self.read.extend_from_slice(&bytes);
        let room = self.engine.room(CONNECTION);
        self.server.sent(self.now, &mut self.engine, CONNECTION, 0, bytes.len(), room);
        true
    }

    /// Sends everything in such pieces, reading only when nothing more can be sent; what came back.
    fn run(&mut self, mut script: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut cuts = cuts.iter().cycle();
        while !script.is_empty() && !self.engine.closed && !self.engine.aborted {
            let cut = script.len().min(*cuts.next().unwrap_or(&usize::MAX));
            let sent = self.send(&script[..cut]);
            script = &script[sent..];
            if sent == 0 {
                assert!(self.read(), "stuck with {} bytes to send", script.len());
            }
        }
        while self.read() {}
        std::mem::take(&mut self.read)
    }
}

fn script() -> Vec<u8> {
    let mut script = Vec::new();
    for (n, bytes) in [0usize, 10, 1900, 4000, 5000, 40_000, 300_000].into_iter().enumerate() {
        let value: String = (0..bytes).map(|at| char::from(b'a' + ((at + n) % 26) as u8)).collect();
        script.extend(format!("set k{n} {n} 0 {bytes}\r\n{value}\r\nget k{n}\r\nappend k{n} 0 0 3\r\n+++\r\n").bytes());
    }
    script.extend(b"get k0 k1 k2 k3 k4 k5 k6 none k1\r\nmg k6 v s\r\nms k5 5\r\nshort\r\nmg k5 v\r\nstats settings\r\nnonsense\r\n");
    script.extend("get k4 k5 k1\r\n".repeat(50).bytes());
    script.extend(b"set bad 0 0 9000\r\n");
    script.extend(vec![b'x'; 9002]);
    script.extend(b"\r\nget bad\r\nset large 0 0 2000000\r\n");
    script.extend(vec![b'y'; 2_000_000]);
    script.extend(b"\r\nmn\r\nquit\r\n");
    script
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// However input is cut, and however little an engine takes at a time, the answers are the same, in bounded memory.
    #[test]
    fn answers_do_not_depend_on_cuts_or_bounds(
        cuts in prop::collection::vec(1usize..5000, 1..8), quota in 9_000usize..100_000, ranges in 8usize..200
    ) {
        let script = script();
        let whole = Bench::new(1 << 20, 1000).run(&script, &[usize::MAX]);
        let mut bench = Bench::new(quota, ranges);
        let answer = bench.run(&script, &cuts);
        prop_assert!(answer == whole, "{} bytes against {}", answer.len(), whole.len());
        prop_assert!(bench.engine.closed && !bench.engine.aborted);
        prop_assert_eq!(bench.engine.delivered, 0);
        prop_assert!(bench.engine.most_delivered <= WINDOW_BYTES && bench.engine.most_owned <= quota);
        prop_assert_eq!(bench.server.core.pendings.used(), 0);
    }

    /// Whatever comes, nothing breaks, and what a connection took is given back.
    #[test]
    fn any_bytes_are_survived(
        parts in prop::collection::vec(prop_oneof![
            "[a-z]{1,4} [ -~]{0,40}\r\n".prop_map(String::into_bytes),
            "(get|gets|mg|ms|md|ma|me|set|cas|incr|touch|gat|stats|flush_all) [ -~\0\n\r]{0,60}\r?\n".prop_map(String::into_bytes),
            "set k [0-9] [0-9] [0-9]{1,5}\r\n".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..3000),
        ], 0..20), cuts in prop::collection::vec(1usize..2000, 1..5)
    ) {
        let shared = shared(4 << 20);
        let mut bench = Bench::with(server(&shared), 50_000, 100);
        bench.run(&parts.concat(), &cuts);
        bench.server.dead(bench.now, CONNECTION, 0, DeadReason::Reset);
        prop_assert_eq!((bench.server.buffers.used(), bench.server.core.pendings.used()), (0, 0));
        prop_assert_eq!(bench.server.core.stats.open.get(), 0);
        shared.store.shard(0).check();
    }
}

#[test]
fn a_client_that_never_reads_finds_its_window_closed_and_is_sent_away() {
    let mut bench = Bench::new(64 << 10, 128);
    let value = "v".repeat(1500);
    bench.send(format!("set k 0 0 1500\r\n{value}\r\n").as_bytes());
    let mut sent = 0;
    for _ in 0..10_000 {
        sent += bench.send(&b"get k\r\n".repeat(100));
    }
    // what is answered is bounded, what waits is the window, and the rest was not taken
    assert!(bench.engine.owned() <= 64 << 10 && bench.engine.delivered == WINDOW_BYTES, "{sent}");
    assert!(sent < 2 * WINDOW_BYTES && bench.server.core.stats.stalled.get() > 0);
    let at = bench.engine.timer.expect("a timer");
    bench.now = at;
    bench.server.timer(at, &mut bench.engine, CONNECTION, 0);
    assert!(bench.engine.aborted);
    assert_eq!(bench.server.core.stats.drops(DropReason::SlowReader), 1);
}

#[test]
fn a_client_that_goes_on_sending_has_no_more_time_to_read() {
    let value = "v".repeat(1500);
    // answers that wait, so that the next command waits or is answered; and what is sent shortly before the time is over
    for (waiting, more) in [(100, &b"m"[..]), (100, b"get k\r\n"), (1, b"m"), (1, b"mn\r\n"), (1, b"get k\r\n")] {
        for reads in [false, true] {
            let mut bench = Bench::new(64 << 10, 128);
            bench.run(format!("set k 0 0 1500\r\n{value}\r\n").as_bytes(), &[usize::MAX]);
            bench.send(&b"get k\r\n".repeat(waiting));
            let at = bench.engine.timer.expect("a timer");
            bench.now = Instant::ZERO + (Options::default().stuck - Duration::from_millis(1));
            assert!(bench.now < at);
            if reads {
                let room = bench.engine.room(CONNECTION);
                bench.server.sent(bench.now, &mut bench.engine, CONNECTION, 0, 10, room);
            }
            assert_eq!(bench.send(more), more.len());
            bench.now = at;
            bench.server.timer(at, &mut bench.engine, CONNECTION, 0);
            assert_eq!(bench.engine.aborted, !reads, "{waiting} and {more:?}");
        }
    }
}

/// Room that others made is told to those who asked for it, and one whose command waits for it has asked for nothing.
#[test]
fn whole_commands_before_an_end_are_answered_also_where_nobody_tells_of_room() {
    let mut bench = Bench::new(64 << 10, 128);
    bench.send(b"set k 0 0 2\r\nvv\r\n");
    // not read yet, and there is no more room beside it
    bench.engine.quota = bench.engine.owned();
    bench.send(b"get k\r\nmn\r\nget");
    assert_eq!(bench.engine.owned(), b"STORED\r\n".len());
    bench.engine.quota = 64 << 10;
    bench.server.eof(bench.now, &mut bench.engine, CONNECTION, 0);
    while bench.read() {}
    assert_eq!(bench.read, b"STORED\r\nVALUE k 0 2\r\nvv\r\nEND\r\nMN\r\n");
    assert!(bench.engine.closed && !bench.engine.aborted);
}

#[test]
fn keys_are_answered_one_after_the_other_whatever_ends_them() {
    for (bytes, keys) in [(1500, 10_000), (20_000, 1000)] {
        let mut bench = Bench::new(64 << 10, 128);
        bench.run(format!("set k 0 0 {bytes}\r\n{}\r\n", "v".repeat(bytes)).as_bytes(), &[usize::MAX]);
        let get = |end: &str| format!("get{}{end}\r\n", " k".repeat(keys)).into_bytes();
        let answer = bench.run(&get(""), &[usize::MAX]);
        assert_eq!(answer.len() / keys, format!("VALUE k 0 {bytes}\r\n\r\n").len() + bytes);
        for end in ["\0", "\0 k", " \0k k", " \0"] {
            assert!(bench.run(&get(end), &[usize::MAX]) == answer, "{end:?}");
        }
        let Core { out, pendings, .. } = &bench.server.core;
        for (bytes, parts) in pendings.all().chain([out]).map(Out::capacities) {
            assert!(bytes <= 2 * OUT_BYTES && parts <= 1024, "{bytes} and {parts}");
        }
    }
}

#[test]
fn a_value_on_its_way_stays_while_its_key_is_overwritten_and_deleted() {
    let shared = shared(16 << 20);
    let mut reader = Bench::with(server(&shared), 64 << 10, 128);
    let mut writer = Bench::with(server(&shared), 64 << 10, 128);
    let value = |byte: u8| String::from_utf8(vec![byte; 900_000]).unwrap();
    let set = |byte: u8| format!("set k 0 0 900000\r\n{}\r\n", value(byte)).into_bytes();
    assert_eq!(writer.run(&set(b'a'), &[usize::MAX]), b"STORED\r\n");
    reader.send(b"get k\r\n");
    for byte in b'b'..=b'z' {
        assert_eq!(writer.run(&set(byte), &[30_000]), b"STORED\r\n");
    }
    assert_eq!(writer.run(b"delete k\r\n", &[usize::MAX]), b"DELETED\r\n");
    while reader.read() {}
    assert_eq!(reader.read, format!("VALUE k 0 900000\r\n{}\r\nEND\r\n", value(b'a')).into_bytes());
    shared.store.shard(0).check();
}

#[test]
fn a_large_value_that_is_a_number_is_counted_with_whoever_holds_it() {
    for held in [false, true] {
        let shared = shared(16 << 20);
        let mut reader = Bench::with(server(&shared), 64 << 10, 128);
        let mut writer = Bench::with(server(&shared), 64 << 10, 128);
        writer.run(format!("set n 3 0 6000\r\n{:<6000}\r\n", 9).as_bytes(), &[usize::MAX]);
        if held {
            reader.send(b"get n\r\n");
        }
        let said = writer.run(b"incr n 5\r\nma n D90 v\r\ndecr n 5\r\nget n\r\n", &[usize::MAX]);
        assert_eq!(
            text_of(&said),
            format!("14\r\nVA 3\r\n104\r\n99\r\nVALUE n 3 6000\r\n{:<6000}\r\nEND\r\n", 99),
            "{held}"
        );
        while reader.read() {}
        let before = if held { format!("VALUE n 3 6000\r\n{:<6000}\r\nEND\r\n", 9) } else { String::new() };
        assert_eq!(text_of(&reader.read), before);
        let mut shard = shared.store.shard(0);
        shard.check();
        // to count is to use
        let place = shard.find(shared.store.hash(b"n"), b"n", 2).unwrap();
        assert!(shard.view(place).heat() > 0);
    }
}

fn text_of(said: &[u8]) -> String {
    String::from_utf8_lossy(said).into_owned()
}

#[test]
fn an_upload_that_is_broken_off_leaves_nothing() {
    let shared = shared(16 << 20);
    for end in 0..3 {
        let mut bench = Bench::with(server(&shared), 64 << 10, 128);
        bench.send(b"set k 0 0 500000\r\n");
        bench.send(&[b'x'; 30_000]);
        match end {
            0 => bench.server.dead(bench.now, CONNECTION, 0, DeadReason::Reset),
            1 => bench.server.eof(bench.now, &mut bench.engine, CONNECTION, 0),
            // as after a panic
            _ => drop(bench.server),
        }
        let mut shard = shared.store.shard(0);
        shard.check();
        assert_eq!(shard.find(shared.store.hash(b"k"), b"k", 2), None);
    }
}

#[test]
fn an_upload_whose_shard_was_emptied_is_answered_as_one_without_memory() {
    for (command, answer) in [
        ("set k 0 0 500000\r\n", &b"SERVER_ERROR out of memory storing object\r\n"[..]),
        ("set k 0 0 500000 noreply\r\n", b""),
    ] {
        let shared = shared(16 << 20);
        let mut bench = Bench::with(server(&shared), 64 << 10, 128);
        bench.send(command.as_bytes());
        // as another thread's panic does
        let panicked = std::thread::scope(|scope| {
            let poison = || {
                let _held = shared.store.shard(0);
                panic!("on purpose");
            };
            scope.spawn(poison).join().is_err()
        });
        assert!(panicked);
        let said = bench.run(&[&[b'x'; 500_000][..], b"\r\nmn\r\n"].concat(), &[1000]);
        assert_eq!(said, [answer, b"MN\r\n"].concat(), "{command}");
        assert_eq!(bench.server.core.stats.no_memory.get(), 1);
    }
}

#[test]
fn what_is_counted_or_not_added_is_used_and_not_fetched() {
    let shared = shared(4 << 20);
    let mut bench = Bench::with(server(&shared), 64 << 10, 128);
    assert_eq!(bench.run(b"set c 0 0 1\r\n5\r\n", &[usize::MAX]), b"STORED\r\n");
    let uses = [("incr c 1", "6"), ("decr c 1", "5"), ("ma c", "HD"), ("add c 0 0 1\r\n7", "NOT_STORED")];
    for (n, (command, answer)) in uses.into_iter().enumerate() {
        bench.now += Duration::from_secs(5);
        let said = bench.run(format!("{command}\r\nme c\r\n").as_bytes(), &[usize::MAX]);
        let said = String::from_utf8(said).unwrap();
        assert!(said.starts_with(&format!("{answer}\r\nME c exp=-1 la=0 ")) && said.contains("fetch=no"), "{said}");
        let mut shard = shared.store.shard(0);
        let place = shard.find(shared.store.hash(b"c"), b"c", 2).unwrap();
        assert_eq!(usize::from(shard.view(place).heat()), (n + 1).min(3), "{command}");
    }
}

#[test]
fn dates_are_those_of_a_clock_that_may_be_set_meanwhile() {
    let mut bench = Bench::new(64 << 10, 128);
    let clock = bench.server.core.options.clock.clone();
    for (unix_s, left) in [(1_700_000_000, 700), (1_700_000_600, 100)] {
        clock.set(unix_s);
        let said = bench.run(b"set k 0 1700000700 1\r\nx\r\nmg k t\r\n", &[usize::MAX]);
        assert_eq!(String::from_utf8(said).unwrap(), format!("STORED\r\nHD t{left}\r\n"));
    }
}

#[test]
fn a_key_that_came_in_base64_is_never_sent_raw() {
    // its key would end the line, and be a line of the client's choosing
    let (raw, key) = (&b"\r\nhi"[..], "DQpoaQ==");
    for (command, answer) in [
        ("mg KEY b N30 k v", "VA 0 kKEY b W\r\n\r\n"),
        ("ma KEY b N30 J5 k v", "VA 1 kKEY b\r\n5\r\n"),
        ("ms KEY 1 b k\r\n5", "HD kKEY b\r\n"),
    ] {
        let mut bench = Bench::new(64 << 10, 128);
        let script = format!("{command}\r\nmg KEY b k\r\nma KEY b k\r\nme KEY b\r\n").replace("KEY", key);
        let said = bench.run(script.as_bytes(), &[usize::MAX]);
        assert!(said.starts_with(answer.replace("KEY", key).as_bytes()), "{command}: {}", said.escape_ascii());
        assert!(!said.windows(raw.len()).any(|bytes| bytes == raw), "{command}: {}", said.escape_ascii());
    }
}

#[test]
fn who_does_not_go_on_with_a_command_is_no_slow_reader() {
    let mut bench = Bench::new(64 << 10, 128);
    bench.send(b"set k 0 0 5\r\nva");
    let at = bench.engine.timer.expect("a timer");
    bench.now = at;
    bench.server.timer(at, &mut bench.engine, CONNECTION, 0);
    assert!(bench.engine.aborted);
    let drops = |reason| bench.server.core.stats.drops(reason);
    assert_eq!((drops(DropReason::SlowWriter), drops(DropReason::SlowReader)), (1, 0));
}

#[test]
fn a_connection_moves_in_the_middle_of_everything() {
    let script = script();
    let whole = Bench::new(1 << 20, 1000).run(&script, &[usize::MAX]);
    for step in [1000, 7777, 30_000] {
        let shared = shared(16 << 20);
        let mut bench = Bench::with(server(&shared), 10_000, 20);
        let mut rest = &script[..];
        let mut other = Some(server(&shared));
        while !rest.is_empty() && !bench.engine.closed {
            let sent = bench.send(&rest[..rest.len().min(step)]);
            rest = &rest[sent..];
            let luggage = bench.server.depart(bench.now, CONNECTION, 0);
            let mut next = other.take().unwrap();
            assert_eq!(next.arrive(bench.now, &mut bench.engine, CONNECTION, luggage), Some(0));
            other = Some(std::mem::replace(&mut bench.server, next));
            if sent == 0 {
                assert!(bench.read());
            }
        }
        while bench.read() {}
        assert!(bench.read == whole, "{} bytes against {}", bench.read.len(), whole.len());
        assert!(bench.engine.closed);
    }
}

#[test]
fn a_full_store_evicts_and_what_is_held_is_not_counted_twice() {
    let shared = shared(4 << 20);
    let mut bench = Bench::with(server(&shared), 64 << 10, 128);
    let value = "v".repeat(100_000);
    for n in 0..200 {
        let answer = bench.run(format!("set k{n} 0 0 100000\r\n{value}\r\n").as_bytes(), &[usize::MAX]);
        assert_eq!(answer, b"STORED\r\n", "{n}");
    }
    let answer = String::from_utf8(bench.run(b"stats\r\n", &[usize::MAX])).unwrap();
    let figure = |name: &str| -> u64 {
        answer.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} "))).unwrap().parse().unwrap()
    };
    assert_eq!(figure("total_items"), 200);
    assert_eq!(figure("evictions") + figure("curr_items"), 200);
    assert!(figure("curr_items") > 30 && figure("bytes") < 4 << 20);
    // and a reset begins the counts anew, not the levels
    bench.run(b"stats reset\r\n", &[usize::MAX]);
    let answer = String::from_utf8(bench.run(b"stats\r\n", &[usize::MAX])).unwrap();
    assert!(answer.contains("STAT total_items 0\r\n") && answer.contains("STAT cmd_set 0\r\n"));
    assert!(!answer.contains("STAT curr_items 0\r\n"));
}

#[test]
fn the_binary_protocol_is_refused_at_once() {
    let mut bench = Bench::new(64 << 10, 128);
    bench.send(&[0x80, 0, 0, 0]);
    assert!(bench.engine.aborted);
    assert_eq!(bench.server.core.stats.drops(DropReason::Binary), 1);
}

#[test]
fn without_a_buffer_a_command_in_pieces_is_refused() {
    let shared = shared(4 << 20);
    let mut server = server(&shared);
    let any = "192.0.2.1:11211".parse().unwrap();
    let mut engine = Engine::new(64 << 10, 128);
    for index in 0..3 {
        let connection = Connection { index, generation: 0 };
        server.knock(Instant::ZERO, &mut engine, Listener(0), connection, Addresses { local: any, peer: any });
        engine.delivered += 5;
        server.recv(Instant::ZERO, &mut engine, connection, u64::from(index), b"get k");
    }
    let said: Vec<u8> = engine.pieces.iter().flat_map(Piece::bytes).collect();
    assert_eq!(said, b"SERVER_ERROR out of memory reading request\r\n");
    assert_eq!(server.core.stats.drops(DropReason::NoBuffer), 1);
}

/// What a datagram from this port is answered, if it is.
fn over_udp(bench: &mut Bench, port: u16, question: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 2000];
    buffer[..question.len()].copy_from_slice(question);
    let peer = format!("192.0.2.9:{port}").parse().unwrap();
    let addresses = Addresses { local: "192.0.2.1:11211".parse().unwrap(), peer };
    let mut burst = [Datagram::new(&mut buffer, question.len(), app::Ecn::NotEct, addresses)];
    bench.server.datagrams(Instant::ZERO, Listener(0), &mut burst);
    let bytes = burst[0].reply_bytes()?;
    Some(buffer[..bytes].to_vec())
}

#[test]
fn no_answer_is_answered_by_another_server_wherever_it_listens() {
    let mut bench = Bench::new(64 << 10, 128);
    bench.run(format!("set k 7 0 5\r\nvalue\r\nset l 0 0 1800\r\n{}\r\n", "l".repeat(1800)).as_bytes(), &[usize::MAX]);
    let header = [1, 2, 0, 0, 0, 1, 0, 0];
    let long_key = format!("get {}\r\n", "k".repeat(251));
    let mut refused = 0;
    for request in [
        "get k\r\n",
        "gets k none\r\n",
        "get none\r\n",
        "get l\r\n",
        "get\r\n",
        &long_key,
        "mg k\r\n",
        "mg k v k\r\n",
        "mg none\r\n",
        "mg none q\r\nstats\r\n",
        "mg k T30\r\n",
        "mg k Rx\r\n",
        "mg k y\r\n",
        "mg\r\n",
        "mn\r\n",
        "version\r\n",
        "mn\r\nset k 0 0 1\r\nx\r\n",
    ] {
        let answer = over_udp(&mut bench, 40_000, &[&header[..], request.as_bytes()].concat());
        let answer = answer.unwrap_or_else(|| panic!("no answer to {request}"));
        // the other one has the same items and listens on a port of its own
        assert_eq!(over_udp(&mut bench, 11_212, &answer), None, "{}", answer.escape_ascii());
        refused += 1;
    }
    // memcached's
    for said in ["ERROR\r\n", "STORED\r\n", "5\r\n", "SERVER_ERROR multi-packet request not supported\r\n", "x"] {
        assert_eq!(over_udp(&mut bench, 40_000, &[&header[..], said.as_bytes()].concat()), None, "{said}");
        refused += 1;
    }
    let drops = |reason| bench.server.core.stats.drops(reason);
    assert_eq!((drops(DropReason::NoRead), drops(DropReason::Datagram)), (refused, 0));
}

#[test]
fn datagrams_from_servers_ports_are_not_answered() {
    let mut bench = Bench::new(64 << 10, 128);
    bench.server.core.options.ports = vec![11_211, 12_000, 7];
    let question = b"\x01\x02\0\0\0\x01\0\0mn\r\n";
    for (port, is_answered) in [
        (7, false),
        (53, false),
        (1023, false),
        (11_211, false),
        (12_000, false),
        (1024, true),
        (11_212, true),
        (40_000, true),
    ] {
        assert_eq!(over_udp(&mut bench, port, question).is_some(), is_answered, "{port}");
    }
    let stats = &bench.server.core.stats;
    assert_eq!((stats.drops(DropReason::OwnPort), stats.drops(DropReason::LowPort)), (3, 2));
    assert_eq!(stats.datagrams.get(), 3);
}

#[test]
fn datagrams_are_gets_of_one_packet() {
    let shared = shared(4 << 20);
    let mut bench = Bench::with(server(&shared), 64 << 10, 128);
    bench.run(format!("set k 7 0 5\r\nvalue\r\nset l 0 0 1800\r\n{}\r\n", "l".repeat(1800)).as_bytes(), &[usize::MAX]);
    bench.run(format!("set m 0 0 1000000\r\n{}\r\n", "m".repeat(1_000_000)).as_bytes(), &[usize::MAX]);
    let hits = bench.server.core.stats.clone();
    let asked = |bench: &mut Bench, header: [u8; 8], request: &[u8]| {
        let answer = over_udp(bench, 40_000, &[&header[..], request].concat())?;
        assert_eq!(answer[..8], [header[0], header[1], 0, 0, 0, 1, 0, 0]);
        Some(String::from_utf8(answer[8..].to_vec()).unwrap())
    };
    let one = [1, 2, 0, 0, 0, 1, 0, 0];
    assert_eq!(asked(&mut bench, one, b"get k\r\n").as_deref(), Some("VALUE k 7 5\r\nvalue\r\nEND\r\n"));
    assert_eq!(asked(&mut bench, one, b"get k none k\r\nmg k f\r\n").unwrap().lines().count(), 6);
    assert_eq!(
        asked(&mut bench, one, b"get l\r\n").as_deref(),
        Some("SERVER_ERROR answer too large for a datagram\r\n")
    );
    // a key is no flag, nor what stands in the next line
    assert_eq!(asked(&mut bench, one, b"mg k s\r\nmg  Token:1 v\r\nmn\r\n").as_deref(), Some("HD s5\r\nEN\r\nMN\r\n"));
    for changes in ["mg k T30\r\n", "mg k  s T30\r\n", "mg none q\r\nset k 0 0 1\r\nx\r\n"] {
        assert!(asked(&mut bench, one, changes.as_bytes()).unwrap().starts_with("CLIENT_ERROR only get"), "{changes}");
    }
    let others =
        ["set k 0 0 1\r\nx\r\n", "delete k\r\n", "flush_all\r\n", "\r\nmg k N30\n", "gat 0 k\r\n", "stats\r\n", "\r\n"];
    for other in others {
        assert_eq!(asked(&mut bench, one, other.as_bytes()), None, "{other}");
    }
    assert_eq!(hits.drops(DropReason::NoRead), others.len() as u64);
    // who is quiet has nothing to say, and says nothing
    let done = hits.datagrams.get();
    for quiet in ["mg none q\r\n", "mg none q k Oa\r\nmg none q\r\n"] {
        assert_eq!(asked(&mut bench, one, quiet.as_bytes()), None, "{quiet}");
    }
    assert_eq!(hits.datagrams.get() - done, 2);
    assert_eq!(asked(&mut bench, one, b"mg none q\r\nmg k q s\r\n").as_deref(), Some("HD s5\r\n"));
    // no more is looked up than an answer has room for
    for (key, most) in [("k", 100), ("l", 1), ("m", 1)] {
        let before = hits.get_hits.get();
        let answer = asked(&mut bench, one, format!("get{}\r\n", format!(" {key}").repeat(700)).as_bytes());
        assert_eq!(answer.as_deref(), Some("SERVER_ERROR answer too large for a datagram\r\n"));
        assert!(hits.get_hits.get() - before <= most, "{key}: {}", hits.get_hits.get() - before);
    }
    // a read leaves everything as it is: no datagram decides who is to make an item anew
    bench.run(b"md k I T30\r\n", &[usize::MAX]);
    assert_eq!(asked(&mut bench, one, b"mg k s\r\nmg k s\r\n").as_deref(), Some("HD s5 X\r\nHD s5 X\r\n"));
    assert_eq!(bench.run(b"mg k s\r\nmg k s\r\n", &[usize::MAX]), b"HD s5 X W\r\nHD s5 Z X\r\n");
    assert_eq!(asked(&mut bench, one, b"mg k s\r\n").as_deref(), Some("HD s5 Z X\r\n"));
    // several datagrams, no whole request, no header
    assert_eq!(asked(&mut bench, [1, 2, 0, 0, 0, 2, 0, 0], b"get k\r\n"), None);
    assert_eq!((asked(&mut bench, one, b"get k"), asked(&mut bench, one, b"")), (None, None));
    assert_eq!(bench.server.core.stats.drops(DropReason::Datagram), 3);
}

#[test]
fn what_is_foreseen_changes_nothing_and_need_not_come() {
    let script = script();
    let whole = Bench::new(1 << 20, 1000).run(&script, &[usize::MAX]);
    let mut bench = Bench::new(1 << 20, 1000);
    for bytes in [&script[..2000], b"get k1 k2 none\r\nget k3\r\n", b"get ", b"", b"set k1 0 0 5\r\n", b"mg k\r\n"] {
        let coming = [0, 0, 3, 9].map(|cookie| Coming { cookie, bytes });
        bench.server.foresee(&coming);
    }
    let mut said = Vec::new();
    for piece in script.chunks(1000) {
        bench.server.foresee(&[Coming { cookie: 0, bytes: piece }]);
        said.extend(bench.run(piece, &[usize::MAX]));
    }
    assert!(said == whole, "{} octets against {}", said.len(), whole.len());
    // who is taken for another is found, and so is that somebody is not there
    let mut bench = Bench::new(1 << 20, 1000);
    bench.run(b"set a 0 0 1\r\nx\r\nset b 0 0 1\r\ny\r\n", &[usize::MAX]);
    for told in ["get a\r\n", "get b\r\n", "get c\r\n"] {
        for (asked, answer) in
            [("a", "VALUE a 0 1\r\nx\r\nEND\r\n"), ("b", "VALUE b 0 1\r\ny\r\nEND\r\n"), ("c", "END\r\n")]
        {
            bench.server.foresee(&[Coming { cookie: 0, bytes: told.as_bytes() }]);
            let said = bench.run(format!("get {asked}\r\n").as_bytes(), &[usize::MAX]);
            assert_eq!(String::from_utf8_lossy(&said), answer, "{asked} taken for {told}");
        }
    }
}

#[test]
fn keys_are_seen_at_a_glance() {
    let keys = |text: &'static str| -> Vec<String> {
        let keys = text::keys_at_a_glance(text.as_bytes());
        keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    };
    for (text, expected) in [
        ("get a\r\n", &["a"][..]),
        ("get a  bc d\r\nget e\r\nget f", &["a", "bc", "d", "e"]),
        ("gets a\r\nset b 0 0 1\r\nx\r\n", &["a"]),
        ("set a 0 0 1\r\nx\r\n", &["a"]),
        ("mg key v\r\nmg b v\r\n", &["key"]),
        ("stats items\r\n", &[]),
        ("get\r\n", &[]),
        ("get a", &[]),
        ("", &[]),
        (" get a\r\n", &[]),
    ] {
        assert_eq!(keys(text), expected, "{text}");
    }
}

#[test]
fn threads_that_share_nothing_see_their_own_items_wherever_a_connection_moves() {
    let limits =
        Limits { memory_bytes: 32 << 20, item_bytes: 1 << 20, threads: 2, secret: [3, 4], shared_nothing: true };
    let shared = Arc::new(Shared::new(limits));
    let bounds = Options::default().among(2);
    let server = |thread| {
        let options = Options { thread, ..bounds.clone() };
        Server::new(shared.clone(), options, shared.stats())
    };
    let mut benches = [0, 1].map(|thread| Bench::with(server(thread), 1 << 20, 1000));
    assert_eq!(benches[0].run(b"set a 0 0 1\r\nx\r\nget a\r\n", &[9]), b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(benches[1].run(b"get a\r\nset b 0 0 1\r\ny\r\n", &[9]), b"END\r\nSTORED\r\n");
    // the connection of the first goes on at the second
    let [first, second] = &mut benches;
    let luggage = first.server.depart(first.now, CONNECTION, 0);
    let cookie = second.server.arrive(second.now, &mut second.engine, CONNECTION, luggage).unwrap();
    second.engine.delivered += 16;
    second.server.recv(second.now, &mut second.engine, CONNECTION, cookie, b"get a\r\nget b\r\n");
    assert!(second.read());
    assert_eq!(std::mem::take(&mut second.read), b"VALUE a 0 1\r\nx\r\nEND\r\nEND\r\n");
    assert_eq!(second.run(b"flush_all\r\nget b\r\n", &[9]), b"OK\r\nEND\r\n");
    let hash = shared.store.hash(b"a");
    assert!((0..2).all(|n| shared.store.shard(n).find(hash, b"a", 3).is_none()));
}

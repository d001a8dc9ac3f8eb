//! The client library of protected applications for C: `include/simoom.h` is its document.
//!
//! Soundness: what a caller passes is what the header says: pointers that are valid for the call, or null, which is answered by
//! an error; `struct simoom_calls` is a [`Calls`] of ours that lives as long as the event in which its address was given. A C program
//! that keeps it longer breaks the header's rule, and its own process with it: the server takes nothing of it on trust.

#![allow(unsafe_code)]

use app::{Addresses, CallError, Connection, Datagram, DeadReason, Listener, Service, Streams, Waker};
use base::Instant;
use guard::client::{self, Attached};
use guard::{jail, layout};
use std::ffi::c_void;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

const E_CONNECTION: i32 = -1;
const E_STATE: i32 = -2;
const E_ARGUMENT: i32 = -3;
const E_SYSTEM: i32 = -4;
const E_ADDRESS: i32 = -5;
const E_FORBIDDEN: i32 = -6;
const E_RESOURCES: i32 = -7;

/// `struct simoom_connection`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CConnection {
    index: u32,
    generation: u32,
}

/// `struct simoom_address`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CAddress {
    ip: [u8; 16],
    port: u16,
}

const _: () = assert!(size_of::<CConnection>() == 8 && size_of::<CAddress>() == 18);

/// `struct simoom_calls`
#[allow(missing_debug_implementations, reason = "C sees its address alone")]
pub struct Calls<'a>(&'a mut dyn Streams);

type Knock = unsafe extern "C" fn(*mut c_void, *mut Calls<'_>, u64, u16, CConnection, *const CAddress, *const CAddress);
type Recv = unsafe extern "C" fn(*mut c_void, *mut Calls<'_>, u64, CConnection, u64, *const u8, usize);
type Plain = unsafe extern "C" fn(*mut c_void, *mut Calls<'_>, u64, CConnection, u64);
type Sent = unsafe extern "C" fn(*mut c_void, *mut Calls<'_>, u64, CConnection, u64, usize, usize);
type Dead = unsafe extern "C" fn(*mut c_void, u64, CConnection, u64, i32);
type Connected = unsafe extern "C" fn(*mut c_void, *mut Calls<'_>, u64, u64, CConnection, i32);
type Alarm = unsafe extern "C" fn(*mut c_void, *mut Calls<'_>, u64, u64);
type Cycle = unsafe extern "C" fn(*mut c_void, *mut Calls<'_>, u64);
type Begin = unsafe extern "C" fn(*mut c_void, *const Waker);
type OnDatagram =
    unsafe extern "C" fn(*mut c_void, u64, u16, *const CAddress, *const CAddress, *mut u8, usize, usize) -> i64;

/// `struct simoom_service`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CService {
    knock: Option<Knock>,
    recv: Option<Recv>,
    eof: Option<Plain>,
    sent: Option<Sent>,
    timer: Option<Plain>,
    dead: Option<Dead>,
    datagram: Option<OnDatagram>,
    connected: Option<Connected>,
    alarm: Option<Alarm>,
    flush: Option<Cycle>,
    begin: Option<Begin>,
    woken: Option<Cycle>,
}

/// A C program's functions as a service.
struct Foreign {
    service: CService,
    user: *mut c_void,
}

fn ours(connection: CConnection) -> Connection {
    Connection { index: connection.index, generation: connection.generation }
}

fn theirs(connection: Connection) -> CConnection {
    CConnection { index: connection.index, generation: connection.generation }
}

fn address(at: SocketAddr) -> CAddress {
    let ip = match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    CAddress { ip, port: at.port() }
}

/// An address of C's.
fn socket_addr(address: &CAddress) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(address.ip).to_canonical(), address.port)
}

impl Service for Foreign {
    fn begin(&mut self, waker: &Waker) {
        if let Some(begin) = self.service.begin {
            // for ever, one for each run of a service: no other thread of the program is told when it may not be used any more
            let waker = Box::leak(Box::new(waker.clone()));
            // SAFETY: the program's own function, by the header's contract.
            unsafe { begin(self.user, &raw const *waker) };
        }
    }

    fn woken<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        if let Some(woken) = self.service.woken {
            let mut calls = Calls(calls);
            // SAFETY: as in `knock`.
            unsafe { woken(self.user, &raw mut calls, now.as_nanos()) };
        }
    }

    fn flush<C: Streams>(&mut self, now: Instant, calls: &mut C) {
        if let Some(flush) = self.service.flush {
            let mut calls = Calls(calls);
            // SAFETY: as in `knock`.
            unsafe { flush(self.user, &raw mut calls, now.as_nanos()) };
        }
    }

    fn alarm<C: Streams>(&mut self, now: Instant, calls: &mut C, cookie: u64) {
        if let Some(alarm) = self.service.alarm {
            let mut calls = Calls(calls);
            // SAFETY: as in `knock`.
            unsafe { alarm(self.user, &raw mut calls, now.as_nanos(), cookie) };
        }
    }

    fn connected<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        cookie: u64,
        outcome: Result<Connection, DeadReason>,
    ) {
        let detail = layout::outcome_number(outcome.map(drop)).into();
        let connection = theirs(outcome.unwrap_or(Connection { index: u32::MAX, generation: 0 }));
        if let Some(connected) = self.service.connected {
            let mut calls = Calls(calls);
            // SAFETY: as in `knock`.
            unsafe { connected(self.user, &raw mut calls, now.as_nanos(), cookie, connection, detail) };
        }
    }

    fn knock<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        listener: Listener,
        connection: Connection,
        addresses: Addresses,
    ) {
        if let Some(knock) = self.service.knock {
            let (local, peer) = (address(addresses.local), address(addresses.peer));
            let mut calls = Calls(calls);
            // SAFETY: the program's own function, by the header's contract, with addresses that live as long as the call.
            unsafe { knock(self.user, &raw mut calls, now.as_nanos(), listener.0, theirs(connection), &local, &peer) };
        }
    }

    fn recv<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64, bytes: &[u8]) {
        let Some(recv) = self.service.recv else {
            // who is not interested holds nobody up
            let _ = calls.recv_done(connection, bytes.len());
            return;
        };
        let mut calls = Calls(calls);
        let (at, length) = (bytes.as_ptr(), bytes.len());
        // SAFETY: as in `knock`.
        unsafe { recv(self.user, &raw mut calls, now.as_nanos(), theirs(connection), cookie, at, length) };
    }

    fn eof<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        let Some(eof) = self.service.eof else {
            let _ = calls.close(connection);
            return;
        };
        let mut calls = Calls(calls);
        // SAFETY: as in `knock`.
        unsafe { eof(self.user, &raw mut calls, now.as_nanos(), theirs(connection), cookie) };
    }

    fn sent<C: Streams>(
        &mut self,
        now: Instant,
        calls: &mut C,
        connection: Connection,
        cookie: u64,
        bytes: usize,
        room: usize,
    ) {
        if let Some(sent) = self.service.sent {
            let mut calls = Calls(calls);
            // SAFETY: as in `knock`.
            unsafe { sent(self.user, &raw mut calls, now.as_nanos(), theirs(connection), cookie, bytes, room) };
        }
    }

    fn timer<C: Streams>(&mut self, now: Instant, calls: &mut C, connection: Connection, cookie: u64) {
        if let Some(timer) = self.service.timer {
            let mut calls = Calls(calls);
            // SAFETY: as in `knock`.
            unsafe { timer(self.user, &raw mut calls, now.as_nanos(), theirs(connection), cookie) };
        }
    }

    fn dead(&mut self, now: Instant, connection: Connection, cookie: u64, reason: DeadReason) {
        if let Some(dead) = self.service.dead {
            let reason = layout::reason_number(reason).into();
            // SAFETY: as in `knock`.
            unsafe { dead(self.user, now.as_nanos(), theirs(connection), cookie, reason) };
        }
    }

    fn datagrams(&mut self, now: Instant, listener: Listener, burst: &mut [Datagram<'_>]) {
        let Some(datagram) = self.service.datagram else { return };
        for one in burst {
            let (local, peer) = (address(one.addresses.local), address(one.addresses.peer));
            let (length, room) = (one.question().len(), one.capacity());
            let bytes = one.buffer().as_mut_ptr();
            // SAFETY: as in `knock`; the buffer is this datagram's and has `room` bytes.
            let answer = unsafe { datagram(self.user, now.as_nanos(), listener.0, &local, &peer, bytes, length, room) };
            // one that claims to have written more has broken its own process, and none of it is sent
            if let Some(answer) = usize::try_from(answer).ok().filter(|answer| *answer <= room) {
                one.reply(answer);
            }
        }
    }
}

/// What this process was granted. Why that cannot be had is said once.
fn granted() -> &'static [Attached] {
    static GRANTED: OnceLock<Vec<Attached>> = OnceLock::new();
    GRANTED.get_or_init(|| {
        client::attach().inspect_err(|error| say(&error.to_string())).ok().flatten().unwrap_or_default()
    })
}

/// Puts the inner filter on the process, once: it holds for all threads, and forbids what the next thread's would take.
fn shut_in() -> bool {
    static IN: OnceLock<bool> = OnceLock::new();
    *IN.get_or_init(|| jail::inner().inspect_err(|error| say(&format!("the filter of system calls: {error}"))).is_ok())
}

/// Says on the standard error, which the server has in its log, what a number cannot.
fn say(why: &str) {
    // that nobody reads it changes nothing
    let _ = std::io::stderr().write_all(format!("libsimoom: {why}\n").as_bytes());
}

/// See `simoom.h`.
#[unsafe(no_mangle)]
pub extern "C" fn simoom_threads() -> u32 {
    granted().len() as u32
}

/// See `simoom.h`.
///
/// # Safety
/// `service` is null or points to a `struct simoom_service`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simoom_run_2(service: *const CService, user: *mut c_void, thread: u32) -> i32 {
    // SAFETY: the caller's promise.
    let Some(service) = (unsafe { service.as_ref() }) else { return E_ARGUMENT };
    let Some(attached) = granted().get(thread as usize) else { return E_SYSTEM };
    if !shut_in() {
        return E_SYSTEM;
    }
    run(attached, thread, Foreign { service: *service, user })
}

/// Runs a service on a thread of the grant; what `simoom_run` returns.
fn run(attached: &Attached, thread: u32, service: Foreign) -> i32 {
    // no panic of ours goes through C
    match catch_unwind(AssertUnwindSafe(|| client::run(attached, service))) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) if error.kind() == ErrorKind::ResourceBusy => E_STATE,
        Ok(Err(error)) => {
            say(&format!("thread {thread}: {error}"));
            E_SYSTEM
        }
        // which was shown
        Err(_) => E_SYSTEM,
    }
}

fn number(outcome: Result<(), CallError>) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(CallError::NoConnection) => E_CONNECTION,
        Err(CallError::TooMuch | CallError::TooLong) => E_ARGUMENT,
        Err(CallError::NoSuchAddress) => E_ADDRESS,
        Err(CallError::Forbidden) => E_FORBIDDEN,
        Err(CallError::NoResources) => E_RESOURCES,
        Err(_) => E_STATE,
    }
}

/// Makes a call on what C was given.
///
/// # Safety
/// `calls` is null or what the present event was given.
unsafe fn call(calls: *mut Calls<'_>, make: impl FnOnce(&mut dyn Streams) -> Result<(), CallError>) -> i32 {
    // SAFETY: the caller's promise; events do not overlap, so nobody else has it.
    match unsafe { calls.as_mut() } {
        Some(calls) => number(make(calls.0)),
        None => E_ARGUMENT,
    }
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $kind:ty),*) $call:ident($($value:expr),*);)*) => {$(
        /// See `simoom.h`.
        ///
        /// # Safety
        /// `calls` is null or what the present event was given.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(calls: *mut Calls<'_>, connection: CConnection $(, $argument: $kind)*) -> i32 {
            // SAFETY: the caller's promise.
            unsafe { call(calls, |streams| streams.$call(ours(connection) $(, $value)*)) }
        }
    )*};
}

calls! {
    simoom_accept(cookie: u64) accept(cookie);
    simoom_recv_done(length: usize) recv_done(length);
    simoom_shutdown() shutdown();
    simoom_close() close();
    simoom_abort() abort();
    simoom_timer_set(at: u64) timer_set((at != layout::NEVER).then_some(Instant::from_nanos(at)));
}

/// See `simoom.h`.
///
/// # Safety
/// `calls` is null or what the present event was given; `bytes` points to `length` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simoom_send(
    calls: *mut Calls<'_>,
    connection: CConnection,
    bytes: *const u8,
    length: usize,
) -> i64 {
    if bytes.is_null() {
        return E_ARGUMENT.into();
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
    let mut taken = 0;
    // SAFETY: the caller's promise.
    let outcome = unsafe { call(calls, |streams| streams.send(ours(connection), bytes).map(|count| taken = count)) };
    if outcome < 0 { outcome.into() } else { taken as i64 }
}

/// See `simoom.h`.
///
/// # Safety
/// `calls` is null or what the present event was given; the other pointers are null or point to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simoom_connect(
    calls: *mut Calls<'_>,
    peer: *const CAddress,
    local: *const CAddress,
    cookie: u64,
    connection: *mut CConnection,
) -> i32 {
    // SAFETY: the caller's promise.
    let peer = unsafe { peer.as_ref() };
    // SAFETY: the caller's promise.
    let local = unsafe { local.as_ref() };
    let Some(peer) = peer.map(socket_addr) else { return E_ARGUMENT };
    // one that names neither an address nor a port says as little as none, and is of no family
    let local = local.map(socket_addr).filter(|local| local.port() != 0 || !local.ip().is_unspecified());
    let mut asked = None;
    // SAFETY: the caller's promise.
    let outcome = unsafe { call(calls, |streams| streams.connect(peer, local, cookie).map(|it| asked = Some(it))) };
    // SAFETY: the caller's promise.
    if let (Some(asked), Some(place)) = (asked, unsafe { connection.as_mut() }) {
        *place = theirs(asked);
    }
    outcome
}

/// See `simoom.h`.
///
/// # Safety
/// `calls` is null or what the present event was given; the addresses are null or point to such; `bytes` points to `length` bytes, or
/// is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simoom_send_to(
    calls: *mut Calls<'_>,
    listener: u16,
    local: *const CAddress,
    peer: *const CAddress,
    bytes: *const u8,
    length: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    let local = unsafe { local.as_ref() };
    // SAFETY: the caller's promise.
    let peer = unsafe { peer.as_ref() };
    let (Some(local), Some(peer)) = (local, peer) else { return E_ARGUMENT };
    if bytes.is_null() {
        return E_ARGUMENT;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
    let ends = Addresses { local: socket_addr(local), peer: socket_addr(peer) };
    // SAFETY: the caller's promise.
    unsafe { call(calls, |streams| streams.send_to(Listener(listener), ends, bytes)) }
}

/// See `simoom.h`.
///
/// # Safety
/// `calls` is null or what the present event was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simoom_alarm_set(calls: *mut Calls<'_>, cookie: u64, at: u64) -> i32 {
    let at = (at != layout::NEVER).then_some(Instant::from_nanos(at));
    // SAFETY: the caller's promise.
    unsafe { call(calls, |streams| streams.alarm_set(cookie, at)) }
}

/// See `simoom.h`.
///
/// # Safety
/// `waker` is null or what `begin` was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simoom_wake(waker: *const Waker) {
    // SAFETY: the caller's promise; a waker may be used by several threads.
    if let Some(waker) = unsafe { waker.as_ref() } {
        waker.wake();
    }
}

/// See `simoom.h`.
///
/// # Safety
/// `calls` is null or what the present event was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simoom_room(calls: *const Calls<'_>, connection: CConnection) -> usize {
    // SAFETY: the caller's promise.
    unsafe { calls.as_ref() }.map_or(0, |calls| calls.0.room(ours(connection)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use app::Range;
    use guard::{Channel, Grant, Granted, Place};
    use std::os::fd::AsFd;
    use std::ptr::{from_ref, null, null_mut};

    /// Notes what is asked for.
    #[derive(Default)]
    struct Asked {
        /// where connections are to begin
        locals: Vec<Option<SocketAddr>>,
        /// bytes given back
        done: usize,
    }

    impl Streams for Asked {
        fn accept(&mut self, _: Connection, _: u64) -> Result<(), CallError> {
            Err(CallError::NoConnection)
        }
        fn reject(&mut self, _: Connection) -> Result<(), CallError> {
            Err(CallError::NoConnection)
        }
        fn sendv(&mut self, _: Connection, _: &[Range<'_>]) -> Result<u64, CallError> {
            Err(CallError::NoConnection)
        }
        fn room(&self, _: Connection) -> usize {
            0
        }
        fn recv_done(&mut self, _: Connection, bytes: usize) -> Result<(), CallError> {
            self.done += bytes;
            Ok(())
        }
        fn shutdown(&mut self, _: Connection) -> Result<(), CallError> {
            Err(CallError::NoConnection)
        }
        fn close(&mut self, _: Connection) -> Result<(), CallError> {
            Err(CallError::NoConnection)
        }
        fn abort(&mut self, _: Connection) -> Result<(), CallError> {
            Err(CallError::NoConnection)
        }
        fn timer_set(&mut self, _: Connection, _: Option<Instant>) -> Result<(), CallError> {
            Err(CallError::NoConnection)
        }
        fn connect(&mut self, peer: SocketAddr, local: Option<SocketAddr>, _: u64) -> Result<Connection, CallError> {
            // as every engine does
            app::judge_ends(local, peer)?;
            self.locals.push(local);
            Ok(Connection { index: 7, generation: 8 })
        }
    }

    fn at(text: &str) -> CAddress {
        address(text.parse().unwrap())
    }

    #[test]
    fn who_says_nothing_of_its_own_end_has_it_chosen() {
        let (mut engine, mut connection) = (Asked::default(), CConnection { index: 0, generation: 0 });
        let zeroed = CAddress { ip: [0; 16], port: 0 };
        let mut connect = |peer: &str, local: *const CAddress| {
            let mut calls = Calls(&mut engine);
            // SAFETY: all are valid for the call.
            unsafe { simoom_connect(&raw mut calls, &at(peer), local, 1, &raw mut connection) }
        };
        for peer in ["192.0.2.1:9", "[2001:db8::1]:9"] {
            for local in [null(), from_ref(&zeroed), from_ref(&at("0.0.0.0:0"))] {
                assert_eq!(connect(peer, local), 0, "{peer}");
            }
        }
        // an address or a port is of a family
        assert_eq!(connect("192.0.2.1:9", &at("198.51.100.1:0")), 0);
        assert_eq!(connect("192.0.2.1:9", &at("0.0.0.0:5000")), 0);
        assert_eq!(connect("192.0.2.1:9", &at("[::]:5000")), E_ADDRESS);
        let last = ["198.51.100.1:0", "0.0.0.0:5000"].map(|local| Some(local.parse().unwrap()));
        assert_eq!((&engine.locals[..6], &engine.locals[6..]), (&[None; 6][..], &last[..]));
        assert_eq!((connection.index, connection.generation), (7, 8));
    }

    #[test]
    fn limits_are_what_the_header_says() {
        let header = include_str!("../include/simoom.h");
        let says = |name: &str| -> Option<u64> {
            let line = header.lines().find_map(|line| line.strip_prefix(&format!("#define SIMOOM_{name} ")))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        for (name, most) in [
            ("WINDOW_BYTES", layout::WINDOW_BYTES as u64),
            ("SEND_BYTES", layout::CREDIT_BYTES),
            ("DATAGRAM_BYTES", layout::SEND_BYTES as u64),
            ("ALARMS", app::ALARMS as u64),
            ("ASKING", layout::ASKING.into()),
            ("QUESTIONS", layout::DATAGRAMS.into()),
        ] {
            assert_eq!(says(name), Some(most), "{name}");
        }
    }

    #[test]
    fn what_nobody_wants_to_hear_of_is_given_back() {
        // SAFETY: each member is an optional function.
        let service: CService = unsafe { std::mem::zeroed() };
        let (mut foreign, mut engine) = (Foreign { service, user: null_mut() }, Asked::default());
        foreign.recv(Instant::ZERO, &mut engine, Connection { index: 1, generation: 2 }, 3, b"bytes");
        assert_eq!(engine.done, 5);
    }

    #[test]
    fn a_service_that_is_null_is_an_argument_that_cannot_be() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { simoom_run_2(null(), null_mut(), 0) }, E_ARGUMENT);
    }

    #[test]
    fn a_thread_of_the_grant_runs_one_service() {
        let channel = Channel::new(0, Place::Same, None, Grant::new(1, 0..1)).unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let granted = Granted::of(theirs.as_fd(), std::slice::from_ref(&channel));
        let attached = client::attach_to(&granted).unwrap().pop().unwrap();
        // the server has ended, and with it each service that runs
        drop(ours);
        // SAFETY: each member is an optional function.
        let service: CService = unsafe { std::mem::zeroed() };
        let codes = [(); 3].map(|()| run(&attached, 0, Foreign { service, user: null_mut() }));
        assert_eq!(codes, [0, E_STATE, E_STATE]);
    }

    /// Set for the process that a test starts.
    const CHILD: &str = "SIMOOM_TEST_GRANTED";

    #[test]
    fn why_there_are_no_threads_is_said_once() {
        if std::env::var_os(CHILD).is_some() {
            assert_eq!([(); 2].map(|()| simoom_threads()), [0, 0]);
            // SAFETY: each member is an optional function.
            let service: CService = unsafe { std::mem::zeroed() };
            // SAFETY: the service is one, and has no function that needs anything of `user`.
            assert_eq!(unsafe { simoom_run_2(&raw const service, null_mut(), 0) }, E_SYSTEM);
            return;
        }
        let of_another_version = "99:3:4,5,6".to_owned();
        let not_there = format!("{}:1003:1004,1005,1006", layout::VERSION);
        let version = format!("99:3:4,5,6 is not a grant of version {}", layout::VERSION);
        for (grant, why) in [(of_another_version, version.as_str()), (not_there, "descriptor 1003")] {
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["why_there_are_no_threads_is_said_once", "--nocapture"])
                .env(CHILD, "1")
                .env(guard::GRANT_VARIABLE, &grant)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let ours: Vec<_> = said.lines().filter(|line| line.starts_with("libsimoom: ")).collect();
            assert!(output.status.success() && ours.len() == 1 && ours[0].contains(why), "{grant}: {said}");
        }
    }

    /// Takes the waker's address where `user` points.
    unsafe extern "C" fn keeps_the_waker(user: *mut c_void, waker: *const Waker) {
        // SAFETY: the test gives the address of a place for it.
        unsafe { user.cast::<*const Waker>().write(waker) };
    }

    #[test]
    fn a_waker_is_good_when_its_service_has_gone() {
        let wakes = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counted = wakes.clone();
        let waker = Waker::new(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        let mut kept: *const Waker = null();
        // SAFETY: each member is an optional function.
        let service: CService = unsafe { std::mem::zeroed() };
        let service = CService { begin: Some(keeps_the_waker), ..service };
        let mut foreign = Foreign { service, user: (&raw mut kept).cast() };
        foreign.begin(&waker);
        drop((foreign, waker));
        let worker = std::thread::spawn({
            let kept = kept as usize;
            // SAFETY: it is what `begin` was given.
            move || unsafe { simoom_wake(kept as *const Waker) }
        });
        worker.join().unwrap();
        assert_eq!(wakes.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}

//! Connections are asked for from ports whose answers come to this thread.

use app::CallError;
use base::Instant;
use stack::tcp::Event;
use stack::{Ours, Stack, TcpConfig, TcpLimits};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use wire::Protocol;
use wire::flow::{Flow, Groups, Ports};
use wire::toeplitz::Key;

const LOCALS: [&str; 2] = ["192.0.2.1:0", "[2001:db8::1]:0"];
const PEERS: [&str; 2] = ["203.0.113.9:80", "[2001:db8:1::9]:80"];

const SECRET: [u64; 2] = [0x1b87_3593_85eb_ca6b, 0xc2b2_ae35_27d4_eb2f];

/// Groups below a bound are ours.
#[derive(Debug)]
struct Below(AtomicU16);

impl Ours for Below {
    fn owns(&self, group: u16) -> bool {
        group < self.0.load(Ordering::Relaxed)
    }
    fn owns_some(&self) -> bool {
        self.owns(0)
    }
}

fn a_stack(groups: &Arc<Groups>, ours: &Arc<Below>) -> Stack {
    let tcp = TcpConfig {
        limits: TcpLimits { connections: 4096, connections_per_source: 4096, ..TcpLimits::default() },
        ..TcpConfig::default()
    };
    let facts = port::Facts { mac: [2; 6], mtu: 1500, frame_bytes: 1514, virtual_link: false, receive_slots: 64 };
    let mut stack = Stack::new(stack::Config { tcp: Some(tcp), ..stack::Config::default() }, &facts);
    stack.set_groups(groups.clone());
    stack.set_ours(ours.clone());
    stack
}

fn connect(stack: &mut Stack, local: &str, peer: &str) -> Result<app::Connection, CallError> {
    stack.connect(Instant::ZERO, local.parse().unwrap(), peer.parse().unwrap(), [4; 6], 0, 1000)
}

/// The groups of all connections, by their answers.
fn groups_of(stack: &Stack, groups: &Groups) -> Vec<u16> {
    let mut found = Vec::new();
    stack.tcp_view(Instant::ZERO, 0, 4096, &mut |view| {
        found.push(groups.of(&Flow::new(Protocol::TCP, view.peer, view.local).unwrap()));
    });
    found
}

#[test]
fn ports_lead_to_groups_of_ours_whatever_they_are_by_then() {
    for groups in [Groups::keyed(64, SECRET), Groups::toeplitz(128, &Key::MICROSOFT, Ports::ALL)] {
        let groups = Arc::new(groups);
        let ours = Arc::new(Below(AtomicU16::new(64)));
        // the last: one of them all
        for bound in [64, 20, 1] {
            ours.0.store(bound, Ordering::Relaxed);
            let mut stack = a_stack(&groups, &ours);
            for (local, peer) in LOCALS.iter().zip(PEERS) {
                for _ in 0..25 {
                    connect(&mut stack, local, peer).unwrap();
                }
            }
            let found = groups_of(&stack, &groups);
            assert_eq!(found.len(), 50);
            assert!(found.iter().all(|group| *group < bound), "{bound}: {found:?}");
            assert_eq!(stack.tcp_counters().unwrap().event(Event::Elsewhere), 0);
        }
        // a successor knows the same
        let mut next = a_stack(&groups, &ours).successor();
        connect(&mut next, LOCALS[0], PEERS[0]).unwrap();
        assert_eq!(groups_of(&next, &groups), [0]);
    }
}

#[test]
fn a_thread_without_groups_and_a_port_of_anothers_are_refused_and_counted() {
    let groups = Arc::new(Groups::keyed(64, SECRET));
    let ours = Arc::new(Below(AtomicU16::new(0)));
    let mut stack = a_stack(&groups, &ours);
    assert_eq!(connect(&mut stack, LOCALS[0], PEERS[0]), Err(CallError::Elsewhere));
    assert_eq!(stack.tcp_counters().unwrap().event(Event::Elsewhere), 1);
    ours.0.store(32, Ordering::Relaxed);
    let peer: SocketAddr = PEERS[0].parse().unwrap();
    let mut taken = 0;
    for port in 50_000..50_050 {
        let local = SocketAddr::new("192.0.2.1".parse().unwrap(), port);
        let is_ours = groups.of(&Flow::new(Protocol::TCP, peer, local).unwrap()) < 32;
        let asked = connect(&mut stack, &local.to_string(), PEERS[0]);
        assert_eq!(asked.is_ok(), is_ours, "{asked:?}");
        taken += u64::from(is_ours);
    }
    assert!((10..40).contains(&taken), "{taken}");
    assert_eq!(stack.tcp_counters().unwrap().event(Event::Elsewhere), 51 - taken);
}

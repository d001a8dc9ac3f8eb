//! smoltcp at the other end of the pipe: an independent reading of the same RFCs resolves our addresses, pings them and has
//! datagrams answered, verifying every checksum. Time is passed in, so nothing here waits.

mod common;

use common::*;
use sim::wire_end::Wire;
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::{icmp, udp};
use smoltcp::time::Instant as Time;
use smoltcp::wire::{
    EthernetAddress, HardwareAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpCidr,
};
use stack::{Claim, Config, DropReason, Handled};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

struct World {
    host: Host,
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
}

impl World {
    /// Ours has claimed its addresses before the peer appears.
    fn new() -> World {
        let mut host = Host::new(Config { claim: Claim::default(), ..config() });
        host.pass(Duration::from_secs(30));
        let mut wire = Wire::default();
        let hardware = HardwareAddress::Ethernet(EthernetAddress(THEIRS));
        let mut interface = Interface::new(InterfaceConfig::new(hardware), &mut wire, Time::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::from(IpAddr::from(B4)), 24)).unwrap();
            addresses.push(IpCidr::new(IpAddress::from(IpAddr::from(B6)), 64)).unwrap();
        });
        World { host, wire, interface, sockets: SocketSet::new(vec![]) }
    }

    /// Lets frames pass both ways for a while.
    fn run(&mut self) {
        for _ in 0..100 {
            self.host.now += Duration::from_millis(20);
            let now = Time::from_micros((self.host.now.as_nanos() / 1000) as i64);
            self.interface.poll(now, &mut self.wire, &mut self.sockets);
            let sent = std::mem::take(&mut self.wire.sent);
            self.wire.arrived.extend(self.host.exchange(&sent));
        }
        assert!(self.wire.arrived.is_empty());
    }
}

fn udp_socket(world: &mut World) -> SocketHandle {
    let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 65536]);
    let mut socket = udp::Socket::new(buffer(), buffer());
    socket.bind(4000).unwrap();
    world.sockets.add(socket)
}

#[test]
fn datagrams_are_answered_and_their_checksums_verify() {
    let mut world = World::new();
    let handle = udp_socket(&mut world);
    let payloads: Vec<Vec<u8>> = [1, 2, 3, 40, 511, 1400].iter().map(|n| vec![*n as u8; *n]).collect();
    let servers: [SocketAddr; 2] = ["192.0.2.1:7".parse().unwrap(), "[2001:db8::1]:7".parse().unwrap()];
    for server in servers {
        for payload in &payloads {
            world.sockets.get_mut::<udp::Socket<'_>>(handle).send_slice(payload, server).unwrap();
            world.run();
            let (answer, meta) = world.sockets.get_mut::<udp::Socket<'_>>(handle).recv().unwrap();
            assert_eq!((answer[0], &answer[1..]), (b'1', &payload[..]));
            assert_eq!((meta.endpoint.addr, meta.endpoint.port), (IpAddress::from(server.ip()), 7));
        }
    }
    let count = |kind| world.host.counters.handled(kind);
    assert_eq!((count(Handled::Udp4Answered), count(Handled::Udp6Answered)), (6, 6));
    assert!(count(Handled::ArpRequest) >= 1 && count(Handled::Solicitation) >= 1);
}

#[test]
fn a_port_without_listener_is_reported_to_the_sender() {
    let mut world = World::new();
    let handle = udp_socket(&mut world);
    let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 8], vec![0; 8192]);
    let mut errors = icmp::Socket::new(buffer(), buffer());
    errors.bind(icmp::Endpoint::Udp(4000.into())).unwrap();
    let errors = world.sockets.add(errors);
    for server in ["192.0.2.1:9999", "[2001:db8::1]:9999"] {
        let server: SocketAddr = server.parse().unwrap();
        world.sockets.get_mut::<udp::Socket<'_>>(handle).send_slice(b"anybody?", server).unwrap();
        world.run();
        let (_, from) = world.sockets.get_mut::<icmp::Socket<'_>>(errors).recv().unwrap();
        assert_eq!(from, IpAddress::from(server.ip()));
    }
    assert_eq!(world.host.counters.icmp_errors_sent.get(), 2);
    assert_eq!(world.host.counters.dropped(DropReason::NoListener), 2);
}

#[test]
fn both_families_answer_ping() {
    let mut world = World::new();
    let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 8], vec![0; 8192]);
    let mut socket = icmp::Socket::new(buffer(), buffer());
    socket.bind(icmp::Endpoint::Ident(0x51)).unwrap();
    let handle = world.sockets.add(socket);
    let checks = ChecksumCapabilities::default();
    for seq_no in 0..3 {
        let data = vec![seq_no as u8; 56 + usize::from(seq_no)];
        let (ident, data) = (0x51, &data[..]);
        let socket = world.sockets.get_mut::<icmp::Socket<'_>>(handle);
        let request = Icmpv4Repr::EchoRequest { ident, seq_no, data };
        let out = socket.send(request.buffer_len(), IpAddr::from(A4).into()).unwrap();
        request.emit(&mut Icmpv4Packet::new_unchecked(out), &checks);
        world.run();
        let (bytes, from) = world.sockets.get_mut::<icmp::Socket<'_>>(handle).recv().unwrap();
        assert_eq!(from, IpAddr::from(A4).into());
        let reply = Icmpv4Repr::parse(&Icmpv4Packet::new_checked(bytes).unwrap(), &checks).unwrap();
        assert_eq!(reply, Icmpv4Repr::EchoReply { ident, seq_no, data });

        let socket = world.sockets.get_mut::<icmp::Socket<'_>>(handle);
        let request = Icmpv6Repr::EchoRequest { ident, seq_no, data };
        let out = socket.send(request.buffer_len(), IpAddr::from(A6).into()).unwrap();
        request.emit(&B6, &A6, &mut Icmpv6Packet::new_unchecked(out), &checks);
        world.run();
        let (bytes, from) = world.sockets.get_mut::<icmp::Socket<'_>>(handle).recv().unwrap();
        assert_eq!(from, IpAddr::from(A6).into());
        let reply = Icmpv6Repr::parse(&A6, &B6, &Icmpv6Packet::new_checked(bytes).unwrap(), &checks).unwrap();
        assert_eq!(reply, Icmpv6Repr::EchoReply { ident, seq_no, data });
    }
    let count = |kind| world.host.counters.handled(kind);
    assert_eq!((count(Handled::Echo4), count(Handled::Echo6)), (3, 3));
}

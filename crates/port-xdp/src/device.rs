//! What the kernel knows of an interface: by rtnetlink and by the ethtool ioctls, both of which see the network
//! namespace of the calling thread (sysfs would show that of whoever mounted it).
//!
//! Nothing here changes an interface. A multicast membership ([`Membership`], [`Joined`]) lasts as long as its socket.

use crate::ethtool::{self, Hears};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use port::Mac;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// An interface, as it was when asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// its name
    pub name: String,
    /// its index
    pub index: u32,
    /// its hardware address; zeros when it has none
    pub mac: Mac,
    /// bytes of the largest packet above the link layer
    pub mtu: usize,
    /// an administrator has put it up
    pub up: bool,
    /// it has carrier
    pub carrier: bool,
    /// it is the loopback interface
    pub loopback: bool,
    /// its frames begin with an Ethernet header
    pub ethernet: bool,
    /// other interfaces are parts of it: a bond's, or the VF that hv_netvsc sends by
    pub has_lower: bool,
    /// VLAN interfaces stand on it
    pub has_vlans: bool,
    /// the kernel has IPv6 there
    pub ipv6: bool,
    /// the id of the XDP program on it
    pub xdp_program: Option<u32>,
    /// receive queues in use
    pub rx_queues: u32,
    /// transmit queues in use
    pub tx_queues: u32,
    /// queues are set in pairs (`ethtool -L IF combined N`), else apart (`rx N tx N`)
    pub combined: bool,
    /// the driver's name, empty when it has none
    pub driver: String,
    /// the device takes the VLAN tag off before XDP sees the frame
    pub strips_vlan: bool,
    /// the device cuts TCP segments (TSO)
    pub segments_tcp: bool,
    /// bytes that a packet to be cut stays below, where the kernel says
    pub gso_max_bytes: Option<u32>,
}

/// Receive queues of an interface that are in use.
///
/// # Errors
/// The kernel's, also where a driver does not tell.
pub fn receive_queues(name: &str) -> io::Result<u32> {
    ethtool::channels(name).map(ethtool::Channels::receiving).or_else(|_| ethtool::receive_queues(name))
}

impl Device {
    /// Asks for interface `name`; None when there is none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn find(name: &str) -> io::Result<Option<Device>> {
        let mut links = Vec::new();
        dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
            if let RouteNetlinkMessage::NewLink(link) = message {
                links.push(link);
            }
        })?;
        let is_named = |a: &LinkAttribute| matches!(a, LinkAttribute::IfName(n) if n == name);
        let found = links.iter().find(|link| link.attributes.iter().any(is_named));
        let Some(mut device) = found.map(|link| of(name, link)) else { return Ok(None) };
        device.has_lower = links.iter().any(|link| is_part_of(link, device.index));
        device.has_vlans = links.iter().any(|link| is_vlan_on(link, device.index));
        if let Ok(channels) = ethtool::channels(name) {
            device.combined = channels.combined > 0;
            device.rx_queues = channels.receiving();
            device.tx_queues = channels.combined + channels.tx;
        } else if let Ok(rings) = ethtool::receive_queues(name) {
            device.rx_queues = rings;
            device.tx_queues = device.tx_queues.max(1);
        }
        device.driver = ethtool::driver(name).unwrap_or_default();
        device.strips_vlan = ethtool::strips_vlan(name).unwrap_or(false);
        device.segments_tcp = ethtool::segments_tcp(name).unwrap_or(false);
        Ok(Some(device))
    }

    /// The device's other end is on this machine, so its frames may carry partial checksums.
    pub fn is_virtual_link(&self) -> bool {
        matches!(self.driver.as_str(), "veth" | "tun" | "bridge")
    }

    /// Frames that may be on their way to the device without being lost; None where the driver says itself when it is full.
    ///
    /// veth hands frames to a ring of 256 at its peer (VETH_RING_SIZE in drivers/net/veth.c) and, on an interface without a
    /// queueing discipline, which is how one is made, drops what does not fit without a word to the sender. Each comes back
    /// when the peer has looked at it, so fewer on their way are never lost; some room is left for the kernel's own frames.
    pub(crate) fn takes_frames(&self) -> Option<u32> {
        (self.driver == "veth").then_some(192)
    }

    /// Waits for carrier, which some drivers drop when a program or a socket comes; false when it has not come by then.
    ///
    /// # Errors
    /// The kernel's, and `NotFound` when the interface has gone.
    pub fn wait_for_carrier(&mut self, at_most: Duration) -> io::Result<bool> {
        let until = Instant::now() + at_most;
        loop {
            *self = Device::find(&self.name)?.ok_or(io::ErrorKind::NotFound)?;
            if self.carrier || Instant::now() >= until {
                return Ok(self.carrier);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The names of all interfaces.
///
/// # Errors
/// The kernel's.
pub fn names() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
        if let RouteNetlinkMessage::NewLink(link) = message {
            names.extend(link.attributes.into_iter().filter_map(|a| match a {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            }));
        }
    })?;
    Ok(names)
}

fn of(name: &str, link: &LinkMessage) -> Device {
    let flags = link.header.flags;
    let mut device = Device {
        name: name.to_owned(),
        index: link.header.index,
        mac: Mac::default(),
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        ethernet: matches!(link.header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Loopback),
        has_lower: false,
        has_vlans: false,
        ipv6: false,
        xdp_program: None,
        rx_queues: 1,
        tx_queues: 1,
        combined: true,
        driver: String::new(),
        strips_vlan: false,
        segments_tcp: false,
        gso_max_bytes: None,
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Address(mac) => device.mac = mac.as_slice().try_into().unwrap_or_default(),
            LinkAttribute::Mtu(mtu) => device.mtu = *mtu as usize,
            LinkAttribute::GsoMaxSize(bytes) => device.gso_max_bytes = Some(*bytes),
            LinkAttribute::NumRxQueues(n) => device.rx_queues = *n,
            LinkAttribute::NumTxQueues(n) => device.tx_queues = *n,
            LinkAttribute::AfSpecUnspec(families) => device.ipv6 = has_ipv6(families),
            LinkAttribute::Xdp(xdp) => {
                let ids = xdp.iter().filter_map(|part| match part {
                    LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) | LinkXdp::HwProgId(id) => {
                        Some(*id)
                    }
                    _ => None,
                });
                device.xdp_program = ids.max();
            }
            _ => {}
        }
    }
    device
}

/// Whether an interface is a part of the one of this index.
fn is_part_of(link: &LinkMessage, index: u32) -> bool {
    link.attributes.iter().any(|a| matches!(a, LinkAttribute::Controller(upper) if *upper == index))
}

/// Whether an interface is a VLAN's on the one of this index.
fn is_vlan_on(link: &LinkMessage, index: u32) -> bool {
    let (mut is_vlan, mut is_on, mut is_elsewhere) = (false, false, false);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::LinkInfo(of) => is_vlan = of.contains(&LinkInfo::Kind(InfoKind::Vlan)),
            LinkAttribute::Link(lower) => is_on = *lower == index,
            // that index is another namespace's
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            _ => {}
        }
    }
    is_vlan && is_on && !is_elsewhere
}

/// Whether the kernel has IPv6 on an interface: there is none below an MTU of 1280, and it may be turned off (disable_ipv6).
fn has_ipv6(families: &[AfSpecUnspec]) -> bool {
    let of_v6 = families.iter().filter_map(|family| if let AfSpecUnspec::Inet6(of) = family { Some(of) } else { None });
    of_v6.flatten().any(|part| matches!(part, AfSpecInet6::DevConf(conf) if conf.disable_ipv6 == 0))
}

/// An address of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// the interface that has it
    pub interface: u32,
    /// the address
    pub address: IpAddr,
    /// bits of its network
    pub prefix_bits: u8,
}

fn address_of(message: &AddressMessage) -> Option<Address> {
    let mut found = None;
    for attribute in &message.attributes {
        match attribute {
            // on a point-to-point link IFA_ADDRESS is the peer's
            AddressAttribute::Local(local) => found = Some(*local),
            AddressAttribute::Address(address) if found.is_none() => found = Some(*address),
            _ => {}
        }
    }
    let header = &message.header;
    found.map(|address| Address { interface: header.index, address, prefix_bits: header.prefix_len })
}

/// Every address of the namespace, those of lo included.
///
/// # Errors
/// The kernel's.
pub fn addresses() -> io::Result<BTreeSet<Address>> {
    let mut found = BTreeSet::new();
    dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |message| {
        if let RouteNetlinkMessage::NewAddress(message) = message {
            found.extend(address_of(&message));
        }
    })?;
    Ok(found)
}

/// What may change of an interface while it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// there is none of that index
    Gone,
    /// there is one
    There {
        /// an administrator has put it up
        up: bool,
        /// it has carrier
        carrier: bool,
        /// its hardware address; zeros when it has none
        mac: Mac,
        /// bytes of the largest packet above the link layer
        mtu: usize,
        /// the kernel has IPv6 there
        ipv6: bool,
    },
}

impl Link {
    /// Asks for the interface of this index.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(index: u32) -> io::Result<Link> {
        let mut found = Link::Gone;
        dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
            if let RouteNetlinkMessage::NewLink(link) = message
                && link.header.index == index
            {
                found = Link::from(&of("", &link));
            }
        })?;
        Ok(found)
    }
}

impl From<&Device> for Link {
    fn from(device: &Device) -> Link {
        let Device { up, carrier, mac, mtu, ipv6, .. } = *device;
        Link::There { up, carrier, mac, mtu, ipv6 }
    }
}

/// What happened to the namespace's addresses and interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// there is a new one
    Added(Address),
    /// one has gone
    Removed(Address),
    /// something about the interface of this index is new; ask [`Link::of`]
    Link(u32),
    /// the kernel lost count of what happened; ask [`addresses`] and [`Link::of`]
    Missed,
}

/// Hears of changes to the namespace's addresses and interfaces.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

/// Multicast groups of rtnetlink (linux/rtnetlink.h).
const RTMGRP_LINK: u32 = 0x1;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;

impl Monitor {
    /// Begins to listen. What was there before is not told.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Monitor> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR))?;
        socket.set_non_blocking(true)?;
        Ok(Monitor { socket })
    }

    /// Readable when there is something to hear.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What has happened since the last call; does not wait.
    ///
    /// # Errors
    /// The kernel's.
    pub fn changes(&mut self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        loop {
            let mut buffer = Vec::with_capacity(BUFFER_BYTES);
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(changes),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    changes.push(Change::Missed);
                    continue;
                }
                Err(e) => return Err(e),
            }
            each(&buffer, |message| {
                match message.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(m)) => {
                        changes.extend(address_of(&m).map(Change::Added));
                    }
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(m)) => {
                        changes.extend(address_of(&m).map(Change::Removed));
                    }
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(m) | RouteNetlinkMessage::DelLink(m)) => {
                        changes.push(Change::Link(m.header.index))
                    }
                    NetlinkPayload::Overrun(_) => changes.push(Change::Missed),
                    _ => {}
                }
                Ok(true)
            })?;
        }
    }
}

const BUFFER_BYTES: usize = 64 << 10;

/// A dump is asked for this often when what it tells of changes meanwhile.
const DUMPS: usize = 8;

/// Asks for a dump, again while the kernel says that its tables changed during it, and shows what came.
fn dump(request: RouteNetlinkMessage, show: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(request));
    message.header.flags = NLM_F_DUMP | NLM_F_REQUEST;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    consistent(|| ask(&bytes))?.into_iter().for_each(show);
    Ok(())
}

/// What `ask` gives once nothing changed while it was asked, in a bounded number of attempts.
fn consistent(mut ask: impl FnMut() -> io::Result<Dump>) -> io::Result<Vec<RouteNetlinkMessage>> {
    for _ in 0..DUMPS {
        let dump = ask()?;
        if !dump.interrupted {
            return Ok(dump.messages);
        }
    }
    let what = format!("the interfaces or addresses changed during each of {DUMPS} looks at them; try again");
    Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
}

fn ask(request: &[u8]) -> io::Result<Dump> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(request, 0)?;
    let mut dump = Dump::default();
    while !dump.done {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        socket.recv(&mut buffer, 0)?;
        dump.take(&buffer)?;
    }
    Ok(dump)
}

/// A dump as far as it has come.
#[derive(Debug, Default)]
struct Dump {
    messages: Vec<RouteNetlinkMessage>,
    done: bool,
    /// what the kernel walks through changed: something may be missing or stand here twice
    interrupted: bool,
}

impl Dump {
    fn take(&mut self, buffer: &[u8]) -> io::Result<()> {
        each(buffer, |message| {
            self.interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
            match message.payload {
                NetlinkPayload::Done(_) => self.done = true,
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(message) => self.messages.push(message),
                _ => {}
            }
            Ok(!self.done)
        })
    }
}

/// Takes a datagram apart into its messages, until `on` says false. A message that the parser does not understand (an
/// interface of a kind it has not heard of) is passed over: it is not the one we look for.
fn each(buffer: &[u8], mut on: impl FnMut(NetlinkMessage<RouteNetlinkMessage>) -> io::Result<bool>) -> io::Result<()> {
    let mut rest = buffer;
    while let Some(length) = rest.first_chunk::<4>() {
        // messages are padded to four bytes (RFC 3549 2.2)
        let bytes = (u32::from_ne_bytes(*length) as usize).next_multiple_of(4);
        if bytes < 16 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "rtnetlink: a message shorter than its header"));
        }
        if let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
            && !on(message)?
        {
            return Ok(());
        }
        rest = rest.get(bytes..).unwrap_or_default();
    }
    Ok(())
}

/// Multicast groups, or everything, that an interface hears for us, as long as this lives.
#[derive(Debug)]
pub struct Membership {
    /// an AF_PACKET socket of protocol 0: it receives nothing, it only holds the memberships
    socket: OwnedFd,
    interface: u32,
}

impl Membership {
    /// A holder of memberships on interface index `interface`.
    ///
    /// # Errors
    /// The kernel's; it needs CAP_NET_RAW.
    pub fn open(interface: u32) -> io::Result<Membership> {
        Ok(Membership { socket: ethtool::packet_socket()?, interface })
    }

    /// Hears the solicited-node group of `address` (RFC 4291 2.7.1), so that neighbours' questions for it arrive, and that of all
    /// nodes, in which rivals and routers speak: the kernel is in neither where it has no IPv6. IPv4 needs no group: ARP is
    /// broadcast.
    ///
    /// # Errors
    /// The kernel's.
    pub fn join_for(&self, address: IpAddr) -> io::Result<()> {
        let IpAddr::V6(address) = address else { return Ok(()) };
        for group in [ALL_NODES, solicited_node(address)] {
            let [.., a, b, c, d] = group.octets();
            ethtool::hear(self.socket.as_raw_fd(), self.interface, Hears::Group([0x33, 0x33, a, b, c, d]))?;
        }
        Ok(())
    }

    /// Hears every frame, whoever it is for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hear_everything(&self) -> io::Result<()> {
        ethtool::hear(self.socket.as_raw_fd(), self.interface, Hears::Everything)
    }
}

/// Groups that are the kernel's, too, where it has IPv6, as long as this lives: it reports them when they are joined and when the
/// link comes back, and answers the queries about them (RFC 3810), without which switches forget who listens.
#[derive(Debug)]
pub struct Joined {
    /// bound to nothing: it receives nothing, it only holds the memberships
    socket: OwnedFd,
    interface: u32,
}

impl Joined {
    /// A holder of memberships on interface index `interface`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(interface: u32) -> io::Result<Joined> {
        let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Joined { socket, interface })
    }

    /// Joins the solicited-node group of `address`, unless that has been done.
    ///
    /// # Errors
    /// The kernel's; ENOBUFS when all groups together take more than net.core.optmem_max.
    pub fn join_for(&self, address: Ipv6Addr) -> io::Result<()> {
        match sockopt::set_ipv6_add_membership(&self.socket, &solicited_node(address), self.interface) {
            // another address may have the same group
            Ok(()) | Err(Errno::ADDRINUSE) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The group that every IPv6 node is in.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The group in which neighbours ask for `address` (RFC 4291 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RTM_DELADDR (21) for 192.0.2.1/24 on interface 7: header, ifaddrmsg, IFA_LOCAL.
    fn removal() -> Vec<u8> {
        let mut bytes = 32u32.to_ne_bytes().to_vec();
        bytes.extend(21u16.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend([2, 24, 0, 0]);
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(8u16.to_ne_bytes());
        bytes.extend(2u16.to_ne_bytes());
        bytes.extend([192, 0, 2, 1]);
        bytes[0] = bytes.len() as u8;
        bytes
    }

    fn heard(buffer: &[u8]) -> io::Result<Vec<Address>> {
        let mut heard = Vec::new();
        each(buffer, |message| {
            if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(message)) = message.payload {
                heard.extend(address_of(&message));
            }
            Ok(true)
        })?;
        Ok(heard)
    }

    #[test]
    fn a_message_that_is_not_understood_hides_no_other() {
        let expect = Address { interface: 7, address: "192.0.2.1".parse().unwrap(), prefix_bits: 24 };
        // an attribute that claims more bytes than there are
        let mut broken = removal();
        let attribute = broken.len() - 8;
        broken[attribute] = 200;
        let buffer = [removal(), broken, removal()].concat();
        assert_eq!(heard(&buffer).unwrap(), [expect, expect]);
    }

    #[test]
    fn a_message_without_end_is_an_error_not_a_loop() {
        assert!(heard(&[0; 16]).is_err());
        assert!(heard(&[1, 0]).unwrap().is_empty());
    }

    /// NLMSG_DONE (3), with the error code 0.
    fn done(flags: u16) -> Vec<u8> {
        let mut bytes = 20u32.to_ne_bytes().to_vec();
        bytes.extend(3u16.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 12]);
        bytes
    }

    #[test]
    fn a_dump_during_which_something_changed_is_asked_for_again() {
        // the kernel sets the flag on the messages after the change, or only on the last
        let mut changed = removal();
        changed[6] |= NLM_F_DUMP_INTR as u8;
        let interrupted = [[changed, done(0)].concat(), [removal(), done(NLM_F_DUMP_INTR)].concat()];
        for interrupted in interrupted {
            for (changes, outcome) in [(0, Some(1)), (1, Some(1)), (DUMPS - 1, Some(1)), (DUMPS, None)] {
                let mut asked = 0;
                let good = [removal(), done(0)].concat();
                let found = consistent(|| {
                    let mut dump = Dump::default();
                    dump.take(if asked < changes { &interrupted } else { &good })?;
                    asked += 1;
                    Ok(dump)
                });
                assert_eq!(found.as_ref().ok().map(Vec::len), outcome, "{changes} changes: {found:?}");
                assert_eq!(asked, DUMPS.min(changes + 1));
            }
        }
    }

    #[test]
    fn parts_of_an_interface_are_those_that_name_it_as_theirs() {
        let mut link = LinkMessage::default();
        link.header.index = 7;
        assert!(!is_part_of(&link, 7) && !is_part_of(&link, 3));
        link.attributes.push(LinkAttribute::Controller(3));
        assert!(!is_part_of(&link, 7) && is_part_of(&link, 3));
    }

    #[test]
    fn vlans_on_an_interface_are_those_that_name_it_in_its_namespace() {
        let vlan = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vlan)]);
        let macvlan = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::MacVlan)]);
        let with = |attributes: &[&LinkAttribute]| {
            let mut link = LinkMessage::default();
            link.attributes = attributes.iter().copied().cloned().collect();
            is_vlan_on(&link, 3)
        };
        let on = LinkAttribute::Link(3);
        assert!(with(&[&vlan, &on]));
        assert!(
            !with(&[&vlan]) && !with(&[&on]) && !with(&[&macvlan, &on]) && !with(&[&vlan, &LinkAttribute::Link(4)])
        );
        assert!(!with(&[&vlan, &on, &LinkAttribute::LinkNetNsId(1)]));
    }

    #[test]
    fn lo_is_there_and_nothing_is_not() {
        let lo = Device::find("lo").unwrap().unwrap();
        assert!(lo.loopback && lo.index == 1 && lo.rx_queues >= 1, "{lo:?}");
        assert_eq!(Device::find("no such one").unwrap(), None);
        assert!(names().unwrap().contains(&"lo".to_owned()));
    }
}

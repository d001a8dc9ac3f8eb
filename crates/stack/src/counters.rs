//! What became of every frame: one counter a reason, one a kind of packet handled.

use crate::agreement::Shared;
use base::Counter;
use base::counter::{Figure, Report};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Defines an enum together with its variants' list and labels, so that none can be forgotten in a report.
macro_rules! counted {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// Every variant, in order.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// As reports name it.
            pub const fn label(self) -> &'static str {
                match self { $($name::$variant => $label,)* }
            }
        }
    };
}

pub(crate) use counted;

counted! {
    /// Why a frame went no further.
    DropReason {
        /// it ends inside a header of the link or of ARP
        Runt = "runt",
        /// neither IPv4, IPv6 nor ARP, or a second tag
        EtherType = "ethertype",
        /// for another station
        NotOurMac = "not our mac",
        /// its source is a group, or ourselves
        BadSourceMac = "bad source mac",
        /// IPv4: it ends inside the header
        Ipv4Short = "ipv4 short",
        /// IPv4: version
        Ipv4Version = "ipv4 version",
        /// IPv4: header length
        Ipv4HeaderLength = "ipv4 header length",
        /// IPv4: total length
        Ipv4TotalLength = "ipv4 total length",
        /// IPv4: header checksum
        Ipv4Checksum = "ipv4 checksum",
        /// IPv4: an option leaves the header
        Ipv4Options = "ipv4 options",
        /// IPv4: source routing is asked for (RFC 7126 section 4.3)
        Ipv4SourceRoute = "ipv4 source route",
        /// IPv6: it ends inside the header
        Ipv6Short = "ipv6 short",
        /// IPv6: version
        Ipv6Version = "ipv6 version",
        /// IPv6: payload length
        Ipv6PayloadLength = "ipv6 payload length",
        /// IPv6: a malformed extension header
        Ipv6Extension = "ipv6 extension header",
        /// IPv6: more extension headers than are walked
        Ipv6TooManyExtensions = "ipv6 too many extension headers",
        /// IPv6: an option that asks for the packet's end
        Ipv6Option = "ipv6 option",
        /// IPv6: a routing header with segments left
        Ipv6Routing = "ipv6 routing header",
        /// IPv6: no next header
        Ipv6NoNextHeader = "ipv6 no next header",
        /// a part of a datagram: the stack does not reassemble
        Fragment = "fragment",
        /// a source that nobody can be answered at: a group, loopback, unspecified, a broadcast
        MartianSource = "martian source",
        /// one of our own addresses, or the destination itself, as source
        OwnSource = "own source",
        /// loopback, unspecified or IPv4-mapped as destination
        MartianDestination = "martian destination",
        /// a broadcast or group that nobody listens to here
        Multicast = "multicast",
        /// a unicast packet in a frame to a group (RFC 1122 section 3.3.6)
        GroupMac = "unicast in group frame",
        /// not an address of ours
        NotOurs = "not our address",
        /// an own address that is not yet, or not any more, ours to use
        NotReady = "address not ready",
        /// a protocol that the stack does not have
        Protocol = "protocol",
        /// UDP: it ends inside the header
        UdpShort = "udp short",
        /// UDP: length
        UdpLength = "udp length",
        /// UDP: source port zero
        UdpSourcePort = "udp source port",
        /// UDP: checksum
        UdpChecksum = "udp checksum",
        /// UDP: no checksum over IPv6 (RFC 8200 section 8.1)
        UdpNoChecksum = "udp no checksum",
        /// UDP, or TCP at an address that the kernel has too: nobody listens
        NoListener = "no listener",
        /// TCP: it ends inside the header
        TcpShort = "tcp short",
        /// TCP: data offset
        TcpDataOffset = "tcp data offset",
        /// TCP: a port of zero
        TcpPort = "tcp port",
        /// TCP: checksum
        TcpChecksum = "tcp checksum",
        /// ICMP: it ends inside the header
        IcmpShort = "icmp short",
        /// ICMP: checksum
        IcmpChecksum = "icmp checksum",
        /// ICMP: a kind that is not handled
        IcmpKind = "icmp kind",
        /// ICMP: an error that quotes nothing we sent
        IcmpForeign = "icmp error of no flow of ours",
        /// an echo request above the limit
        EchoLimit = "echo limit",
        /// ARP: malformed
        Arp = "arp malformed",
        /// ARP: about an address that is not ours
        ArpNotOurs = "arp not ours",
        /// neighbour discovery: hop limit not 255, code, length, options (RFC 4861 section 7.1)
        Neighbour = "neighbour malformed",
        /// neighbour discovery: about an address that is not ours
        NeighbourNotOurs = "neighbour not ours",
        /// listener discovery: malformed (RFC 3810 section 6.2)
        ListenerQuery = "listener query malformed",
        /// a datagram whose answer was to be copied while no frame was free
        NoFrame = "no frame",
        /// longer than the link's MTU, or its answer needs more room than the frame has
        NoRoom = "no room",
    }
}

counted! {
    /// What a frame that was not dropped was.
    Handled {
        /// a datagram over IPv4 that the service answered
        Udp4Answered = "udp4 answered",
        /// a datagram over IPv4 that the service left unanswered
        Udp4Unanswered = "udp4 unanswered",
        /// a datagram over IPv6 that the service answered
        Udp6Answered = "udp6 answered",
        /// a datagram over IPv6 that the service left unanswered
        Udp6Unanswered = "udp6 unanswered",
        /// a TCP segment over IPv4; TCP's own counters tell more
        Tcp4 = "tcp4",
        /// a TCP segment over IPv6
        Tcp6 = "tcp6",
        /// an ICMP echo request, answered
        Echo4 = "icmp echo",
        /// an ICMPv6 echo request, answered
        Echo6 = "icmpv6 echo",
        /// an ICMP error that quotes a flow of ours
        IcmpError4 = "icmp error",
        /// an ICMPv6 error that quotes a flow of ours
        IcmpError6 = "icmpv6 error",
        /// an ARP request, answered
        ArpRequest = "arp request",
        /// an ARP packet by which another claims or probes an address of ours
        ArpConflict = "arp conflict",
        /// a neighbour solicitation, answered
        Solicitation = "neighbour solicitation",
        /// a neighbour solicitation or advertisement by which another claims an address of ours
        NeighbourConflict = "neighbour conflict",
        /// a listener query
        ListenerQuery = "listener query",
        /// an ARP packet that told what we had asked for
        ArpHeard = "arp answer",
        /// a neighbour advertisement that told what we had asked for
        NeighbourHeard = "neighbour answer",
    }
}

/// How far an own address has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Readiness {
    /// it is being looked for another holder
    Probing = 0,
    /// it is used
    Ready = 1,
    /// another station has it; it is not used
    Conflict = 2,
}

/// An own address as others may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnStatus {
    /// the address
    pub addr: IpAddr,
    /// how far it has come
    pub readiness: Readiness,
    /// packets by which others claimed it
    pub conflicts: u64,
    /// who claimed it last
    pub rival: Option<wire::Mac>,
}

/// The counters of one stack. Its thread writes, anybody reads.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters {
    /// frames taken in: the sum of all drops and all handled
    pub received: Counter,
    /// datagrams and segments whose checksum was the folded pseudo-header sum, left by a kernel on the same machine
    pub partial_checksums: Counter,
    /// datagrams over IPv4 without a checksum
    pub absent_checksums: Counter,
    /// ICMP errors sent
    pub icmp_errors_sent: Counter,
    /// ICMP errors that the limit held back
    pub icmp_errors_withheld: Counter,
    /// ARP probes and announcements, neighbour solicitations and advertisements, listener reports sent unasked
    pub claims_sent: Counter,
    /// datagrams sent that the service gave by itself
    pub unasked: Counter,
    /// of those, lost since nobody knew the way, or not before later ones came
    pub unasked_lost: Counter,
    /// ARP requests and neighbour solicitations sent for neighbours
    pub neighbours_asked: Counter,
    drops: [Counter; DropReason::ALL.len()],
    handled: [Counter; Handled::ALL.len()],
    /// and whether this stack is the one to report them; changed only when the configuration is, never locked for a packet
    own: Mutex<(Vec<Arc<Shared>>, bool)>,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            received: Counter::new(),
            partial_checksums: Counter::new(),
            absent_checksums: Counter::new(),
            icmp_errors_sent: Counter::new(),
            icmp_errors_withheld: Counter::new(),
            claims_sent: Counter::new(),
            unasked: Counter::new(),
            unasked_lost: Counter::new(),
            neighbours_asked: Counter::new(),
            drops: [const { Counter::new() }; _],
            handled: [const { Counter::new() }; _],
            own: Mutex::default(),
        }
    }

    /// Frames dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// Frames handled as `kind`.
    pub fn handled(&self, kind: Handled) -> u64 {
        self.handled[kind as usize].get()
    }

    /// The own addresses and how far they have come; stacks that share an agreement show the same.
    pub fn own(&self) -> Vec<OwnStatus> {
        self.lock().0.iter().map(|own| own.status()).collect()
    }

    #[inline]
    pub(crate) fn add_drop(&self, reason: DropReason) {
        self.drops[reason as usize].add(1);
    }

    #[inline]
    pub(crate) fn add_handled(&self, kind: Handled, n: u64) {
        self.handled[kind as usize].add(n);
    }

    pub(crate) fn show_own(&self, own: Vec<Arc<Shared>>, reported: bool) {
        *self.lock() = (own, reported);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Vec<Arc<Shared>>, bool)> {
        // a list of handles is whole whatever happened to a thread that held it
        self.own.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Report for Counters {
    fn report(&self, show: &mut dyn FnMut(Figure<'_>)) {
        let mut count = |name, help, counter: &Counter, labels: &[(&str, &str)]| {
            show(Figure { name, help, gauge: false, labels, value: counter.get() });
        };
        count("frames_received_total", "frames taken in by the stack", &self.received, &[]);
        for (reason, counter) in DropReason::ALL.iter().zip(&self.drops) {
            let labels = [("reason", reason.label())];
            count("frames_dropped_total", "frames that went no further, by reason", counter, &labels);
        }
        for (kind, counter) in Handled::ALL.iter().zip(&self.handled) {
            let labels = [("kind", kind.label())];
            count("frames_handled_total", "frames handled, by kind", counter, &labels);
        }
        let help = "datagrams and segments whose checksum a kernel on this machine had left to a device";
        count("udp_partial_checksums_total", help, &self.partial_checksums, &[]);
        let help = "datagrams over IPv4 without a checksum";
        count("udp_absent_checksums_total", help, &self.absent_checksums, &[]);
        count("icmp_errors_sent_total", "ICMP errors sent", &self.icmp_errors_sent, &[]);
        count("icmp_errors_withheld_total", "ICMP errors not sent for the limit", &self.icmp_errors_withheld, &[]);
        let help = "probes, announcements and listener reports sent unasked for own addresses";
        count("claims_sent_total", help, &self.claims_sent, &[]);
        let help = "datagrams that a service sent by itself, by what became of them";
        count("unasked_datagrams_total", help, &self.unasked, &[("fate", "sent")]);
        count("unasked_datagrams_total", help, &self.unasked_lost, &[("fate", "no way to the peer")]);
        let help = "ARP requests and neighbour solicitations for those that something is sent to";
        count("neighbours_asked_total", help, &self.neighbours_asked, &[]);
        // what several stacks share is added up only once
        let reported = if self.lock().1 { self.own() } else { Vec::new() };
        for own in reported {
            let addr = own.addr.to_string();
            let labels = [("address", addr.as_str())];
            let help = "own address: 0 looked for another holder, 1 used, 2 another has it";
            let value = own.readiness as u64;
            show(Figure { name: "own_address_state", help, gauge: true, labels: &labels, value });
            let help = "packets by which others claimed an own address";
            let value = own.conflicts;
            show(Figure { name: "own_address_conflicts_total", help, gauge: false, labels: &labels, value });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Agreement;
    use std::collections::HashSet;

    #[test]
    fn every_figure_of_a_report_is_another() {
        let counters = Counters::new();
        let addr = "192.0.2.1".parse().unwrap();
        let agreement = Agreement::new([addr]);
        counters.show_own(agreement.find(addr).cloned().into_iter().collect(), true);
        counters.add_drop(DropReason::NoRoom);
        counters.add_handled(Handled::ListenerQuery, 3);
        let (mut seen, mut sum) = (HashSet::new(), 0);
        counters.report(&mut |figure| {
            assert!(seen.insert(format!("{} {:?}", figure.name, figure.labels)), "{figure:?} twice");
            sum += figure.value;
        });
        assert_eq!(seen.len(), DropReason::ALL.len() + Handled::ALL.len() + 11);
        assert_eq!(sum, 4);
    }
}

//! What is ours while the ports run: listeners as the namespace's addresses have them now, own addresses, prefixes.
//!
//! Control's thread owns it; the ports never wait for it.

use crate::answering::{Peer, packet_bytes};
use crate::device::{self, Address, Change, Device, Joined, Link, Membership, Monitor};
use crate::open::{Listener, OpenConfig, OpenError, other};
use crate::stats::Stats;
use bpf::steering::{Answers, Counts, Rule};
use bpf::{Steering, SteeringError, Taken};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Says what is ours while the ports run. Control's; dropping it detaches the program, and the kernel has all traffic.
#[derive(Debug)]
pub struct Handle {
    interface: u32,
    /// its MTU when it was opened: frames have no room for more
    most_mtu: usize,
    /// as it was when it was looked at last
    link: Link,
    /// of its queues, which show whether it has carrier
    stats: Vec<Arc<Stats>>,
    /// something was heard about it since
    look: bool,
    steering: Steering,
    membership: Option<Membership>,
    /// own addresses' groups, where the kernel reports them
    joined: Option<Joined>,
    monitor: Monitor,
    /// where what the program answers depends on who takes it
    peer: Option<Peer>,
    listeners: BTreeSet<Listener>,
    /// What is new and has not been told yet: it would not be found a second time.
    untold: Followed,
}

/// What [`Handle::follow`] found.
#[derive(Debug, Default)]
#[must_use]
pub struct Followed {
    /// what is taken changed with the machine's addresses
    pub addresses: bool,
    /// the interface as it is now, when that is new. The program knows of a new hardware address and MTU; the stacks are to be
    /// told.
    pub link: Option<Link>,
    /// whether the peer takes what the program answers, when that is new; otherwise our own stack answers
    pub answered: Option<bool>,
    /// The first thing that the kernel refused. It keeps nothing else from being followed, and is tried again with the next call, which
    /// is to be made after a while, whether or not a descriptor tells of news.
    pub failed: Option<io::Error>,
}

impl Handle {
    pub(crate) fn new(
        config: &OpenConfig,
        device: &Device,
        steering: Steering,
        stats: Vec<Arc<Stats>>,
    ) -> Result<Handle, OpenError> {
        let name = &config.interface;
        // before the addresses are asked for, so that no change is missed
        let monitor = Monitor::open().map_err(other(name, "listening for address changes"))?;
        let listeners = config.listeners.iter().copied().collect();
        let link = Link::from(device);
        let mut peer = Peer::watch(device.index, steering.answers()).map_err(other(name, "listening for its peer"))?;
        let looked = peer.as_mut().map_or(Ok(None), Peer::look);
        looked.map_err(other(name, "asking whether its peer takes answers"))?;
        let mut handle = Handle {
            interface: device.index,
            most_mtu: device.mtu,
            link,
            stats,
            look: true,
            steering,
            membership: None,
            joined: None,
            monitor,
            peer,
            listeners,
            untold: Followed::default(),
        };
        for (prefixes, rule) in [(&config.allow, Rule::Allow), (&config.deny, Rule::Deny)] {
            for prefix in prefixes {
                handle.steering.add_prefix(*prefix, rule).map_err(OpenError::Entry)?;
            }
        }
        if config.everything {
            let membership = Membership::open(device.index).map_err(other(name, "hearing every frame"))?;
            membership.hear_everything().map_err(other(name, "hearing every frame"))?;
            handle.membership = Some(membership);
        }
        for address in &config.own {
            handle.take_own(*address).map_err(other(name, "adding an own address"))?;
        }
        handle.report_groups().map_err(other(name, "joining the groups of own addresses"))?;
        // the interface may have changed since it was asked for, which is told when it is followed first
        handle.catch_up().1.map_err(other(name, "taking the listeners' addresses"))?;
        Ok(handle)
    }

    /// The program, for single entries.
    pub fn steering(&mut self) -> &mut Steering {
        &mut self.steering
    }

    /// What the program answers by itself; None when it was opened without.
    pub fn answers(&self) -> Option<Answers> {
        self.steering.answers()
    }

    /// What the program answers goes to a peer of which the kernel does not tell whether it takes it.
    pub(crate) fn may_answer_in_vain(&self) -> bool {
        self.peer.is_none() && self.answers().is_some_and(|answers| Peer::is_asked_for(&answers))
    }

    /// What the program has counted.
    pub fn counts(&self) -> Arc<Counts> {
        self.steering.counts()
    }

    /// Makes an address wholly ours.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add_own(&mut self, address: IpAddr) -> io::Result<()> {
        self.take_own(address)?;
        self.report_groups()
    }

    fn take_own(&mut self, address: IpAddr) -> io::Result<()> {
        if address.is_ipv6() {
            let membership = match self.membership.take() {
                Some(membership) => membership,
                None => Membership::open(self.interface)?,
            };
            let joined = membership.join_for(address);
            self.membership = Some(membership);
            joined?;
        }
        self.steering.add_own(address).map_err(|e| io::Error::other(e.to_string()))
    }

    /// Has the kernel report the groups of own addresses, among its own. Where it has no IPv6 it reports none, and the queries
    /// are our stack's; it tells of its groups itself when it claims them.
    fn report_groups(&mut self) -> io::Result<()> {
        let of_v6 = |own: &IpAddr| if let IpAddr::V6(address) = own { Some(*address) } else { None };
        let own: Vec<Ipv6Addr> = self.steering.own().filter_map(of_v6).collect();
        let kernel = matches!(self.link, Link::There { ipv6: true, .. });
        if kernel && !own.is_empty() {
            let joined = self.joined.take().map_or_else(|| Joined::open(self.interface), Ok)?;
            let joined = self.joined.insert(joined);
            own.iter().try_for_each(|address| joined.join_for(*address))?;
        } else {
            // of what it had without IPv6 the kernel would join nothing when it has that anew
            self.joined = None;
        }
        self.steering.take_queries(!kernel && !own.is_empty()).map_err(|e| io::Error::other(e.to_string()))
    }

    /// Listens on one more destination.
    ///
    /// # Errors
    /// The kernel's.
    pub fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.listeners.insert(listener);
        self.catch_up().1
    }

    /// Listens on one destination less.
    ///
    /// # Errors
    /// The kernel's.
    pub fn unlisten(&mut self, listener: &Listener) -> io::Result<()> {
        self.listeners.remove(listener);
        self.catch_up().1
    }

    /// One of them is readable when addresses or interfaces have changed; then [`Handle::follow`] is due, and once at the beginning.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.monitor.descriptor()).chain(self.peer.as_ref().map(Peer::descriptor))
    }

    /// Makes what is taken what the listeners mean with the addresses of now, and looks at the interface.
    pub fn follow(&mut self) -> Followed {
        let (addresses, outcome) = self.catch_up();
        Followed { addresses, failed: outcome.err(), ..std::mem::take(&mut self.untold) }
    }

    /// The same, with what is new for who asks next, but for whether what is taken changed. What fails keeps nothing else from being done;
    /// the first of that is told.
    fn catch_up(&mut self) -> (bool, io::Result<()>) {
        let heard = self.monitor.changes().map(|changes| {
            // of what was heard nothing is believed but that something is new
            self.look |= changes.iter().any(|change| match change {
                Change::Link(index) => *index == self.interface,
                // it loses all of IPv6 when that is turned off, of which the kernel says nothing else
                Change::Added(address) | Change::Removed(address) => address.interface == self.interface,
                Change::Missed => true,
            });
        });
        let looked = if self.look { self.look() } else { Ok(()) };
        let answered = self.peer.as_mut().map_or(Ok(None), Peer::look);
        let asked = answered.map(|answered| self.untold.answered = answered.or(self.untold.answered));
        let (changed, taken) = match device::addresses() {
            Ok(addresses) => self.follow_addresses(&addresses),
            Err(error) => (false, Err(error)),
        };
        (changed, heard.and(looked).and(asked).and(taken))
    }

    /// Looks whether anything about the interface is new.
    fn look(&mut self) -> io::Result<()> {
        let now = Link::of(self.interface)?;
        let failed = |e: SteeringError| io::Error::other(e.to_string());
        if let Link::There { mac, mtu, .. } = now {
            self.steering.set_mac(mac).map_err(failed)?;
            let told = self.answers().map(|answers| answers.set_mtu(packet_bytes(mtu.min(self.most_mtu))));
            told.transpose().map_err(failed)?;
        }
        let carrier = matches!(now, Link::There { up: true, carrier: true, .. });
        self.stats.iter().for_each(|stats| stats.carrier.set(carrier.into()));
        if std::mem::replace(&mut self.link, now) != now {
            self.untold.link = Some(now);
        }
        self.report_groups()?;
        self.look = false;
        Ok(())
    }

    /// Takes what the listeners mean with these addresses, and nothing else; whether that changed anything.
    fn follow_addresses(&mut self, addresses: &BTreeSet<Address>) -> (bool, io::Result<()>) {
        let wanted = resolve(&self.listeners, addresses, self.interface);
        let has: BTreeSet<Taken> = self.steering.taken().copied().collect();
        let taken: Vec<_> = wanted.difference(&has).map(|taken| self.steering.take(*taken)).collect();
        let released = has.difference(&wanted).map(|taken| self.steering.release(taken));
        let outcomes: Vec<_> = taken.into_iter().chain(released).collect();
        let changed = outcomes.iter().any(Result::is_ok);
        (changed, outcomes.into_iter().collect::<Result<(), _>>().map_err(|error| io::Error::other(error.to_string())))
    }
}

/// What the listeners mean, with these addresses, on interface index `interface`.
fn resolve(listeners: &BTreeSet<Listener>, addresses: &BTreeSet<Address>, interface: u32) -> BTreeSet<Taken> {
    // a link-local address counts on its own link only, and loopback addresses never come over a wire
    let reachable = |a: &&Address| match a.address {
        IpAddr::V4(v4) => !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && (!v6.is_unicast_link_local() || a.interface == interface),
    };
    let mut wanted = BTreeSet::new();
    for Listener { address, protocol, port } in listeners.iter().copied() {
        if !address.is_unspecified() {
            wanted.insert(Taken { address, protocol, port });
            continue;
        }
        let local = addresses.iter().filter(reachable).filter(|a| a.address.is_ipv4() == address.is_ipv4());
        wanted.extend(local.map(|a| Taken { address: a.address, protocol, port }));
    }
    wanted
}

#[cfg(test)]
mod tests;

//! Which thread of an interface owns which flows.
//!
//! Where the NIC says how it spreads flows over its queues, groups are buckets of the NIC's own hash, and each belongs to the
//! thread at whose queue its packets arrive: nothing crosses between threads until a group moves. Where it does not, a
//! group's packets may arrive at any queue, and all but one thread's would have to be handed over; so there flows stay where
//! they arrive, unless that is asked for.

use crate::config::Settings;
use crate::secrets::random;
use crate::words::Balance;
use base::balance::Policy;
use dataplane::{Owners, Sharing};
use port_xdp::nic::{Flows, HashFunction, Nic};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use wire::flow::{Groups, Ports};
use wire::toeplitz::Key;

/// Entries of the table that is supposed where only the key is known.
const SUPPOSED_ENTRIES: usize = 128;

/// How a NIC spreads flows.
struct Spreading {
    key: Key,
    ports: Ports,
    /// the queue of each entry
    table: Vec<u32>,
}

/// How the threads of `interface` share its flows, in a word for the log with it; None: each serves what its queue receives.
///
/// # Errors
/// The kernel's, when it has no randomness to give.
pub(crate) fn sharing(
    settings: &Settings,
    interface: &str,
    threads: Range<usize>,
) -> io::Result<(Option<Sharing>, Option<String>)> {
    if threads.len() < 2 || settings.balance == Some(Balance::Off) {
        return Ok((None, None));
    }
    let asked = settings.balance == Some(Balance::On);
    let spreading = match &settings.rss_key {
        Some(key) => Ok(supposed(key.0, threads.len())),
        None => read(&Nic::of(interface)),
    };
    let groups = settings.flow_groups;
    let checked = spreading.and_then(|spreading| check(spreading, groups, threads.len()));
    let (owners, said) = match checked {
        Ok(Spreading { key, ports, table }) => {
            let owner = |group: u16| table[usize::from(group) % table.len()] as u16;
            let owners = Owners::new(Groups::toeplitz(groups, &key, ports), threads.len(), owner);
            (owners, format!("{interface}: {groups} flow groups by the NIC's hash, each with the thread of its queue"))
        }
        Err(why) if asked => {
            let count = threads.len() as u16;
            // not TCP's: who learned something of this hash, which is a weak one, would have learned it of that
            let secret = [u64::from_ne_bytes(random()?), u64::from_ne_bytes(random()?)];
            let owners = Owners::new(Groups::keyed(groups, secret), threads.len(), |group| group % count);
            (owners, format!("{interface}: {groups} flow groups by our own hash, handed over between threads ({why})"))
        }
        Err(why) => {
            let said = format!("{interface}: flows stay with the thread of the queue where they arrive ({why})");
            return Ok((None, Some(said)));
        }
    };
    let balance = (settings.balance != Some(Balance::Steal)).then(Policy::default);
    Ok((Some(Sharing { first: threads.start, owners: Arc::new(owners), balance }), Some(said)))
}

/// A NIC that is known by its key alone, as drivers start: the table deals entries out in turn, ports count.
fn supposed(key: Key, queues: usize) -> Spreading {
    let table = (0..SUPPOSED_ENTRIES).map(|entry| (entry % queues) as u32).collect();
    Spreading { key, ports: Ports::ALL, table }
}

/// What the device says, or why that is not enough.
fn read(nic: &Nic) -> Result<Spreading, String> {
    let failed = |error: io::Error| format!("asking for its hash: {error}");
    let rss = nic.rss().map_err(failed)?.ok_or("its driver does not say how it spreads flows")?;
    if rss.function != HashFunction::Toeplitz || rss.symmetric {
        return Err("its hash is not the plain Toeplitz hash".into());
    }
    let key = Key::new(&rss.key).map_err(|error| error.to_string())?;
    let mut counts = [false; 4];
    for (flows, ports) in Flows::ALL.into_iter().zip(&mut counts) {
        let fields = nic.hash_fields(flows).map_err(failed)?;
        let fields = fields.filter(|fields| fields.addresses && !fields.others);
        *ports = fields.ok_or_else(|| format!("it does not say what of {} it hashes", flows.name()))?.ports;
    }
    let [tcp4, udp4, tcp6, udp6] = counts;
    Ok(Spreading { key, ports: Ports { tcp4, udp4, tcp6, udp6 }, table: rss.table })
}

/// Whether a group can be of one entry, and an entry of one thread.
fn check(spreading: Spreading, groups: usize, threads: usize) -> Result<Spreading, String> {
    let entries = spreading.table.len();
    if !entries.is_power_of_two() || entries > groups {
        return Err(format!("its table has {entries} entries, which {groups} flow groups do not divide"));
    }
    match spreading.table.iter().find(|queue| **queue as usize >= threads) {
        Some(queue) => Err(format!("its table names queue {queue}, which is not served")),
        None => Ok(spreading),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_must_fit_the_groups_and_the_threads() {
        let spreading = |table: Vec<u32>| Spreading { key: Key::MICROSOFT, ports: Ports::ALL, table };
        let entries: Vec<u32> = (0..128).map(|entry| entry % 2).collect();
        assert!(check(spreading(entries.clone()), 4096, 2).is_ok());
        assert!(check(spreading(entries.clone()), 128, 2).is_ok());
        assert!(check(spreading(entries.clone()), 64, 2).is_err_and(|why| why.contains("128 entries")));
        assert!(check(spreading(entries[..100].to_vec()), 4096, 2).is_err_and(|why| why.contains("100 entries")));
        assert!(check(spreading(entries), 4096, 1).is_err_and(|why| why.contains("queue 1")));
        assert_eq!(supposed(Key::MICROSOFT, 3).table[..5], [0, 1, 2, 0, 1]);
    }

    #[test]
    fn a_device_without_a_hash_says_so() {
        assert!(read(&Nic::of("lo")).is_err_and(|why| why.contains("does not say")));
    }
}

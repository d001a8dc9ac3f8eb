//! Which thread of an interface owns which flows.
//!
//! Where the NIC says how it spreads flows over its queues, groups are buckets of the NIC's own hash, and each belongs to the
//! thread at whose queue its packets arrive: nothing crosses between threads until a group moves. Where it does not, a
//! group's packets may arrive at any queue, and all but one thread's have to be handed over. That is done for TCP, whose
//! connections live with one thread: a device may even deliver one connection's packets to one queue and later to another, as veth
//! does, where each belongs to the sender's socket and changes after a timeout. Datagrams stay where they arrive, unless
//! handing over is asked for.
//!
//! Where the NIC's table is kept (`nic_table`), it follows the groups: then a group is an entry of it, however many were asked for.

use crate::config::Settings;
use crate::nic_table::Keeper;
use crate::secrets::random;
use crate::words::{Balance, Threads};
use base::balance::Policy;
use dataplane::{Owners, Sharing, Steering};
use port_xdp::nic::{Flows, HashFunction, Nic};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use wire::flow::{Groups, MOST_GROUPS, Ports};
use wire::toeplitz::Key;

/// Entries of the table that is supposed where only the key is known.
const SUPPOSED_ENTRIES: usize = 128;

/// How a NIC spreads flows.
pub(super) struct Spreading {
    pub(super) key: Key,
    pub(super) ports: Ports,
    /// the queue of each entry
    pub(super) table: Vec<u32>,
}

/// How the threads of an interface share its flows.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// None: each serves what its queue receives
    pub(crate) sharing: Option<Sharing>,
    /// who writes the NIC's table
    pub(crate) writer: Option<Writer>,
    /// in a word, for the log
    pub(crate) said: Option<String>,
}

/// How the threads of `interface` share its flows, whose table `keeper` keeps, if anybody does. The first `queues` have one each;
/// with `tcp` some flows are connections.
///
/// # Errors
/// The kernel's, when it has no randomness, descriptor or thread to give.
pub(crate) fn sharing(
    settings: &Settings,
    interface: &str,
    threads: Range<usize>,
    queues: usize,
    tcp: bool,
    keeper: Option<Keeper>,
) -> io::Result<Shared> {
    let guests = threads.len() - queues;
    if threads.len() < 2 || settings.balance == Some(Balance::Off) {
        return Ok(Shared::default());
    }
    // a thread without a queue has only what others hand over, and so has one that takes another's place
    let asked = settings.balance == Some(Balance::On) || guests > 0 || settings.threads == Threads::Elastic;
    let spreading = match &settings.rss_key {
        Some(key) => Ok(supposed(key.0, keeper.as_ref(), queues)),
        None => read(&Nic::of(interface)),
    };
    let groups = keeper.as_ref().map_or(settings.flow_groups, |keeper| keeper.found().len());
    let checked = spreading.and_then(|spreading| check(spreading, groups, queues));
    let (owners, writer, said) = match checked {
        Ok(Spreading { key, ports, table }) => {
            let owner = |group: u16| {
                let (entry, round) = (usize::from(group) % table.len(), usize::from(group) / table.len());
                owner_of(table[entry] as usize, round, queues, guests)
            };
            let owners = Owners::new(Groups::toeplitz(groups, &key, ports), threads.len(), owner);
            let said = format!(
                "{interface}: {groups} flow groups by the NIC's hash, each with the thread of its queue{}",
                with_guests(guests)
            );
            match keeper {
                Some(keeper) => {
                    let coalescing = Nic::of(interface).coalescing().ok().flatten();
                    let held_us = coalescing.map_or(0, |coalescing| coalescing.rx_us);
                    let held = Duration::from_micros(held_us.into());
                    let writer = Writer::start(keeper, &table, threads.clone(), held)?;
                    (owners, Some(writer), format!("{said}; its table follows them"))
                }
                None => (owners, None, said),
            }
        }
        Err(why) if asked || tcp => {
            let groups = settings.flow_groups;
            let count = threads.len() as u16;
            // not TCP's: who learned something of this hash, which is a weak one, would have learned it of that
            let secret = [u64::from_ne_bytes(random()?), u64::from_ne_bytes(random()?)];
            let owners = Owners::new(Groups::keyed(groups, secret), threads.len(), |group| group % count);
            let (owners, what) = if asked { (owners, "") } else { (owners.for_tcp(), " of TCP") };
            let guests = with_guests(guests);
            let said = format!(
                "{interface}: {groups} flow groups{what} by our own hash, handed over between threads{guests} ({why})"
            );
            (owners, None, said)
        }
        Err(why) => {
            let said = format!("{interface}: flows stay with the thread of the queue where they arrive ({why})");
            return Ok(Shared { said: Some(said), ..Shared::default() });
        }
    };
    let balance = (settings.balance != Some(Balance::Steal)).then(Policy::default);
    let steering = writer.as_ref().map(|writer| writer.steering.clone());
    let sharing = Sharing { first: threads.start, owners: Arc::new(owners), balance, steering };
    Ok(Shared { sharing: Some(sharing), writer, said: Some(said) })
}

/// Which thread gets a group of a queue: in turn its own and those without a queue that send through it.
fn owner_of(queue: usize, round: usize, queues: usize, guests: usize) -> u16 {
    let lodgers = (guests + queues - 1 - queue) / queues;
    match round % (1 + lodgers) {
        0 => queue as u16,
        nth => (queue + nth * queues) as u16,
    }
}

fn with_guests(guests: usize) -> String {
    match guests {
        0 => String::new(),
        1 => ", of which one has no queue".into(),
        guests => format!(", of which {guests} have no queue"),
    }
}

/// The thread that writes a NIC's table. When it is dropped the table is put back.
#[derive(Debug)]
pub(crate) struct Writer {
    steering: Arc<Steering>,
    join: Option<JoinHandle<()>>,
}

impl Writer {
    /// For a device that holds frames back for so long.
    fn start(mut keeper: Keeper, table: &[u32], threads: Range<usize>, held: Duration) -> io::Result<Writer> {
        let table: Vec<u16> = table.iter().map(|queue| *queue as u16).collect();
        let steering = Arc::new(Steering::new(&table, threads)?.with_coalescing(held));
        let served = steering.clone();
        let join = std::thread::Builder::new().name("nic-table".into()).spawn(move || served.serve(&mut keeper))?;
        Ok(Writer { steering, join: Some(join) })
    }

    /// What it counts.
    pub(crate) fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.steering.stop();
        if let Some(join) = self.join.take() {
            // a panic there was shown by the panic hook
            let _ = join.join();
        }
    }
}

/// A NIC that is known by its key, and by its table where that is kept; else as drivers start: it deals entries out in turn. Ports count.
pub(super) fn supposed(key: Key, keeper: Option<&Keeper>, queues: usize) -> Spreading {
    let in_turn = || (0..SUPPOSED_ENTRIES).map(|entry| (entry % queues) as u32).collect();
    let table = keeper.map_or_else(in_turn, |keeper| keeper.found().to_vec());
    Spreading { key, ports: Ports::ALL, table }
}

/// What the device says, or why that is not enough.
pub(super) fn read(nic: &Nic) -> Result<Spreading, String> {
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
pub(super) fn check(spreading: Spreading, groups: usize, threads: usize) -> Result<Spreading, String> {
    let entries = spreading.table.len();
    if !entries.is_power_of_two() || entries > groups.min(MOST_GROUPS) {
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
        assert!(check(spreading(vec![0; 1 << 17]), 1 << 17, 2).is_err());
        assert!(check(spreading(entries[..100].to_vec()), 4096, 2).is_err_and(|why| why.contains("100 entries")));
        assert!(check(spreading(entries), 4096, 1).is_err_and(|why| why.contains("queue 1")));
        assert_eq!(supposed(Key::MICROSOFT, None, 3).table[..5], [0, 1, 2, 0, 1]);
    }

    #[test]
    fn groups_of_a_queue_are_dealt_out_to_its_thread_and_its_guests() {
        let owners =
            |queue, queues, guests| (0..6).map(|round| owner_of(queue, round, queues, guests)).collect::<Vec<_>>();
        assert_eq!(owners(1, 2, 0), [1; 6]);
        assert_eq!(owners(0, 1, 2), [0, 1, 2, 0, 1, 2]);
        // as `port::guest::house` has it: threads 3, 4, 5, 6 send through queues 0, 1, 2, 0
        assert_eq!(owners(0, 3, 4), [0, 3, 6, 0, 3, 6]);
        assert_eq!([owners(1, 3, 4), owners(2, 3, 4)], [[1, 4, 1, 4, 1, 4], [2, 5, 2, 5, 2, 5]]);
    }

    #[test]
    fn a_device_without_a_hash_says_so() {
        assert!(read(&Nic::of("lo")).is_err_and(|why| why.contains("does not say")));
    }
}

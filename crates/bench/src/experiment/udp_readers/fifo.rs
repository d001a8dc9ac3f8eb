//! Readers of a pipe: the plain FIFO.

use super::{BYTES, Figures, Options, Readers, Spent};
use crate::procs;
use anyhow::{Context as _, Result, ensure};
use rustix::pipe::fcntl_setpipe_size;
use std::fs;
use std::io::{Read as _, Write as _};
use std::time::Instant;

const PAGE_BYTES: usize = 4096;

/// A pipe with all records in it, and threads that read record by record.
pub(super) fn drain(options: &Options, readers: Readers) -> Result<Figures> {
    let (reader, mut writer) = std::io::pipe().context("a pipe")?;
    let room = pipe_room(&writer, options.datagrams as usize * BYTES)?;
    // a page is filled by whole writes
    let all = (room / PAGE_BYTES * (PAGE_BYTES / BYTES)).min(options.datagrams as usize);
    for _ in 0..all {
        writer.write_all(&[b'x'; BYTES]).context("filling the pipe")?;
    }
    drop(writer);
    let begun = Instant::now();
    let spent = std::thread::scope(|scope| {
        let work = |cpu: usize| {
            let mut reader = &reader;
            move || -> Result<(u64, Spent)> {
                // a reader that runs somewhere else is slower, not wrong
                let _ = procs::pin(cpu);
                let mut count = 0;
                while reader.read(&mut [0; BYTES]).context("the pipe")? > 0 {
                    count += 1;
                }
                let mut spent = Spent::default();
                let text = |name: &str| fs::read_to_string(format!("/proc/thread-self/{name}")).unwrap_or_default();
                spent.add(&text("schedstat"), &text("status"));
                Ok((count, spent))
            }
        };
        let threads: Vec<_> = readers.cpus().into_iter().map(|cpu| scope.spawn(work(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a reader of the pipe")).collect::<Result<Vec<_>>>()
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let sum = |of: fn(&Spent) -> u64| spent.iter().map(|(_, spent)| of(spent)).sum();
    let received = spent.iter().map(|(count, _)| count).sum();
    ensure!(received == all as u64, "{received} of {all} records came out of the pipe");
    Ok(Figures {
        received,
        sent: all as u64,
        seconds,
        busy_s: spent.iter().map(|(_, spent)| spent.busy_s).sum(),
        empty: 0,
        slept: sum(|spent| spent.slept),
        put_off: sum(|spent| spent.put_off),
    })
}

/// Makes a pipe hold `bytes` and a part of a page for each, or as much as one may that has not CAP_SYS_RESOURCE.
fn pipe_room(writer: &std::io::PipeWriter, bytes: usize) -> Result<usize> {
    let wanted = (bytes + bytes / 64 + PAGE_BYTES).next_power_of_two();
    if fcntl_setpipe_size(writer, wanted).is_ok() {
        return Ok(wanted);
    }
    let most = fs::read_to_string("/proc/sys/fs/pipe-max-size").ok().and_then(|text| text.trim().parse().ok());
    let most = most.unwrap_or(64 << 10).min(wanted);
    fcntl_setpipe_size(writer, most).with_context(|| format!("a pipe of {most} bytes"))?;
    Ok(most)
}

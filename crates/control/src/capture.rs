//! `ctl capture`: the frames that pass through AF_XDP, to a client of the control socket.

use crate::ctl::server::failed;
use crate::launch::Running;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Sends what passes until `count` frames, `limit` or the client's end.
///
/// # Errors
/// The client's connection.
pub(crate) fn run(
    _running: &Running,
    _filter: &str,
    _count: u64,
    _limit: Duration,
    mut client: UnixStream,
) -> io::Result<()> {
    let answer = failed("this server runs on kernel sockets: capture with tcpdump");
    client.write_all(format!("{answer}\n").as_bytes())
}

//! Captures at a host's interface, judged afterwards by tshark with its checksum checks switched on.
//!
//! The frames that one host sent are judged, the server's unless [`Capture::of_client`] is asked for; a kernel sender leaves its own checksums to the device where offloads
//! are on, and on a virtual wire nobody fills them in, so [`crate::Options::offloads`] off is needed to judge a kernel server.

use crate::{
    Host, Lab,
    process::output,
    raw::{MARK_ETHERTYPE, Outlet, Sniffer},
};
use anyhow::{Context as _, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    process::Command,
    sync::OnceLock,
};

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    sniffer: Sniffer,
    /// at the same interface
    outlet: Outlet,
    /// the hardware address of the host whose frames are judged
    judged: [u8; 6],
}

/// What tshark found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// All frames captured.
    pub frames: usize,
    /// The frames from the host that is judged, the server's unless told otherwise, by protocol as tshark names it.
    pub from_server: BTreeMap<String, usize>,
    /// One line a frame from it that is malformed or has a bad or missing checksum.
    pub problems: Vec<String>,
    /// What it sent again, where that was asked for by [`Capture::finish_counting`].
    pub sent_again: Vec<String>,
}

const CHECKS: [&str; 6] =
    ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"];

/// What must not be: malformed packets, checksums that are wrong, a UDP checksum of zero, errors of any dissector.
///
/// A TCP checksum of 0xffff is passed over: it verifies as 0 does (RFC 1624 section 3), and the kernel, whose TCP it is,
/// writes it for 0 where it computes checksums itself; tshark calls it wrong.
const PROBLEMS: &str = "_ws.malformed || ip.checksum.status == 0 || udp.checksum.status == 0 || udp.checksum == 0 \
    || icmp.checksum.status == 0 || icmpv6.checksum.status == 0 \
    || ((tcp.checksum.status == 0 || _ws.expert.severity == \"Error\") && !(tcp.checksum == 0xffff))";

/// What was lost or came too late for the sender's patience. tshark sees the sender's end: what arrives in another order than it was
/// sent is for the receiver to tell.
const SENT_AGAIN: &str =
    "tcp.analysis.retransmission || tcp.analysis.fast_retransmission || tcp.analysis.spurious_retransmission";

/// What is shown of a frame with a problem: what it is, and what is wrong with it.
const SHOWN: [&str; 16] = [
    "-T",
    "fields",
    "-e",
    "frame.number",
    "-e",
    "_ws.col.Protocol",
    "-e",
    "_ws.col.Info",
    "-e",
    "_ws.expert.message",
    "-e",
    "ip.checksum.status",
    "-e",
    "udp.checksum.status",
    "-e",
    "tcp.checksum.status",
];

/// Ports that Linux gives to clients (net.ipv4.ip_local_port_range).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

impl Capture {
    /// Starts a capture at the client's end of the wire: at the server's, AF_XDP hides its packets from captures.
    pub fn start(lab: &Lab) -> Result<Self> {
        Self::at(lab.client(), lab.server())
    }

    /// The same at the server's end, to judge the frames of the client's host.
    pub fn of_client(lab: &Lab) -> Result<Self> {
        Self::at(lab.server(), lab.client())
    }

    fn at(host: &Host, judged: &Host) -> Result<Self> {
        // MiB that the kernel keeps for it while it does not run
        let sniffer = Sniffer::start(host, &["-B", "64"])?;
        Ok(Self { sniffer, outlet: Outlet::of(host), judged: judged.mac()? })
    }

    /// Ends the capture once the wire is quiet and judges it.
    pub fn finish(mut self) -> Result<Findings> {
        self.judge(&[]).map(|(findings, _)| findings)
    }

    /// The same of TCP alone, whatever it carries, and lists what the host sent again. (Behind a segment that a busy machine's capture
    /// has missed tshark takes bodies for heads, and guesses at what else they may be.)
    pub fn finish_counting(mut self) -> Result<Findings> {
        let guesses = guesses()?;
        let heads = ["http"].into_iter().chain(guesses.iter().map(String::as_str));
        let heads: Vec<&str> = heads.flat_map(|name| ["--disable-protocol", name]).collect();
        let (mut findings, file) = self.judge(&heads)?;
        let mac = self.judged.map(|octet| format!("{octet:02x}")).join(":");
        let again = tshark(&file, &format!("eth.src == {mac} && ({SENT_AGAIN})"), &SHOWN)?;
        findings.sent_again = again.lines().map(str::to_owned).collect();
        Ok(findings)
    }

    fn judge(&mut self, more: &[&str]) -> Result<(Findings, String)> {
        let mac = self.judged.map(|octet| format!("{octet:02x}")).join(":");
        let file = self.sniffer.finish(&self.outlet)?.to_str().context("a temporary path in UTF-8")?.to_owned();
        let but_marks = format!("!(eth.type == {MARK_ETHERTYPE})");
        let all = tshark(&file, &but_marks, &["-T", "fields", "-e", "eth.src", "-e", "_ws.col.Protocol"])?;
        let problems = tshark(&file, &format!("eth.src == {mac} && ({PROBLEMS})"), &[&SHOWN[..], more].concat())?;
        let mut findings = Findings {
            frames: all.lines().count(),
            problems: problems.lines().map(str::to_owned).collect(),
            ..Findings::default()
        };
        for protocol in all.lines().filter_map(|line| line.strip_prefix(&mac)) {
            *findings.from_server.entry(protocol.trim().to_owned()).or_default() += 1;
        }
        Ok((findings, file))
    }
}

impl Findings {
    /// Panics unless the host sent something and nothing is wrong with it.
    pub fn check(&self) {
        assert!(self.problems.is_empty() && !self.from_server.is_empty(), "{self}");
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} frames; from the host that is judged: {:?}; {} with problems",
            self.frames,
            self.from_server,
            self.problems.len()
        )?;
        self.problems.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

fn tshark(file: &str, filter: &str, more: &[&str]) -> Result<String> {
    let elsewhere = strangers()?.iter().flat_map(|name| ["--disable-protocol", name]);
    output(Command::new("tshark").args(["-n", "-r", file, "-Y", filter]).args(CHECKS).args(elsewhere).args(more))
}

/// Protocols that tshark expects at ports which the kernel gives to clients: whatever came from one would be taken for one of these, and
/// be malformed.
fn strangers() -> Result<&'static [String]> {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    if let Some(names) = NAMES.get() {
        return Ok(names);
    }
    let decodes = output(Command::new("tshark").args(["-G", "decodes"]))?;
    Ok(NAMES.get_or_init(|| strangers_of(&decodes)))
}

/// Lines are: table, port, protocol.
fn strangers_of(decodes: &str) -> Vec<String> {
    let stranger = |line: &str| {
        let mut words = line.split('\t');
        let is_port = matches!(words.next()?, "udp.port" | "tcp.port");
        let port: u16 = words.next()?.parse().ok()?;
        let name = words.next()?;
        (is_port && EPHEMERAL.contains(&port)).then(|| name.to_owned())
    };
    let names: BTreeSet<String> = decodes.lines().filter_map(stranger).collect();
    names.into_iter().collect()
}

/// Protocols that tshark takes what TCP carries for by its looks, where no port tells.
fn guesses() -> Result<Vec<String>> {
    Ok(guesses_of(&output(Command::new("tshark").args(["-G", "heuristic-decodes"]))?))
}

/// Lines are: what carries it, protocol, whether it is guessed at.
fn guesses_of(decodes: &str) -> Vec<String> {
    let over_tcp = |line: &str| Some(line.strip_prefix("tcp\t")?.split('\t').next()?.to_owned());
    decodes.lines().filter_map(over_tcp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tshark_expects_at_clients_ports_is_known() {
        let decodes = "udp.port\t53\tdns\nudp.port\t47000\thcrt\ntcp.port\t54328\telasticsearch\nsctp.port\t40000\tx\n\
                       udp.port\t47000\thcrt\nip.proto\t40000\ty\nudp.port\tno\tz\nudp.port\n";
        assert_eq!(strangers_of(decodes), ["elasticsearch", "hcrt"]);
        assert!(strangers().unwrap().iter().any(|name| name == "hcrt"));
    }

    #[test]
    fn what_tshark_guesses_at_over_tcp_is_known() {
        assert_eq!(guesses_of("udp\trtp\tF\ntcp\tthrift\tT\ntcp\ttls\tT\ntcpx\ty\tT\ntcp\n"), ["thrift", "tls"]);
        assert!(guesses().unwrap().iter().any(|name| name == "thrift"));
    }
}

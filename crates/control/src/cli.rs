//! The command line.

use crate::config::{AppOptions, ControlOptions, DataplaneOptions, DnsOptions, EchoOptions, KvOptions, WebOptions};
use crate::error::Error;
use crate::nic_table::KeepCommand;
use crate::ping::Options as PingOptions;
use crate::run::{EchoApp, EnterCommand, KvApp};
use crate::top::Options as TopOptions;
use crate::tune::{Flow, Service};
use crate::words::{Cpus, Within, ZoneArg};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::path::PathBuf;

/// DNS, static web content, a key-value store and echo served from a network stack of its own, over AF_XDP or kernel sockets.
#[derive(Debug, Parser)]
#[command(name = "simoom", disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    /// what to do
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one value in the life of the process")]
pub enum Command {
    /// Authoritative DNS
    Dns(DnsCommand),
    /// Static web content
    Web(WebCommand),
    /// A key-value store that speaks memcached's text protocol
    Kv(KvCommand),
    /// UDP echo (RFC 862): what comes goes back
    Echo(EchoCommand),
    /// Run a program that speaks the application API in an unprivileged process, and serve it
    Run(RunCommand),
    /// Measure round trips to an echo server
    Ping(PingOptions),
    /// Serve what a configuration file says
    Serve {
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Say what would be refused and the memory needed; serves nothing
    Check {
        /// Check a configuration file, its zones and its content
        #[arg(long, value_name = "FILE", conflicts_with = "what", required_unless_present = "what")]
        config: Option<PathBuf>,
        /// Check zone files: ORIGIN=FILE, or FILE with its own $ORIGIN; and directories of web content
        #[arg(value_name = "ZONEFILE|DIR")]
        what: Vec<ZoneArg>,
    },
    /// Say what a network interface and the host are set to, what it means here, and what to run
    Tune(TuneCommand),
    /// Keep the table by which a NIC spreads flows; started by a server
    #[command(hide = true)]
    KeepTable(KeepCommand),
    /// Keep an application's process; started by a server
    #[command(hide = true)]
    KeepApp(EnterCommand),
    /// Become an application's process; started by its keeper
    #[command(hide = true)]
    EnterApp(EnterCommand),
    /// The key-value store as an application
    #[command(hide = true)]
    KvApp(KvApp),
    /// Echo as an application
    #[command(hide = true)]
    EchoApp(EchoApp),
    /// Talk to a running server
    Ctl {
        /// The server's control socket; default: /run/simoom/control, else $XDG_RUNTIME_DIR/simoom/control
        #[arg(long, value_name = "PATH", global = true)]
        control: Option<PathBuf>,
        /// what to ask for
        #[command(subcommand)]
        command: CtlCommand,
    },
    /// Watch a running server: threads, services, connections and drops, with rates
    Top(TopOptions),
}

/// `simoom dns`.
#[derive(Debug, clap::Args)]
pub struct DnsCommand {
    /// Zones to serve: ORIGIN=FILE, or FILE with its own $ORIGIN
    #[arg(value_name = "ORIGIN=FILE", required = true)]
    pub zones: Vec<ZoneArg>,
    /// packets
    #[command(flatten, next_help_heading = "Packets")]
    pub dataplane: DataplaneOptions,
    /// DNS
    #[command(flatten, next_help_heading = "DNS")]
    pub dns: DnsOptions,
    /// supervision
    #[command(flatten, next_help_heading = "Supervision")]
    pub control: ControlOptions,
}

/// `simoom web`.
#[derive(Debug, clap::Args)]
pub struct WebCommand {
    /// The directory to serve
    #[arg(value_name = "DIR")]
    pub root: String,
    /// packets
    #[command(flatten, next_help_heading = "Packets")]
    pub dataplane: DataplaneOptions,
    /// web
    #[command(flatten, next_help_heading = "Web")]
    pub web: WebOptions,
    /// supervision
    #[command(flatten, next_help_heading = "Supervision")]
    pub control: ControlOptions,
}

/// `simoom tune`.
#[derive(Debug, clap::Args)]
pub struct TuneCommand {
    /// The interface
    #[arg(value_name = "IF")]
    pub interface: String,
    /// Run what is said to be run, and write how to undo it to a file
    #[arg(long, conflicts_with = "json")]
    pub apply: bool,
    /// Undo what --apply did, by the file that it named
    #[arg(long, value_name = "FILE", conflicts_with_all = ["apply", "json"])]
    pub undo: Option<PathBuf>,
    /// Where --apply writes how to undo it; default: /run/simoom-tune-IF.undo
    #[arg(long, value_name = "FILE", requires = "apply")]
    pub undo_file: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// The processors that simoom's threads will run on; default: every one
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<Cpus>,
    /// Lead a flow to a queue by a rule in the device: PROTO[,src=ADDR][,dst=ADDR][,sport=PORT][,dport=PORT],queue=N
    #[arg(long, value_name = "FLOW")]
    pub pin_flow: Vec<Flow>,
    /// Drop a flow in the device: PROTO[,src=ADDR][,dst=ADDR][,sport=PORT][,dport=PORT]
    #[arg(long, value_name = "FLOW")]
    pub drop_flow: Vec<Flow>,
    /// Keep a queue for the services that --for names
    #[arg(long, value_name = "N", requires = "reserved_for")]
    pub reserve_queue: Option<u32>,
    /// What the reserved queue is for, such as tcp:22,tcp:179
    #[arg(long = "for", value_name = "PROTO:PORT", value_delimiter = ',', requires = "reserve_queue")]
    pub reserved_for: Vec<Service>,
}

/// `simoom kv`.
#[derive(Debug, clap::Args)]
pub struct KvCommand {
    /// packets
    #[command(flatten, next_help_heading = "Packets")]
    pub dataplane: DataplaneOptions,
    /// the store
    #[command(flatten, next_help_heading = "Key-value store")]
    pub kv: KvOptions,
    /// supervision
    #[command(flatten, next_help_heading = "Supervision")]
    pub control: ControlOptions,
}

/// `simoom echo`.
#[derive(Debug, clap::Args)]
pub struct EchoCommand {
    /// packets
    #[command(flatten, next_help_heading = "Packets")]
    pub dataplane: DataplaneOptions,
    /// echo
    #[command(flatten, next_help_heading = "Echo")]
    pub echo: EchoOptions,
    /// supervision
    #[command(flatten, next_help_heading = "Supervision")]
    pub control: ControlOptions,
}

/// `simoom run`.
#[derive(Debug, clap::Args)]
pub struct RunCommand {
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    pub program: Vec<String>,
    /// packets
    #[command(flatten, next_help_heading = "Packets")]
    pub dataplane: DataplaneOptions,
    /// the application
    #[command(flatten, next_help_heading = "Application")]
    pub app: AppOptions,
    /// supervision
    #[command(flatten, next_help_heading = "Supervision")]
    pub control: ControlOptions,
}

/// Whether an argument of `simoom check` is a directory of web content.
pub(crate) fn is_directory(arg: &ZoneArg) -> bool {
    arg.origin.is_none() && std::path::Path::new(&arg.file).is_dir()
}

/// `simoom ctl`.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// What runs, since when, on what
    Status,
    /// The counters, summed over all threads
    Stats {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// The TCP connections of our own stack, as `ss -ti` shows the kernel's
    Connections {
        /// Show at most so many
        #[arg(long, value_name = "N", default_value = "1000")]
        most: Within<1, 10_000_000>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Write what passes through AF_XDP to a pcap file
    Capture {
        /// The file to write
        file: PathBuf,
        /// What to write, such as "udp and port 53"; empty for everything
        #[arg(default_value = "")]
        filter: String,
        /// Stop after so many frames
        #[arg(long, value_name = "N")]
        count: Option<Within<1, { u32::MAX }>>,
        /// Stop after so many seconds
        #[arg(long, value_name = "S", default_value = "60")]
        seconds: Within<1, 86_400>,
    },
    /// Have one thread of an AF_XDP interface take flow groups over from another, with their connections
    MoveGroups {
        /// The thread that has them
        from: Within<0, 4095>,
        /// The thread that shall
        to: Within<0, 4095>,
        /// At most so many; default: all
        #[arg(long, value_name = "N")]
        count: Option<Within<1, 65_536>>,
    },
    /// Have so many threads of an AF_XDP interface serve, from the first on; the others give away what they have, and sleep
    Threads {
        /// How many
        count: Within<1, 256>,
    },
    /// Read the zone files and the content again, and which zones and hosts the configuration file names; other settings need a restart
    Reload,
    /// Stop the server
    Stop,
}

/// Reads the command line of a program of this version. Ok(Err(text)) is help or the version, to be shown as it is.
///
/// # Errors
/// One line: what is wrong and where help is.
pub fn parse(
    version: &'static str,
    args: impl IntoIterator<Item = std::ffi::OsString>,
) -> Result<Result<Cli, String>, Error> {
    use clap::error::ErrorKind;
    let read = Cli::command().version(version).try_get_matches_from(args);
    match read.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => Ok(Ok(cli)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Err(error.to_string())),
            _ => Err(Error::input(one_line(&error.to_string()))),
        },
    }
}

/// clap's paragraph as one line: the complaint, its details and tips, without the usage.
fn one_line(text: &str) -> String {
    let mut parts = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        parts.push(line.trim_start_matches("error: ").to_owned());
    }
    format!("{}; see --help", parts.join(" ").trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(args: &str) -> String {
        match parse("1", args.split(' ').map(Into::into)) {
            Err(error) => error.to_string(),
            other => panic!("{args}: {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_wrong_is_one_line() {
        for (args, line) in [
            (
                "simoom dns --listen 1.2.3.4 x",
                "invalid value '1.2.3.4' for '--listen <ADDR:PORT>': `1.2.3.4` is not ADDR:PORT; write it as \
                 192.0.2.1:53 or [2001:db8::1]:53; see --help",
            ),
            (
                "simoom dns --lisen 1.2.3.4:53 x",
                "unexpected argument '--lisen' found tip: a similar argument exists: '--listen'; see --help",
            ),
            ("simoom dns", "the following required arguments were not provided: <ORIGIN=FILE>; see --help"),
            ("simoom web", "the following required arguments were not provided: <DIR>; see --help"),
            ("simoom wep", "unrecognized subcommand 'wep' tip: a similar subcommand exists: 'web'; see --help"),
            (
                "simoom dns --batch 65 x",
                "invalid value '65' for '--batch <N>': `65` is not a whole number from 1 to 64; see --help",
            ),
            (
                "simoom dns --accept per-cpu x",
                "invalid value 'per-cpu' for '--accept <WORD>': `per-cpu` is none of shared, per-core, affinity; see --help",
            ),
            (
                "simoom dns --receive one x",
                "invalid value 'one' for '--receive <WORD>': `one` is none of shared, per-core, affinity; see --help",
            ),
            (
                "simoom web --balance yes x",
                "invalid value 'yes' for '--balance <WORD>': `yes` is none of on, steal, off; see --help",
            ),
            (
                "simoom web --flow-groups 0 x",
                "invalid value '0' for '--flow-groups <N>': `0` is not a whole number from 1 to 65536; see --help",
            ),
            (
                "simoom dns --rss-key 6d:5 x",
                "invalid value '6d:5' for '--rss-key <KEY>': `6d:5` is not a key; write its bytes in hexadecimal with \
                 colons, as `ethtool -x` shows them; see --help",
            ),
            (
                "simoom dns --rss-key 6d:5a x",
                "invalid value '6d:5a' for '--rss-key <KEY>': an RSS key has 40 to 52 bytes, not 2; see --help",
            ),
            (
                "simoom check --config a b",
                "the argument '--config <FILE>' cannot be used with '[ZONEFILE|DIR]...'; see --help",
            ),
        ] {
            assert_eq!(refused(args), line, "{args}");
        }
    }

    #[test]
    fn options_may_stand_anywhere() {
        let cli = parse(
            "1",
            "simoom dns a=b --interface e0 --listen 192.0.2.1:53 --interface e1 c".split(' ').map(Into::into),
        );
        let Ok(Ok(Cli { command: Command::Dns(dns) })) = cli else { panic!("{cli:?}") };
        assert_eq!(dns.zones.len(), 2);
        assert_eq!(dns.dataplane.interface, ["e0", "e1"]);
    }
}

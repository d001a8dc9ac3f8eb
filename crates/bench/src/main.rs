//! `simoom-bench`: load generators, yardsticks and the papers' experiments.
//!
//! Every tool is bounded in time and tells its figures as text, and as JSON or files where others read them. What is wrong with a
//! command line, a file or the machine is one line on standard error.

#![forbid(unsafe_code)]

mod bursts;
mod commands;
mod experiment;
mod flood;
mod found;
mod grid;
mod http;
mod interface;
mod link;
mod load;
mod memcache;
mod messages;
mod page;
mod pages;
mod pauses;
mod pipe;
mod pipe_dns;
mod pipe_http;
mod pipe_kv;
mod pipe_scale;
mod pipe_tcp;
mod procs;
mod queries;
mod reflect;
mod report;
mod stats;
mod xdp;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Of the program, with the commit that it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("SIMOOM_COMMIT"), ")");

/// Load generators, yardsticks and the papers' experiments.
#[derive(Debug, Parser)]
#[command(name = "simoom-bench", version = VERSION, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The yardstick: send every frame back with its addresses swapped
    Reflect(commands::reflect::Options),
    /// Ask a reflector that answers by several frames: the bound of a server of files
    Bursts(commands::bursts::Options),
    /// A lossy, slow path: join two interfaces
    Wire(commands::wire::Options),
    /// A DNS load through AF_XDP: rates, numbered questions, checked answers, latency
    Dns(commands::dns::Options),
    /// An HTTP load through AF_XDP: connections of our own stack, open or closed loop, checked bodies, latency
    Http(commands::http::Options),
    /// A memcached load through AF_XDP: the published mixes, Poisson arrivals, compared values, latency, the rate that a bound on it allows
    Kv(commands::kv::Options),
    /// A server of messages that go back as they came, over AF_XDP or kernel sockets
    Answer(commands::answer::Options),
    /// Messages that go to such a server and back: round trips, connections, goodput
    Messages(commands::messages::Options),
    /// Nanoseconds or instructions a query in our stack and service, with no kernel in it
    PipeDns(pipe_dns::Options),
    /// What TCP costs in our stack with no kernel in it: round trips, connections, downloads, idle connections
    PipeTcp(pipe_tcp::Options),
    /// Nanoseconds or instructions a request in our stack and web service, with no kernel in it
    PipeHttp(pipe_http::Options),
    /// Nanoseconds or instructions a GET in our stack and key-value service, with no kernel in it
    PipeKv(pipe_kv::Options),
    /// What a process of its own costs the key-value service and an echo, by batch, with no kernel in the packets' way
    Protection(pipe_kv::ProtectionOptions),
    /// The other process of `protection`
    #[command(hide = true)]
    ProtectionApp(pipe_kv::AppOptions),
    /// What another thread brings, with no kernel in it, and what becomes of an uneven load
    PipeScale(pipe_scale::Options),
    /// Write a synthetic zone
    Zone(commands::zone::Options),
    /// Servers back to back in the laboratory: medians of paired ratios
    Compare(experiment::CompareOptions),
    /// Web servers back to back by file size, and the bound of both
    CompareWeb(experiment::CompareWebOptions),
    /// The papers' figures and others: CSV, SVG and Markdown
    Experiment(experiment::ExperimentOptions),
    /// All reports as one page to look at
    Results(commands::results::Options),
    /// What an idle server costs, and how late its first answer is
    Idle(experiment::IdleOptions),
    /// A long load with a reload every second, every question accounted for
    Soak(experiment::SoakOptions),
    /// A long load on the web server with a reload every second, every octet compared
    SoakWeb(experiment::SoakWebOptions),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Reflect(options) => commands::reflect::run(&options),
        Command::Bursts(options) => commands::bursts::run(&options),
        Command::Wire(options) => commands::wire::run(&options),
        Command::Dns(options) => commands::dns::run(&options),
        Command::Http(options) => commands::http::run(&options),
        Command::Kv(options) => commands::kv::run(&options),
        Command::Answer(options) => commands::answer::run(&options),
        Command::Messages(options) => commands::messages::run(&options),
        Command::PipeDns(options) => pipe_dns::run(&options),
        Command::PipeTcp(options) => pipe_tcp::run(&options),
        Command::PipeHttp(options) => pipe_http::run(&options),
        Command::PipeKv(options) => pipe_kv::run(&options),
        Command::Protection(options) => pipe_kv::protection(&options),
        Command::ProtectionApp(options) => pipe_kv::app(&options),
        Command::PipeScale(options) => pipe_scale::run(&options),
        Command::Zone(options) => commands::zone::run(&options),
        Command::Compare(options) => experiment::compare(&options),
        Command::CompareWeb(options) => experiment::compare_web(&options),
        Command::Experiment(options) => experiment::experiment(&options),
        Command::Results(options) => commands::results::run(&options),
        Command::Idle(options) => experiment::idle(&options),
        Command::Soak(options) => experiment::soak(&options),
        Command::SoakWeb(options) => experiment::soak_web(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simoom-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_commands_that_results_are_made_by_are_taken() {
        use clap::Parser as _;
        let table = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/README.md");
        let text = std::fs::read_to_string(table).unwrap();
        let rows = text.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.split(" | ").nth(1));
        let quoted = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
        let commands: Vec<&str> = quoted.filter(|words| words.starts_with("simoom-bench ")).collect();
        assert!(commands.len() > 40, "{commands:?}");
        for command in commands {
            let read = super::Cli::try_parse_from(command.split(' '));
            assert!(read.is_ok(), "{command}: {}", read.unwrap_err());
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        super::Cli::command().debug_assert();
    }
}

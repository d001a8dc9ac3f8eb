//! Everything around the packets: the command line and the configuration file, loading and reloading zones and content,
//! starting the engines, the access log, privileges, signals, the control socket, metrics.
//!
//! Nothing here runs on the packet path; threads of this crate sleep until somebody wants something.

#![forbid(unsafe_code)]

mod access_log;
mod capture;
mod check;
mod child;
pub mod cli;
pub mod config;
pub mod ctl;
mod driver;
mod error;
mod http;
mod launch;
mod links;
mod logs;
mod memory;
mod metrics;
mod nic_table;
mod notify;
pub mod ping;
mod print;
mod privileges;
mod reload;
mod run;
mod sandbox;
mod secrets;
mod serve;
mod service;
mod signals;
mod sites;
mod supervise;
pub mod top;
pub mod tune;
mod wall;
pub mod watch;
mod words;
mod zones;

pub use error::Error;

use cli::{Cli, Command};
use std::io::Write;
use std::process::ExitCode;

/// The command `simoom`: reads the command line, does what it says, gives the exit status (0 done, 1 the environment does
/// not let it, 2 the caller's input is wrong). `version` is what it says that it is.
pub fn main(version: &'static str) -> ExitCode {
    child::take_name();
    base::heap::keep_little();
    base::Clock::find();
    let outcome = match cli::parse(version, std::env::args_os()) {
        Ok(Ok(cli)) => run(cli),
        Ok(Err(help)) => Ok(help),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(text) => {
            // a reader that went (`| head`) is no error
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let lines: String = error.lines().iter().map(|line| format!("simoom: {line}\n")).collect();
            let _ = std::io::stderr().write_all(lines.as_bytes());
            ExitCode::from(error.status())
        }
    }
}

/// Does a command; gives what is to be printed.
fn run(cli: Cli) -> Result<String, Error> {
    match cli.command {
        Command::Dns(dns) => {
            let settings = config::from_command_line(&dns.zones, &dns.dataplane, &dns.dns, &dns.control)?;
            logs::start();
            serve::run(&settings).map(|()| String::new())
        }
        Command::Web(web) => {
            let settings = config::from_web_command_line(&web.root, &web.dataplane, &web.web, &web.control)?;
            logs::start();
            serve::run(&settings).map(|()| String::new())
        }
        Command::Kv(kv) => {
            let settings = config::from_kv_command_line(&kv.dataplane, &kv.kv, &kv.control)?;
            logs::start();
            serve::run(&settings).map(|()| String::new())
        }
        Command::Echo(echo) => {
            let settings = config::from_echo_command_line(&echo.dataplane, &echo.echo, &echo.control)?;
            logs::start();
            serve::run(&settings).map(|()| String::new())
        }
        Command::Run(run) => {
            let settings = config::from_run_command_line(&run.program, &run.dataplane, &run.app, &run.control)?;
            logs::start();
            serve::run(&settings).map(|()| String::new())
        }
        Command::KeepApp(command) => run::keep(&command),
        Command::EnterApp(command) => run::enter(&command),
        Command::KvApp(options) => run::kv(&options),
        Command::EchoApp(options) => run::echo(&options),
        Command::Ping(options) => ping::run(&options),
        Command::Serve { config } => {
            let settings = config::from_file(&config)?;
            logs::start();
            serve::run(&settings).map(|()| String::new())
        }
        Command::Check { config: Some(config), .. } => {
            let settings = config::from_file(&config)?;
            launch::check(&settings)?;
            settings.dns.as_ref().map(secrets::publisher).transpose()?;
            let zones = settings.dns.map_or(Vec::new(), |dns| dns.zones);
            check::run(&zones, settings.web.as_ref())
        }
        Command::Check { config: None, what } => {
            let (directories, zones): (Vec<_>, Vec<_>) = what.into_iter().partition(cli::is_directory);
            let web = config::web_of_directories(directories.iter().map(|arg| arg.file.as_str()))?;
            check::run(&config::zone_specs(&zones), web.as_ref())
        }
        Command::KeepTable(command) => nic_table::keep(&command),
        Command::Tune(command) => tune::run(&command),
        Command::Ctl { control, command } => ctl::client::run(control.as_deref(), &command),
        Command::Top(options) => top::run(&options),
    }
}

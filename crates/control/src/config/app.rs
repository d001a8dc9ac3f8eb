//! Applications in processes of their own: `[[app]]`, `simoom run`, and services that are placed there.

use super::places::{Places, twice, word};
use crate::service::APPS_MOST;
use crate::words::{Listen, Peers, Placed, Placement, Size, Switch, Within};
use guard::Options;
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;

/// How `simoom run` runs its program.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AppOptions {
    /// Where the program runs: same (on the processor of the thread that serves it) or cpu=N; default: same
    #[arg(long, value_name = "PLACE")]
    pub place: Option<Placement>,
    /// Start the program again when it ends: on or off; default: on
    #[arg(long, value_name = "on|off")]
    pub restart: Option<Switch>,
    /// Most connections at once; default: 16384
    #[arg(long, value_name = "N")]
    pub connections: Option<Within<1, 1_000_000>>,
    /// Peers that the program may connect to, and send datagrams to unasked, such as 192.0.2.0/24:443 or [2001:db8::/32]:*; may be
    /// repeated; default: none
    #[arg(long, value_name = "ADDR/PREFIX:PORT")]
    pub connect: Vec<Peers>,
    /// Most memory that the program may map, its code and stacks included, at least 16M; 128M more for each thread that serves; default: 4G
    #[arg(long, value_name = "SIZE")]
    pub app_memory: Option<Placed<Size>>,
    /// Most threads that the program may have beside one for each thread that serves; default: 64
    #[arg(long, value_name = "N")]
    pub app_threads: Option<Within<0, THREADS_MOST>>,
    /// Milliseconds without taking an event after which the program is unresponsive: datagrams for it are dropped, and its connections wait;
    /// default: 10
    #[arg(long, value_name = "MS")]
    pub app_slow_after: Option<Placed<Within<1, SLOW_AFTER_MOST_MS>>>,
    /// Milliseconds without taking an event after which its connections are reset, and new ones refused; default: 1000
    #[arg(long, value_name = "MS")]
    pub app_reset_after: Option<Placed<Within<1, RESET_AFTER_MOST_MS>>>,
}

/// `[[app]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AppEntry {
    /// what it is called in metrics and messages; default: the program's file name
    pub name: Option<String>,
    /// the program and its arguments
    pub program: Vec<String>,
    /// where it listens, over TCP and UDP
    pub listen: Vec<Placed<Listen>>,
    /// same or cpu=N
    pub place: Option<Placed<Placement>>,
    /// the user that it runs as; default: app-user of [control]
    pub user: Option<String>,
    /// whether it is started again when it ends
    pub restart: Option<Switch>,
    /// most connections at once
    pub connections: Option<Within<1, 1_000_000>>,
    /// peers that it may connect to, and send datagrams to unasked
    #[serde(default)]
    pub connect: Vec<Peers>,
    /// its part of a processor that it has in common with other applications
    pub share: Option<Placed<Within<1, SHARE_MOST>>>,
    /// most memory that it may map, beside 128M for each thread that serves
    pub memory: Option<Placed<Size>>,
    /// most threads that it may have, beside one for each thread that serves
    pub threads: Option<Within<0, THREADS_MOST>>,
    /// milliseconds without taking an event after which it is unresponsive
    pub slow_after: Option<Placed<Within<1, SLOW_AFTER_MOST_MS>>>,
    /// and after which its connections are reset
    pub reset_after: Option<Placed<Within<1, RESET_AFTER_MOST_MS>>>,
}

/// An application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct App {
    /// what it is called
    pub name: String,
    /// the program and its arguments
    pub program: Vec<String>,
    /// where it listens
    pub listen: Vec<SocketAddr>,
    /// never inline
    pub place: Placement,
    /// the user that it runs as
    pub user: Option<String>,
    /// whether it is started again when it ends
    pub restart: bool,
    /// most connections, of those that come and those that it asks for
    pub connections: usize,
    /// peers that it may begin something with
    pub connect: Vec<Peers>,
    /// where applications have a processor in common, one with twice the share of another has twice the time, while both want it
    pub share: u32,
    /// what it may take of the machine
    pub bounds: Bounds,
    /// how long it may take nothing
    pub times: Times,
}

/// What an application may take of the machine, beside what it needs for each of the engines' threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// of address space: code, heap, stacks, what is reserved and never touched
    pub memory_bytes: u64,
    /// threads
    pub threads: u32,
}

impl Default for Bounds {
    fn default() -> Bounds {
        // of addresses, not of memory: allocators and other languages' runtimes reserve amply. When memory runs out before, an
        // application is what the kernel ends first.
        Bounds { memory_bytes: 4 << 30, threads: 64 }
    }
}

impl Bounds {
    fn settle(
        at: &str,
        memory: Option<&Placed<Size>>,
        threads: Option<Within<0, THREADS_MOST>>,
        errors: &mut Vec<String>,
    ) -> Bounds {
        if memory.is_some_and(|memory| memory.value.0 < MEMORY_LEAST_BYTES) {
            errors.push(format!("{at}: too little to load a program in; give at least 16M"));
        }
        let default = Bounds::default();
        Bounds {
            memory_bytes: memory.map_or(default.memory_bytes, |memory| memory.value.0),
            threads: threads.map_or(default.threads, |threads| threads.0),
        }
    }
}

/// How long an application may take none of its events while there are some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// then it is unresponsive: datagrams for it are dropped, and what comes of its connections waits
    pub slow_after: Duration,
    /// then its connections are reset, and new ones refused until it takes one
    pub reset_after: Duration,
}

impl Default for Times {
    fn default() -> Times {
        let Options { unresponsive: slow_after, patience: reset_after, .. } = Options::default();
        Times { slow_after, reset_after }
    }
}

impl Times {
    /// `at` is where the second stands, or the first where that is left out.
    fn settle(
        at: &str,
        slow_after: Option<&Placed<Within<1, SLOW_AFTER_MOST_MS>>>,
        reset_after: Option<&Placed<Within<1, RESET_AFTER_MOST_MS>>>,
        errors: &mut Vec<String>,
    ) -> Times {
        let (default, ms) = (Times::default(), |ms: u32| Duration::from_millis(ms.into()));
        let times = Times {
            slow_after: slow_after.map_or(default.slow_after, |placed| ms(placed.value.0)),
            reset_after: reset_after.map_or(default.reset_after, |placed| ms(placed.value.0)),
        };
        let [slow_ms, reset_ms] = [times.slow_after, times.reset_after].map(|time| time.as_millis());
        if reset_ms < slow_ms {
            errors.push(format!(
                "{at}: connections would be reset after {reset_ms} ms, before the program is unresponsive, after {slow_ms} ms; give them as long at least"
            ));
        }
        times
    }
}

const SLOW_AFTER_MOST_MS: u32 = 60_000;
const RESET_AFTER_MOST_MS: u32 = 3_600_000;
/// Less no program fits into with its libraries.
const MEMORY_LEAST_BYTES: u64 = 16 << 20;
const THREADS_MOST: u32 = 32_768;
const CONNECTIONS: usize = 16_384;
/// What the scheduler's weights span, about: 1.25^19.
const SHARE_MOST: u32 = 64;

/// What a program is called that has no name.
fn name_of(program: &[String]) -> String {
    let file = program.first().map_or("", |program| program.rsplit('/').next().unwrap_or(program));
    file.to_owned()
}

/// The application of `simoom run`.
pub(super) fn of_command_line(
    places: &Places<'_>,
    program: &[String],
    listen: &[Placed<Listen>],
    options: &AppOptions,
    errors: &mut Vec<String>,
) -> App {
    twice(places, listen, "--listen", errors);
    if listen.is_empty() {
        errors.push("no listener; add --listen ADDR:PORT".into());
    }
    let place = options.place.unwrap_or(Placement::Same);
    if place == Placement::Inline {
        errors.push("--place inline: a program runs in a process of its own; give same or cpu=N".into());
    }
    too_many(&options.connect, "--connect", errors);
    App {
        name: name_of(program),
        program: program.to_vec(),
        listen: listen.iter().map(|placed| placed.value.0).collect(),
        place,
        user: None,
        restart: options.restart.is_none_or(|on| on.0),
        connections: options.connections.map_or(CONNECTIONS, |n| n.0 as usize),
        connect: options.connect.clone(),
        share: 1,
        bounds: Bounds::settle("--app-memory", options.app_memory.as_ref(), options.app_threads, errors),
        times: {
            let (slow, reset) = (options.app_slow_after.as_ref(), options.app_reset_after.as_ref());
            Times::settle(if reset.is_some() { "--app-reset-after" } else { "--app-slow-after" }, slow, reset, errors)
        },
    }
}

/// What the applications' memory has room for.
fn too_many(connect: &[Peers], at: &str, errors: &mut Vec<String>) {
    let (has, most) = (connect.len(), guard::layout::PERMITS);
    if has > most {
        errors.push(format!("{at}: {has} peers, and there is room for {most}; give larger prefixes or `*` for ports"));
    }
}

/// Refuses more processes of their own, services of ours among them, than there are numbers for.
pub(super) fn count(
    places: &Places<'_>,
    programs: usize,
    services: impl Iterator<Item = Placement>,
    errors: &mut Vec<String>,
) {
    let all = programs + services.filter(|place| *place != Placement::Inline).count();
    if all > APPS_MOST {
        let at = word(places, "run", "[[app]]");
        errors.push(format!(
            "{at}: {all} applications, and there is room for {APPS_MOST}; start another server for the rest"
        ));
    }
}

/// The applications of a configuration file.
pub(super) fn of_file(places: &Places<'_>, entries: &[AppEntry], errors: &mut Vec<String>) -> Vec<App> {
    let mut apps = Vec::<App>::new();
    for entry in entries {
        twice(places, &entry.listen, "listen", errors);
        let name = entry.name.clone().unwrap_or_else(|| name_of(&entry.program));
        let at = entry.listen.first().map_or_else(|| "[[app]]".to_owned(), |listen| places.at(listen, ""));
        if entry.program.is_empty() {
            errors.push(format!("{at}: [[app]] has no program; add program = [\"/path\", \"argument\"]"));
        }
        if entry.listen.is_empty() {
            errors.push(format!("{at}: app `{name}` has no listener; add listen = [\"ADDR:PORT\"]"));
        }
        if apps.iter().any(|app| app.name == name) {
            errors.push(format!("{at}: another app is called `{name}`, too; give each a name"));
        }
        let place = entry.place.as_ref().map_or(Placement::Same, |place| place.value);
        if let Some(placed) = entry.place.as_ref().filter(|place| place.value == Placement::Inline) {
            let at = places.at(placed, "place");
            errors.push(format!("{at}: a program runs in a process of its own; give same or cpu=N"));
        }
        too_many(&entry.connect, &format!("{at}: connect of app `{name}`"), errors);
        if let Some(share) = entry.share.as_ref().filter(|_| !matches!(place, Placement::Cpu(_))) {
            let at = places.at(share, "share");
            errors.push(format!(
                "{at}: share divides a processor of several applications, and `{name}` is on its engine thread's; add place = \"cpu=N\""
            ));
        }
        let (slow, reset) = (entry.slow_after.as_ref(), entry.reset_after.as_ref());
        let of_slow = slow.map(|slow| places.at(slow, "slow-after"));
        let of_times = reset.map(|reset| places.at(reset, "reset-after")).or(of_slow).unwrap_or_default();
        let of_memory = entry.memory.as_ref().map(|memory| places.at(memory, "memory")).unwrap_or_default();
        apps.push(App {
            bounds: Bounds::settle(&of_memory, entry.memory.as_ref(), entry.threads, errors),
            times: Times::settle(&of_times, slow, reset, errors),
            name,
            program: entry.program.clone(),
            listen: entry.listen.iter().map(|placed| placed.value.0).collect(),
            place,
            user: entry.user.clone(),
            restart: entry.restart.is_none_or(|on| on.0),
            connections: entry.connections.map_or(CONNECTIONS, |n| n.0 as usize),
            connect: entry.connect.clone(),
            share: entry.share.as_ref().map_or(1, |share| share.value.0),
        });
    }
    apps
}

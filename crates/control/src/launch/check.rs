//! What can be seen to be wrong before anything is read or opened.

use super::listeners::{division, listeners};
use super::{threads, tiers};
use crate::config::{Kv, Settings};
use crate::error::Error;
use crate::memory;
use crate::privileges::{self, Identity};
use crate::run;
use crate::service::Kind;
use crate::sites::size;
use crate::words::{Backend, Cpus, Placement};

/// Who is to be become.
#[derive(Debug)]
pub(crate) struct Users {
    pub(crate) server: Option<Identity>,
    apps: Vec<Identity>,
}

impl Users {
    /// Refuses those whom this process may not become.
    ///
    /// # Errors
    /// The first one.
    pub(crate) fn can_be_become(&self) -> Result<(), Error> {
        self.server.iter().chain(&self.apps).try_for_each(Identity::can_be_become)
    }
}

/// Refuses what can be seen to be wrong before anything is read or opened; `simoom check` does no more.
///
/// # Errors
/// A processor or a user that does not exist, an address that two services want, and what contradicts itself on this machine: a driver that cannot tell DNS from another
/// service, stores of threads that are too small for their items.
pub(crate) fn check(settings: &Settings) -> Result<Users, Error> {
    processors(settings)?;
    addresses(settings)?;
    stores(settings)?;
    if settings.backend != Backend::Sockets {
        tiers::when(settings, &listeners(settings))?;
    }
    let server = privileges::look_up(settings.user.as_deref(), settings.group.as_deref())?;
    Ok(Users { server, apps: run::users(settings, division(settings))? })
}

fn processors(settings: &Settings) -> Result<(), Error> {
    let Some(online) = online() else { return Ok(()) };
    let of_threads = settings.cpus.iter().flatten().map(|cpu| (*cpu, "cpus", "dataplane.cpus".to_owned()));
    let place = |place, key: String| match place {
        Placement::Cpu(cpu) => Some((cpu as usize, "place", key)),
        Placement::Inline | Placement::Same => None,
    };
    let of_apps = settings.apps.iter().filter_map(|app| place(app.place, format!("app {}: place", app.name)));
    let of_services = [
        settings.kv.as_ref().and_then(|kv| place(kv.place, "kv.place".into())),
        settings.echo.as_ref().and_then(|echo| place(echo.place, "echo.place".into())),
    ];
    let mut all = of_threads.chain(of_services.into_iter().flatten()).chain(of_apps);
    match all.find(|(cpu, ..)| !online.0.contains(cpu)) {
        None => Ok(()),
        Some((cpu, option, key)) => {
            let place = settings.file.as_ref().map_or(format!("--{option}"), |file| format!("{file}: {key}"));
            Err(Error::input(format!("{place}: there is no processor {cpu}; see /sys/devices/system/cpu/online")))
        }
    }
}

/// What comes to an address and port is one service's.
fn addresses(settings: &Settings) -> Result<(), Error> {
    let all: Vec<_> = listeners(settings)
        .iter()
        .flat_map(|at| at.endpoints(settings).map(|endpoint| (at.kind, endpoint.address, endpoint.transport)))
        .collect();
    let of_two = all.iter().enumerate().find_map(|(n, (kind, address, transport))| {
        let same = |other: &&(Kind, _, _)| (other.1, other.2) == (*address, *transport);
        all[..n].iter().find(same).map(|(other, ..)| (other, kind, address, transport))
    });
    let Some((one, other, address, transport)) = of_two else { return Ok(()) };
    let file = settings.file.as_ref().map_or(String::new(), |file| format!("{file}: "));
    let (one, other) = (one.name(), other.name());
    Err(Error::input(format!(
        "{file}{one} and {other} both listen on {address} over {transport}; give one of them another port"
    )))
}

pub(super) fn online() -> Option<Cpus> {
    std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?.trim().parse().ok()
}

fn stores(settings: &Settings) -> Result<(), Error> {
    stores_fit(settings.kv.as_ref(), settings.file.as_deref(), memory::there_is())?;
    // inline both engines' threads work on the same stores; a process of its own has a thread, and a store, for each of them
    let is_placed = settings.kv.as_ref().is_some_and(|kv| kv.place != Placement::Inline);
    stores_have_room(settings, if is_placed { of_both_engines(settings) } else { threads(settings) })
}

/// More than there is would end the server when its table is made, or later, by the kernel's choice.
fn stores_fit(kv: Option<&Kv>, file: Option<&str>, (bytes, whose): (u64, &str)) -> Result<(), Error> {
    let Some(kv) = kv.filter(|kv| kv.memory_bytes > bytes) else { return Ok(()) };
    let place = file.map_or("--memory".to_owned(), |file| format!("{file}: kv.memory"));
    let (wanted, bytes) = (size(kv.memory_bytes), size(bytes));
    Err(Error::input(format!("{place}: {wanted} for items is more than the {whose} has, {bytes}; give less")))
}

/// Threads of both engines; where an interface's queues say how many, the fewest that there can be.
fn of_both_engines(settings: &Settings) -> usize {
    if settings.backend == Backend::Sockets {
        return threads(settings);
    }
    // one of kernel sockets beside
    1 + settings.cpus.as_ref().map_or(1, Vec::len)
}

/// A store of a thread's own must have room for some of the largest items.
///
/// # Errors
/// So many threads have too little of `--memory` each.
pub(crate) fn stores_have_room(settings: &Settings, threads: usize) -> Result<(), Error> {
    let is_short = |kv: &Kv| kv.shared_nothing && kv.memory_bytes / (threads.max(1) as u64) < 2 * kv.item_bytes;
    if !settings.kv.as_ref().is_some_and(is_short) {
        return Ok(());
    }
    let place =
        settings.file.as_ref().map_or("--shared-nothing".to_owned(), |file| format!("{file}: kv.shared-nothing"));
    Err(Error::input(format!(
        "{place}: {threads} threads have less than two of the largest items each; give more --memory or a smaller --item-size"
    )))
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    #[test]
    fn what_a_start_would_refuse_is_refused_by_a_check() {
        let zone = "[[dns.zone]]\nfile = \"z\"\n";
        let refused = |text: &str| check(&settings(text)).unwrap_err().to_string();
        let driver = "[dataplane]\ninterface = [\"eth0\"]\n[dns]\ntier = \"driver\"\n";
        let said = refused(&format!("{driver}{zone}[echo]\nlisten = [\"192.0.2.1:53\"]\n"));
        assert!(said.contains("the driver cannot tell DNS from the service at 192.0.2.1:53"), "{said}");
        let online = online().unwrap().0;
        let cpus = online.iter().map(ToString::to_string).cycle().take(1).collect::<Vec<_>>().join(",");
        let small =
            format!("[dataplane]\ncpus = [{cpus}]\n[kv]\nshared-nothing = true\nmemory = \"4M\"\nitem-size = \"2M\"\n");
        check(&settings(&small)).unwrap();
        if let [one, two, ..] = online[..] {
            let said = refused(&small.replace(&format!("[{cpus}]"), &format!("[{one}, {two}]")));
            assert!(said.contains("kv.shared-nothing: 2 threads have less than two of the largest items"), "{said}");
        }
        let placed = settings(&small.replace("[kv]\n", "[kv]\nplace = \"same\"\n"));
        stores(&placed).unwrap();
        // as the engines are when they have been opened
        let said = stores_have_room(&placed, 2).unwrap_err().to_string();
        assert!(said.contains("kv.shared-nothing: 2 threads have less than two of the largest items"), "{said}");
        // one of kernel sockets is beside those of an interface
        for dataplane in [format!("interface = [\"eth0\"]\ncpus = [{cpus}]"), "interface = [\"eth0\"]".to_owned()] {
            let inline = small.replace(&format!("cpus = [{cpus}]"), &dataplane);
            let said =
                stores(&settings(&inline.replace("[kv]\n", "[kv]\nplace = \"cpu=0\"\n"))).unwrap_err().to_string();
            assert!(said.contains("2 threads have less than two of the largest items"), "{said}");
        }
        let said = refused(&format!("{zone}[control]\nuser = \"no-such-user-here\"\n"));
        assert!(said.contains("no-such-user-here: no such user"), "{said}");
        let said = refused("[kv]\nmemory = \"4000T\"\n");
        assert!(
            said.contains("kv.memory: 4096000.0 GiB for items is more than the ") && said.ends_with("; give less"),
            "{said}"
        );
        let app = "[[app]]\nname = \"a\"\nprogram = [\"/bin/true\"]\nlisten = [\"192.0.2.1:7\"]\n";
        let said = refused(&format!("{app}user = \"no-such-user-here\"\n"));
        assert_eq!(said, "application a: user no-such-user-here: no such user; see `getent passwd`");
        let said = refused("[echo]\nplace = \"same\"\n[control]\napp-user = \"no-such-user-here\"\n");
        assert!(said.starts_with("application echo: user no-such-user-here: no such user"), "{said}");
        // one that is not needed is not asked for
        check(&settings("[echo]\n[control]\napp-user = \"no-such-user-here\"\n")).unwrap();
        // an address that the kernel has, and one of our own
        for own in ["", "[dataplane]\ninterface = [\"eth0\"]\nown = [\"192.0.2.2/24\"]\n"] {
            let said = refused(&format!(
                "{own}[web]\nroot = \"r\"\nlisten = [\"192.0.2.2:80\"]\n[kv]\nlisten = [\"192.0.2.2:80\"]\n"
            ));
            assert!(
                said.ends_with("web and kv both listen on 192.0.2.2:80 over TCP; give one of them another port"),
                "{said}"
            );
        }
        check(&settings("[echo]\nlisten = [\"192.0.2.2:80\"]\n[kv]\nlisten = [\"192.0.2.2:80\"]\n")).unwrap();
        let two = format!("{app}{}", app.replace("\"a\"", "\"b\""));
        let said = refused(&two);
        assert!(said.contains("app and app both listen on 192.0.2.1:7"), "{said}");
        assert!(
            refused(&format!("[dataplane]\ncpus = [4095]\n{zone}"))
                .contains("dataplane.cpus: there is no processor 4095")
        );
        for (text, key) in [
            ("[kv]\nplace = \"cpu=4095\"\n".to_owned(), "kv.place"),
            ("[echo]\nplace = \"cpu=4095\"\n".to_owned(), "echo.place"),
            (format!("{app}place = \"cpu=4095\"\n"), "app a: place"),
        ] {
            assert!(refused(&text).contains(&format!("{key}: there is no processor 4095")), "{}", refused(&text));
        }
    }
}

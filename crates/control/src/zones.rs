//! Zone files from the file system, into tables that serve.
//!
//! A load is all or nothing: one zone that fails keeps every table as it was. So what is served is always one state of the
//! whole configuration (a parent and its child change together), and no second copy of each zone waits in memory for the
//! case that its file breaks.
//!
//! A file that changes while it is read is read again, and refused when it never rests: half of a zone may be a zone, too. One whose
//! writer paused for as long as the reading took is read as it was; whoever moves a file into place is never read half.
//!
//! A reload is skipped when none of the files changed (device, inode, size, times). A file that was written so shortly
//! before it was read that a later write could carry the same time counts as changed.

use crate::config::ZoneSpec;
use crate::print::Print;
use crate::sandbox;
use rustix::fs::{FileType, Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use zone::{Name, Source, Zone};

/// The files of a load, by path, so that the next one can tell whether anything changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prints(BTreeMap<String, Noted>);

/// What was read.
#[derive(Clone, Copy, Debug)]
struct Noted {
    print: Print,
    /// not a pipe, nor a device
    is_file: bool,
}

impl Prints {
    /// Which files these are.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The first file that is no longer what it was when its reading began.
    fn restless(&self) -> Option<&str> {
        // what a pipe brings comes once
        let is_other =
            |(path, noted): &(&String, &Noted)| noted.is_file && !look(path).is_ok_and(|now| noted.print.same(&now));
        self.0.iter().find(is_other).map(|(path, _)| path.as_str())
    }

    /// Whether every file is what it was when it was read.
    pub(crate) fn unchanged(&self) -> bool {
        self.0.iter().all(|(path, noted)| look(path).is_ok_and(|now| noted.print.still(&now)))
    }
}

/// What stands at a path by now. A file is opened for that, since a network file system may know of an older state until then; of
/// anything else it is enough to know that it is there.
fn look(path: &str) -> io::Result<Print> {
    let is = rustix::fs::stat(path)?;
    match FileType::from_raw_mode(is.st_mode) {
        FileType::RegularFile => Print::of(&open_file(path)?),
        _ => Ok(Print::of_stat(&is)),
    }
}

/// Opens a file, and nothing else: a FIFO would hold up the load and a device have no end. What has taken a file's place since it was
/// looked at is not waited for either.
pub(crate) fn open_file(path: &str) -> io::Result<File> {
    let none = || io::Error::other("it is no regular file");
    // some devices take it for a wish that they are opened
    if !std::fs::metadata(path)?.is_file() {
        return Err(none());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(none()) }
}

/// Opens what the operator named: a FIFO or a device if he wants, but not in the place of what was a file at the load before, where
/// the author of a zone has put it.
fn open_named(path: &str, before: Option<&Prints>) -> io::Result<File> {
    match before.and_then(|before| before.0.get(path)) {
        Some(noted) if noted.is_file => open_file(path),
        _ => File::open(path),
    }
}

/// Reads zone files, and notes which.
#[derive(Debug, Default)]
struct FsSource<'a> {
    noted: Mutex<Prints>,
    /// of the load that this one follows
    before: Option<&'a Prints>,
}

impl FsSource<'_> {
    fn note(&self, path: &str, file: File) -> io::Result<Box<dyn Read>> {
        let is = file.metadata()?;
        if is.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let noted = Noted { print: Print::of(&file)?, is_file: is.is_file() };
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).0.insert(path.to_owned(), noted);
        Ok(Box::new(file))
    }
}

impl Source for FsSource<'_> {
    fn open(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        self.note(path, open_named(path, self.before).map_err(|error| sandbox::explained(path, error))?)
    }

    /// What the operator may name the author of a zone may not.
    fn open_included(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        self.note(path, open_file(path).map_err(|error| sandbox::explained(path, error))?)
    }

    fn identity(&self, path: &str) -> String {
        // whoever cannot be asked cannot be opened either
        std::fs::metadata(path).map_or_else(|_| path.to_owned(), |is| format!("{}:{}", is.dev(), is.ino()))
    }
}

/// Zones that were read.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// in the configuration's order
    pub zones: Vec<Zone>,
    /// their files
    pub prints: Prints,
}

/// So often files are read that change meanwhile.
const READINGS: usize = 3;

/// Reads all zones. `before` are the files of the load that this one follows, if one does.
///
/// # Errors
/// Everything wrong with any of them, a line each.
pub(crate) fn load(specs: &[ZoneSpec], before: Option<&Prints>) -> Result<Loaded, Vec<String>> {
    let mut restless = String::new();
    for _ in 0..READINGS {
        let source = FsSource { noted: Mutex::default(), before };
        let read = load_once(specs, &source);
        let prints = source.noted.into_inner().unwrap_or_else(PoisonError::into_inner);
        match prints.restless() {
            None => return read.map(|zones| Loaded { zones, prints }),
            Some(path) => restless = path.to_owned(),
        }
    }
    Err(vec![format!("{restless}: it changes while it is read; write the new one beside it and move it into place")])
}

fn load_once(specs: &[ZoneSpec], source: &FsSource<'_>) -> Result<Vec<Zone>, Vec<String>> {
    let mut errors = Vec::new();
    let mut zones: Vec<Zone> = Vec::with_capacity(specs.len());
    let mut places: BTreeMap<String, &ZoneSpec> = BTreeMap::new();
    for spec in specs {
        let origin = match spec.origin.as_deref().map(origin) {
            None => None,
            Some(Ok(name)) => Some(name),
            Some(Err(why)) => {
                errors.push(format!("{}: {why}", spec.place));
                continue;
            }
        };
        // said here, since the place is where the file was asked for and the mend is there
        if let Err(why) = readable(&spec.file, source.before) {
            errors.push(format!("{}: cannot be read: {why}", named(spec)));
            continue;
        }
        match zone::load(source, &spec.file, origin) {
            Err(wrong) => errors.extend(wrong.iter().map(ToString::to_string)),
            Ok(zone) => {
                let name = zone.origin().to_string().to_ascii_lowercase();
                match places.insert(name, spec) {
                    None => zones.push(zone),
                    Some(first) => errors.push(format!(
                        "{}: zone {} is given twice; {} has it too; remove one",
                        named(spec),
                        zone.origin(),
                        named(first)
                    )),
                }
            }
        }
    }
    if errors.is_empty() { Ok(zones) } else { Err(errors) }
}

fn readable(path: &str, before: Option<&Prints>) -> Result<(), String> {
    let was_file = before.and_then(|before| before.0.get(path)).is_some_and(|noted| noted.is_file);
    if !was_file && std::fs::metadata(path).is_ok_and(|facts| !facts.is_file() && !facts.is_dir()) {
        // what a pipe brings comes once: who reads it is told what is wrong with it
        return Ok(());
    }
    match open_named(path, before).and_then(|file| file.metadata()) {
        Ok(facts) if facts.is_dir() => Err("it is a directory; name a zone file".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{}; check the path", sandbox::explain(Path::new(path), &error))),
    }
}

fn named(spec: &ZoneSpec) -> String {
    match spec.place == spec.file {
        true => spec.file.clone(),
        false => format!("{}: {}", spec.place, spec.file),
    }
}

fn origin(text: &str) -> Result<Name, String> {
    text.parse().map_err(|error| format!("`{text}` is not a zone's name: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, SystemTime};

    const ZONE: &str = "$ORIGIN a.\n$TTL 60\n@ SOA ns host 1 2 3 4 5\n@ NS ns\nns A 192.0.2.1\n";

    #[test]
    fn a_file_is_unchanged_only_when_it_is_old_and_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (file, included) = (folder.path().join("zone"), folder.path().join("more"));
        std::fs::write(&file, format!("{ZONE}$INCLUDE more\n")).unwrap();
        std::fs::write(&included, "x A 192.0.2.1\n").unwrap();
        let path = file.to_str().unwrap().to_owned();
        let specs = [ZoneSpec { origin: None, file: path.clone(), place: path }];
        // just written: a later write could leave the same time
        assert!(!load(&specs, None).unwrap().prints.unchanged());
        let old = SystemTime::now() - Duration::from_secs(60);
        for path in [&file, &included] {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(old).unwrap();
            while Print::of(&file).unwrap().fresh {
                std::thread::sleep(Print::of(&file).unwrap().settles_in());
            }
        }
        let prints = load(&specs, None).unwrap().prints;
        assert!(prints.unchanged());
        File::options().write(true).open(&included).unwrap().set_modified(SystemTime::now()).unwrap();
        assert!(!prints.unchanged(), "an included file counts");
        std::fs::remove_file(&included).unwrap();
        assert!(!prints.unchanged());
    }

    #[test]
    fn who_writes_a_zone_cannot_hold_up_its_load() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), FileType::Fifo, Mode::from(0o600), 0).unwrap();
        let zone = path("zone");
        let specs = [ZoneSpec { origin: None, file: zone.clone(), place: zone.clone() }];
        for included in ["fifo", "/dev/zero"] {
            std::fs::write(&zone, format!("{ZONE}$INCLUDE {included}\n")).unwrap();
            let errors = load(&specs, None).unwrap_err();
            let why = format!("\"{included}\" cannot be read: it is no regular file");
            assert!(errors[0].starts_with(&format!("{zone}:")) && errors[0].contains(&why), "{errors:?}");
        }
        // whatever way leads to a file, it cannot include itself
        std::fs::create_dir(path("d")).unwrap();
        std::fs::write(&zone, format!("{ZONE}$INCLUDE d/../zone\n")).unwrap();
        assert!(load(&specs, None).unwrap_err()[0].contains("is being read already"));
    }

    /// What is done ends within a time.
    fn in_time<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, outcome) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(does()));
        outcome.recv_timeout(Duration::from_secs(20)).expect("an end")
    }

    #[test]
    fn what_takes_the_place_of_a_file_holds_up_no_reload() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (zone, included) = (path("zone"), path("more"));
        std::fs::write(&zone, format!("{ZONE}$INCLUDE more\n")).unwrap();
        std::fs::write(&included, "x A 192.0.2.1\n").unwrap();
        let specs = [ZoneSpec { origin: None, file: zone.clone(), place: zone.clone() }];
        let prints = load(&specs, None).unwrap().prints;
        for (path, said) in [
            (included, "\"more\" cannot be read: it is no regular file"),
            (zone, "zone: cannot be read: it is no regular file; check the path"),
        ] {
            std::fs::remove_file(&path).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
            let (specs, prints) = (specs.clone(), prints.clone());
            let errors = in_time(move || {
                assert!(!prints.unchanged() && prints.restless().is_some());
                load(&specs, Some(&prints)).unwrap_err()
            });
            assert!(errors[0].contains(said), "{errors:?}");
        }
    }

    /// As a shell makes one for `simoom dns <(zones)`.
    #[test]
    fn a_pipe_that_the_operator_names_is_read() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let specs = [ZoneSpec { origin: None, file: path.clone(), place: path }];
        writer.write_all(ZONE.as_bytes()).unwrap();
        drop(writer);
        let loaded = load(&specs, None).unwrap();
        assert_eq!((loaded.zones.len(), loaded.prints.restless()), (1, None));
        // the next load may ask it again, in vain
        let errors = in_time(move || load(&specs, Some(&loaded.prints)).unwrap_err());
        assert!(!errors[0].contains("no regular file"), "{errors:?}");
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_no_zone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("zone");
        std::fs::write(&file, ZONE).unwrap();
        let path = file.to_str().unwrap();
        let source = FsSource::default();
        let mut reading = source.open(path).unwrap();
        let noted = || source.noted.lock().unwrap().clone();
        let mut part = [0; 10];
        reading.read_exact(&mut part).unwrap();
        assert_eq!(noted().restless(), None);
        let mut writing = File::options().append(true).open(&file).unwrap();
        writeln!(writing, "x A 192.0.2.2").unwrap();
        reading.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(noted().restless(), Some(path));
        // read anew it is what it is
        let specs = [ZoneSpec { origin: None, file: path.to_owned(), place: path.to_owned() }];
        assert_eq!(load(&specs, None).unwrap().prints.restless(), None);
        // it is replaced, and then gone
        let noted = load(&specs, None).unwrap().prints;
        std::fs::write(folder.path().join("new"), ZONE).unwrap();
        std::fs::rename(folder.path().join("new"), &file).unwrap();
        assert_eq!(noted.restless(), Some(path));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(noted.restless(), Some(path));
    }

    #[test]
    fn a_file_that_never_rests_is_refused_and_one_that_comes_to_rest_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("zone");
        let names: String = (0..20_000).map(|n| format!("n{n} A 192.0.2.1\n")).collect();
        std::fs::write(&file, format!("{ZONE}{names}")).unwrap();
        let path = file.to_str().unwrap().to_owned();
        let specs = [ZoneSpec { origin: None, file: path.clone(), place: path.clone() }];
        let goes_on = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writing = File::options().append(true).open(&file).unwrap();
                while goes_on.load(std::sync::atomic::Ordering::Relaxed) {
                    writeln!(writing, "; more").unwrap();
                    std::thread::yield_now();
                }
            });
            // who writes may not be let run for the while of a reading
            let begun = std::time::Instant::now();
            let refused = loop {
                match load(&specs, None) {
                    Err(lines) => break lines,
                    Ok(_) if begun.elapsed().as_secs() < 60 => {}
                    Ok(_) => break Vec::new(),
                }
            };
            goes_on.store(false, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused.len(), 1);
            assert!(refused[0].starts_with(&format!("{path}: it changes while it is read; ")), "{refused:?}");
        });
        assert_eq!(load(&specs, None).unwrap().zones.len(), 1);
    }
}

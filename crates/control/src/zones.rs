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
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use zone::{Name, Source, Zone};

/// The files of a load, by path, so that the next one can tell whether anything changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prints(BTreeMap<String, Print>);

impl Prints {
    /// Which files these are.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The first file that is no longer what it was when its reading began.
    fn restless(&self) -> Option<&str> {
        let is_other = |(path, print): &(&String, &Print)| {
            // what a pipe brings comes once
            if std::fs::metadata(path.as_str()).is_ok_and(|is| !is.is_file()) {
                return false;
            }
            let now = File::open(path).and_then(|file| Print::of(&file));
            !now.is_ok_and(|now| print.same(&now))
        };
        self.0.iter().find(is_other).map(|(path, _)| path.as_str())
    }

    /// Whether every file is what it was when it was read.
    pub(crate) fn unchanged(&self) -> bool {
        self.0.iter().all(|(path, print)| {
            let now = File::open(path).and_then(|file| Print::of(&file));
            now.is_ok_and(|now| print.still(&now))
        })
    }
}

/// Reads zone files, and notes which.
#[derive(Debug, Default)]
struct FsSource(Mutex<Prints>);

impl Source for FsSource {
    fn open(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        let file = File::open(path).map_err(|error| sandbox::explained(path, error))?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let print = Print::of(&file)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.insert(path.to_owned(), print);
        Ok(Box::new(file))
    }

    /// A FIFO would hold up the load and a device have no end: the operator may name them, the author of a zone may not.
    fn open_included(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        if !std::fs::metadata(path).map_err(|error| sandbox::explained(path, error))?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        self.open(path)
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

/// Reads all zones.
///
/// # Errors
/// Everything wrong with any of them, a line each.
pub(crate) fn load(specs: &[ZoneSpec]) -> Result<Loaded, Vec<String>> {
    let mut restless = String::new();
    for _ in 0..READINGS {
        let source = FsSource::default();
        let read = load_once(specs, &source);
        let prints = source.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        match prints.restless() {
            None => return read.map(|zones| Loaded { zones, prints }),
            Some(path) => restless = path.to_owned(),
        }
    }
    Err(vec![format!("{restless}: it changes while it is read; write the new one beside it and move it into place")])
}

fn load_once(specs: &[ZoneSpec], source: &FsSource) -> Result<Vec<Zone>, Vec<String>> {
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
        if let Err(why) = readable(&spec.file) {
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

fn readable(path: &str) -> Result<(), String> {
    match File::open(path).and_then(|file| file.metadata()) {
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
    use rustix::fs::{FileType, Mode};
    use std::io::Write;
    use std::time::SystemTime;

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
        assert!(!load(&specs).unwrap().prints.unchanged());
        let old = SystemTime::now() - std::time::Duration::from_secs(60);
        for path in [&file, &included] {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(old).unwrap();
            while Print::of(&file).unwrap().fresh {
                std::thread::sleep(Print::of(&file).unwrap().settles_in());
            }
        }
        let prints = load(&specs).unwrap().prints;
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
            let errors = load(&specs).unwrap_err();
            let why = format!("\"{included}\" cannot be read: it is no regular file");
            assert!(errors[0].starts_with(&format!("{zone}:")) && errors[0].contains(&why), "{errors:?}");
        }
        // whatever way leads to a file, it cannot include itself
        std::fs::create_dir(path("d")).unwrap();
        std::fs::write(&zone, format!("{ZONE}$INCLUDE d/../zone\n")).unwrap();
        assert!(load(&specs).unwrap_err()[0].contains("is being read already"));
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_no_zone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("zone");
        std::fs::write(&file, ZONE).unwrap();
        let path = file.to_str().unwrap();
        let source = FsSource::default();
        let mut reading = source.open(path).unwrap();
        let noted = || source.0.lock().unwrap().clone();
        let mut part = [0; 10];
        reading.read_exact(&mut part).unwrap();
        assert_eq!(noted().restless(), None);
        let mut writing = File::options().append(true).open(&file).unwrap();
        writeln!(writing, "x A 192.0.2.2").unwrap();
        reading.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(noted().restless(), Some(path));
        // read anew it is what it is
        let specs = [ZoneSpec { origin: None, file: path.to_owned(), place: path.to_owned() }];
        assert_eq!(load(&specs).unwrap().prints.restless(), None);
        // it is replaced, and then gone
        let noted = load(&specs).unwrap().prints;
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
                match load(&specs) {
                    Err(lines) => break lines,
                    Ok(_) if begun.elapsed().as_secs() < 60 => {}
                    Ok(_) => break Vec::new(),
                }
            };
            goes_on.store(false, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused.len(), 1);
            assert!(refused[0].starts_with(&format!("{path}: it changes while it is read; ")), "{refused:?}");
        });
        assert_eq!(load(&specs).unwrap().zones.len(), 1);
    }
}

use super::*;
use crate::config;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.root()).unwrap();
        place
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.root().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// As if it had been written a minute ago.
    fn age(&self, name: &str) {
        let old = SystemTime::now() - Duration::from_secs(60);
        std::fs::File::open(self.root().join(name)).unwrap().set_modified(old).unwrap();
    }

    /// Waits until no later change could carry the same times.
    fn settle(&self, name: &str) {
        let print = || Print::of(&std::fs::File::open(self.root().join(name)).unwrap()).unwrap();
        while print().fresh {
            std::thread::sleep(print().settles_in());
        }
    }

    fn web(&self, more: &str) -> Web {
        let text = format!("[web]\nroot = \"root\"\n{more}");
        let name = self.folder.path().join("s.toml");
        config::from_text(name.to_str().unwrap(), &text).unwrap().web.unwrap()
    }

    fn load(&self) -> Loaded {
        load(&self.web(""), None, Variants::Later).unwrap().unwrap()
    }

    /// The warnings, with `ROOT` for the folder.
    fn warnings(&self) -> Vec<String> {
        let root = self.root().display().to_string();
        let lines = self.load().warnings;
        lines.iter().map(|line| line[line.find(&root).unwrap()..].replace(&root, "ROOT")).collect()
    }

    fn refused(&self, more: &str) -> Vec<String> {
        let folder = self.folder.path().display().to_string();
        load(&self.web(more), None, Variants::Later)
            .unwrap_err()
            .iter()
            .map(|line| line.replace(&folder, "DIR"))
            .collect()
    }
}

fn before<'a>(site: &'a Arc<Site>, tree: &'a Tree) -> Option<Before<'a>> {
    Some(Before { site, tree, rules: true })
}

fn paths(tree: &Tree) -> Vec<String> {
    tree.0.iter().map(|found| String::from_utf8_lossy(&found.path).into_owned()).collect()
}

#[test]
fn the_walk_finds_files_and_directories_in_order() {
    let place = Place::new();
    for name in ["index.html", "b/x.js", "b/x.js.br", "a b/c/d.txt"] {
        place.write(name, name);
    }
    std::fs::create_dir(place.root().join("empty")).unwrap();
    let loaded = place.load();
    let expected = ["/a b", "/b", "/empty", "/index.html", "/a b/c", "/a b/c/d.txt", "/b/x.js", "/b/x.js.br"];
    let mut found = paths(&loaded.tree);
    found.sort();
    let mut sorted = expected.map(str::to_owned).to_vec();
    sorted.sort();
    assert_eq!(found, sorted);
    assert_eq!(paths(&place.load().tree), paths(&loaded.tree));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(loaded.tree.of_host(0), (4, 10 + 6 + 9 + 11));
    assert!(loaded.site.pages() >= 4);
}

#[test]
fn links_stay_below_the_root() {
    let place = Place::new();
    place.write("real/file", "x");
    std::fs::write(place.folder.path().join("secret"), "s").unwrap();
    let link = |to: &str, name: &str| symlink(to, place.root().join(name)).unwrap();
    link("real/file", "inside");
    link("real", "directory");
    link("../secret", "outside");
    link("..", "above");
    link("/etc/passwd", "absolute");
    link("/proc/self/root/etc/passwd", "magic");
    link("nowhere", "dangling");
    link("round", "round");
    link("..", "real/back");
    rustix::fs::mknodat(rustix::fs::CWD, place.root().join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    let found = paths(&place.load().tree);
    for served in ["/inside", "/directory/file", "/real/file"] {
        assert!(found.iter().any(|path| path == served), "{served} in {found:?}");
    }
    for refused in ["/outside", "/above", "/absolute", "/magic", "/dangling", "/round", "/fifo"] {
        assert!(!found.iter().any(|path| path == refused), "{refused} in {found:?}");
    }
    assert!(found.iter().all(|path| !path.starts_with("/real/back/")), "{found:?}");
    assert_eq!(
        place.warnings(),
        [
            "ROOT/above: a link that leaves the root, not served",
            "ROOT/absolute: a link that leaves the root, not served",
            "ROOT/dangling: a link that leads nowhere, not served",
            "ROOT/fifo: neither a file nor a directory, not served",
            "ROOT/magic: a link that leaves the root, not served",
            "ROOT/outside: a link that leaves the root, not served",
            "ROOT/round: a link that leads in circles, not served",
            "ROOT/directory/back: a link back to a directory above it, not served",
            "ROOT/real/back: a link back to a directory above it, not served",
        ]
    );
}

#[test]
fn names_with_a_dot_in_front_are_not_looked_at() {
    let place = Place::new();
    for name in [".git/config", "a/.htpasswd", ".well-known/acme", "c/plain"] {
        place.write(name, "x");
    }
    let found = paths(&place.load().tree);
    assert!(found.iter().any(|path| path == "/.well-known/acme"), "{found:?}");
    assert!(!found.iter().any(|path| path.contains("git") || path.contains("htpasswd")), "{found:?}");
    assert!(place.warnings().is_empty());
}

#[test]
fn roots_that_cannot_be_had() {
    let place = Place::new();
    std::fs::remove_dir(place.root()).unwrap();
    assert_eq!(
        place.refused(""),
        ["DIR/s.toml:2:8: DIR/root: cannot be read: No such file or directory; check the path"]
    );
    std::fs::write(place.root(), "").unwrap();
    assert_eq!(
        place.refused(""),
        ["DIR/s.toml:2:8: DIR/root: it is not a directory; name the one that is to be served"]
    );
}

#[test]
fn too_much_is_refused_before_it_is_read() {
    let place = Place::new();
    // a sparse file: reading it would take its size in memory
    std::fs::File::create(place.root().join("huge")).unwrap().set_len(1 << 40).unwrap();
    let lines = place.refused("memory = \"8M\"\ncache = 0\n");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line =
        "DIR/s.toml:2:8: the content takes 1032.0 GiB, more than the 8.0 MiB of --memory, and --cache 0 reads nothing";
    assert!(lines[0].starts_with(line), "{lines:?}");
    // the machine's, or a control group's that this runs in
    assert!(place.refused("cache = 0\n")[0].contains(", half of the "));
    let lines = place.refused("memory = \"1M\"\n");
    let line = "DIR/s.toml:2:8: 1 files need 768 B of memory without their contents, more than the 1.0 MiB of --memory and a \
                cache of 1.0 MiB leave; give more --memory";
    assert_eq!(lines, [line]);
}

#[test]
fn the_smallest_files_are_held_and_the_others_only_looked_at() {
    let place = Place::new();
    std::fs::File::create(place.root().join("a-huge")).unwrap().set_len(1 << 40).unwrap();
    place.write("b-large", &"x".repeat(700_000));
    place.write("c-small", "small");
    place.write("d-large", &"x".repeat(600_000));
    let web = place.web("memory = \"2M\"\ncache = \"1M\"\n");
    let loaded = load(&web, None, Variants::Later).unwrap().unwrap();
    // one of the two large ones fits
    assert_eq!(loaded.site.read_when_sent(), (2, (1 << 40) + 700_000));
    assert!(loaded.site.memory_bytes() < 1 << 20 && loaded.site.pages() == 4);
    assert!(
        describe(&loaded.site).ends_with("KiB held, 2 of 1024.0 GiB read while they are sent"),
        "{}",
        describe(&loaded.site)
    );
}

#[test]
fn files_that_are_not_held_have_to_be_readable_and_to_hold_still() {
    use ::web::chunks::{Source, Unreadable};
    let place = Place::new();
    let text: String = (0..200_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    place.write("file", &text);
    let root = Arc::new(Root::open(&place.web("").hosts[0], &Touched::default()).unwrap());
    let print = |name: &str| Print::of(&std::fs::File::open(place.root().join(name)).unwrap()).unwrap();
    let source = |path: &str| {
        let found = Found { host: 0, path: path.into(), directory: false, print: print("file"), left_out: false };
        OnDisk::source(&root, &found)
    };
    let read = |source: &dyn Source, at: u64| {
        let mut bytes = [0; 26];
        source.read(at, &mut bytes).map(|()| bytes)
    };
    let file = source("/file");
    assert_eq!(read(&*file, 26 * 1000), Ok(*b"abcdefghijklmnopqrstuvwxyz"));
    // beyond its end, and under a name that is not there
    assert_eq!(read(&*file, 199_990), Err(Unreadable));
    assert_eq!(read(&*source("/other"), 0), Err(Unreadable));
    let change = |change: &dyn Fn(&std::path::Path)| {
        // a coarse clock must have moved on
        std::thread::sleep(Duration::from_millis(20));
        let file = source("/file");
        assert!(read(&*file, 0).is_ok());
        change(&place.root().join("file"));
        let after = read(&*file, 0);
        assert_eq!(after, Err(Unreadable));
    };
    change(&|path| std::fs::File::options().write(true).open(path).unwrap().set_len(100_000).unwrap());
    change(&|path| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[0] = b'z';
        let before = std::fs::metadata(path).unwrap().modified().unwrap();
        std::fs::write(path, bytes).unwrap();
        std::fs::File::open(path).unwrap().set_modified(before).unwrap();
    });
    change(&|path| {
        let new = path.with_extension("new");
        std::fs::copy(path, &new).unwrap();
        std::fs::rename(new, path).unwrap();
    });
    change(&|path| std::fs::remove_file(path).unwrap());
}

#[test]
fn a_file_that_changes_while_it_is_read_is_left_out_unless_it_would_be_lost() {
    let place = Place::new();
    place.write("page", "x");
    place.write("restless", "x");
    let (web, served) = (place.web(""), place.load());
    let served = (Arc::new(served.site), served.tree);
    let (path, stop) = (place.root().join("restless"), AtomicBool::new(false));
    let (first, again) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            // reading so much takes a while
            let lengths = (0..1000).map(|n| (32 << 20) + n).cycle();
            for bytes in lengths.take_while(|_| !stop.load(Ordering::Relaxed)) {
                file.set_len(bytes).unwrap();
            }
        });
        // until the other thread had a processor during each reading
        let first = (0..200).find_map(|_| {
            let loaded = load(&web, None, Variants::Later).ok().flatten();
            loaded.filter(|loaded| !loaded.warnings.is_empty())
        });
        let again = (0..200).find_map(|_| load(&web, before(&served.0, &served.1), Variants::Later).err());
        stop.store(true, Ordering::Relaxed);
        (first, again.unwrap_or_default())
    });
    let Loaded { site, tree, warnings, .. } = first.expect("a file that does not hold still");
    let line =
        "restless: it changes while it is read, not served until a reload; move it into place when it is complete";
    assert!(warnings.len() == 1 && warnings[0].ends_with(line), "{warnings:?}");
    assert_eq!((site.pages(), tree.of_host(0)), (1, (1, 1)));
    let line = "restless: it changes while it is read; move it into place when it is complete";
    assert!(again.len() == 1 && again[0].ends_with(line), "{again:?}");
    // however long it has rested
    place.settle("restless");
    let later = load(&web, before(&Arc::new(site), &tree), Variants::Later).unwrap().expect("a change");
    assert_eq!((later.site.pages(), later.tree.of_host(0).0, later.warnings.len()), (2, 2, 0));
}

/// Who may write below a root may do so between two looks, and when nobody looks.
#[test]
fn what_an_author_puts_in_the_place_of_what_was_seen_ends_no_load() {
    let place = Place::new();
    let at = |name: &str| place.root().join(name);
    let seen = ["socket", "round", "out", "above/file"];
    for name in seen.into_iter().chain(["kept"]) {
        place.write(name, "x");
    }
    let (web, tree) = (place.web(""), place.load().tree);
    for name in seen {
        std::fs::remove_file(at(name)).unwrap();
    }
    std::fs::remove_dir(at("above")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    symlink("round", at("round")).unwrap();
    symlink("/etc/passwd", at("out")).unwrap();
    place.write("above", "no directory any more");
    let mut builder = new_builder(&web, None).unwrap();
    let root = Arc::new(Root::open(&web.hosts[0], &Touched::default()).unwrap());
    for found in tree.0.iter().filter(|found| !found.directory && found.path != b"/kept") {
        // also of what is to be read when it is sent
        let lacks = [read(&root, found, &mut builder).err(), on_disk::look(&root, &found.path).err()];
        assert!(matches!(lacks, [Some(Lack::Vanished), Some(Lack::Vanished)]), "{found:?}: {lacks:?}");
    }
    // and a directory
    let found = |path: &str| Found { path: path.into(), directory: true, ..tree.0[0].clone() };
    for path in ["/socket", "/round", "/out", "/above", "/above/below", "/nothing"] {
        let tree = Tree(vec![found(path)]);
        let (warnings, errors) = (Lines::default(), Lines::default());
        let mut load = Load { roots: vec![root.clone()], builder: &builder, tree, warnings, errors };
        load.walk(0, path.as_bytes(), &mut Vec::new());
        assert!(load.errors.0.is_empty() && load.tree.0.is_empty(), "{path}: {:?}", load.errors.0);
    }
}

#[test]
fn a_file_is_known_by_what_it_is_where_hosts_have_other_numbers() {
    let place = Place::new();
    place.write("first/page", "x");
    place.write("second/page", "x");
    let text = |roots: &[&str]| -> Web {
        let host = |root: &&str| format!("[[web.host]]\nnames = [\"{root}.example\"]\nroot = \"root/{root}\"\n");
        let name = place.folder.path().join("s.toml");
        let text: String = roots.iter().map(host).collect();
        config::from_text(name.to_str().unwrap(), &text).unwrap().web.unwrap()
    };
    let served = |roots: &[&str]| {
        let loaded = load(&text(roots), None, Variants::Later).unwrap().unwrap();
        (Arc::new(loaded.site), loaded.tree)
    };
    let (both, first) = (served(&["first", "second"]), served(&["first"]));
    // of the only host by now, which was the second one
    let second = load(&text(&["second"]), None, Variants::Later).unwrap().unwrap().tree;
    let root = Root::open(&text(&["second"]).hosts[0], &Touched::default()).unwrap();
    for (before, is_served) in [(&both, true), (&first, false)] {
        let before = Some(Before { site: &before.0, tree: &before.1, rules: false });
        let mut said = Said { before, warnings: Lines::default(), errors: Lines::default() };
        said.leave_out(&root, &mut second.0[0].clone(), Lack::Changes);
        assert_eq!((said.errors.0.len(), said.warnings.0.len()), if is_served { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn rules_that_are_refused_name_their_place() {
    let place = Place::new();
    let text = "[[web.host]]\nroot = \"root\"\n[[web.host.header]]\npath = \"/**\"\nname = \"Date\"\nvalue = \"x\"\n";
    let web = config::from_text(place.folder.path().join("s.toml").to_str().unwrap(), text).unwrap().web.unwrap();
    let lines = load(&web, None, Variants::Later).unwrap_err();
    assert!(lines[0].ends_with("s.toml:1:1: header \"Date\": the server writes it"), "{lines:?}");
}

#[test]
fn what_did_not_change_is_shared_and_what_did_is_read() {
    let place = Place::new();
    let big = "x".repeat(100_000);
    for name in ["same.txt", "other.txt"] {
        place.write(name, &big);
        place.age(name);
    }
    ["same.txt", "other.txt"].iter().for_each(|name| place.settle(name));
    let first = place.load();
    let site = Arc::new(first.site);
    let web = place.web("");
    assert!(load(&web, before(&site, &first.tree), Variants::Later).unwrap().is_none(), "nothing has changed");
    // as long as before, with the old time set back: only the inode's own time tells
    place.write("other.txt", &big.replace('x', "y"));
    place.age("other.txt");
    let second = load(&web, before(&site, &first.tree), Variants::Later).unwrap().expect("a change");
    let content = |site: &Site, byte: u8| -> Vec<*const u8> {
        let all = (0..site.content().objects() as u32).map(|n| site.content().bytes(app::ObjectId(n)));
        all.filter(|bytes| bytes.len() == 100_000 && bytes[0] == byte).map(<[u8]>::as_ptr).collect()
    };
    assert_eq!(content(&second.site, b'y').len(), 1);
    assert!(content(&site, b'x').contains(&content(&second.site, b'x')[0]), "shared, not copied");
    std::fs::remove_file(place.root().join("same.txt")).unwrap();
    let third = load(&web, before(&Arc::new(second.site), &second.tree), Variants::Later).unwrap().expect("a change");
    assert!(content(&third.site, b'x').is_empty());
}

#[test]
fn variants_are_made_of_what_is_served_and_nothing_is_read_for_them() {
    let place = Place::new();
    let text = "again and again, ".repeat(1000);
    place.write("same.txt", &text);
    place.write("other.txt", &text);
    std::fs::File::create(place.root().join("large")).unwrap().set_len(1 << 40).unwrap();
    let web = place.web("memory = \"2M\"\ncache = \"1M\"\ncompress = true\n");
    let first = load(&web, None, Variants::Later).unwrap().unwrap();
    let (site, tree, touched) = (Arc::new(first.site), first.tree, first.touched);
    let served = |site, tree| Served { site, tree, touched: &touched };
    // being written, which nobody wants to be reloaded yet
    place.write("other.txt", "half of");
    place.write("new.txt", &text);
    std::fs::remove_file(place.root().join("same.txt")).unwrap();
    let mut memo = Memo::default();
    assert!(with_variants(&web, served(&site, &tree), &mut memo, &mut || false).unwrap().is_none());
    let made = with_variants(&web, served(&site, &tree), &mut memo, &mut || true).unwrap().expect("variants");
    assert_eq!((made.site.pages(), made.site.read_when_sent(), &made.tree), (3, (1, 1 << 40), &tree));
    // six variants, small enough to stand behind their fields, and nothing else
    assert_eq!(made.site.content().objects(), site.content().objects() + 6);
    let made = Arc::new(made.site);
    assert!(
        with_variants(&web, served(&made, &tree), &mut memo, &mut || true).unwrap().is_none(),
        "there is nothing to make"
    );
}

#[test]
fn a_file_that_was_touched_is_taken_as_it_is_and_nothing_else_is() {
    let place = Place::new();
    for name in ["linked", "written", "set back", "still"] {
        std::fs::File::create(place.root().join(name)).unwrap().set_len(1 << 30).unwrap();
    }
    place.write("held", "held");
    let web = place.web("memory = \"2M\"\ncache = \"1M\"\n");
    let first = load(&web, None, Variants::Later).unwrap().unwrap();
    let (site, tree) = (Arc::new(first.site), first.tree);
    let take =
        |site, tree| with_touched(&web, Served { site, tree, touched: &first.touched }, &Memo::default()).unwrap();
    assert!(take(&site, &tree).is_none(), "nothing was");
    std::fs::hard_link(place.root().join("linked"), place.folder.path().join("backup")).unwrap();
    std::fs::write(place.root().join("held"), "new").unwrap();
    let write = |name: &str| {
        let file = std::fs::File::options().write(true).open(place.root().join(name)).unwrap();
        let before = file.metadata().unwrap().modified().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", 5).unwrap();
        (file, before)
    };
    write("written");
    let (file, before) = write("set back");
    file.set_modified(before).unwrap();
    let second = take(&site, &tree).expect("two files");
    // the time of change tells it from what it was, whatever moved it; what was written is for a reload
    let changed = |a: &Tree, b: &Tree| -> Vec<String> {
        let pairs = a.0.iter().zip(&b.0).filter(|(a, b)| !a.print.same(&b.print));
        pairs.map(|(a, _)| String::from_utf8_lossy(&a.path).into_owned()).collect()
    };
    assert_eq!(changed(&tree, &second.tree), ["/linked", "/set back"]);
    assert_eq!(second.site.read_when_sent(), (4, 4 << 30));
    assert!(take(&Arc::new(second.site), &second.tree).is_none(), "it is as it was taken");
}

#[test]
fn a_file_just_written_counts_as_changed() {
    let place = Place::new();
    place.write("a", "x");
    let first = place.load();
    assert!(load(&place.web(""), before(&Arc::new(first.site), &first.tree), Variants::Later).unwrap().is_some());
}

#[test]
fn sizes_in_words() {
    for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")] {
        assert_eq!(size(bytes), text);
    }
}

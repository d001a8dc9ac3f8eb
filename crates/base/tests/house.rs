//! Holds the house to the table of crates in ARCHITECTURE.md: who may use whom, where unsafe code may stand, and which
//! crates never touch the world outside (files, clocks, sockets, randomness).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// One row of the table.
struct Row {
    uses: BTreeSet<String>,
    unsafe_code: Unsafe,
    pure: bool,
}

enum Unsafe {
    Forbidden,
    Anywhere,
    /// these files of src/ and no others
    In(BTreeSet<String>),
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace's folder")
}

/// The names in backquotes.
fn quoted(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(String::from).collect()
}

/// The rows of the table whose first heading is "crate": crate | what it holds | may use | unsafe | pure.
fn table() -> BTreeMap<String, Row> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let rows = text.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    let rows: BTreeMap<_, _> = rows.take_while(|line| line.starts_with('|')).map(row).collect();
    assert!(rows.len() >= 3, "the table of crates in ARCHITECTURE.md was not found");
    rows
}

fn row(line: &str) -> (String, Row) {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [name, _, uses, unsafe_code, pure] = cells[..] else { panic!("a row of five cells, not: {line}") };
    let unsafe_code = match unsafe_code {
        "no" => Unsafe::Forbidden,
        "yes" => Unsafe::Anywhere,
        files => Unsafe::In(quoted(files)),
    };
    let name = quoted(name).pop_first().unwrap_or_else(|| panic!("a crate's name in: {line}"));
    (name, Row { uses: quoted(uses), unsafe_code, pure: pure == "yes" })
}

fn crates() -> BTreeMap<String, PathBuf> {
    let folders =
        std::fs::read_dir(root().join("crates")).expect("crates/").map(|entry| entry.expect("an entry").path());
    folders
        .filter(|path| path.join("Cargo.toml").exists())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect()
}

/// The Rust files below `folder`, with paths relative to it.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.push((name, std::fs::read_to_string(&path).expect("a source file")));
            }
        }
    }
    assert!(!found.is_empty(), "no source in {}", folder.display());
    found
}

/// The code of a file: no comments, and nothing from its unit tests on (they stand last).
fn code(text: &str) -> impl Iterator<Item = &str> {
    let tests_begin = |line: &&str| !(line.starts_with("#[cfg(") && line.contains("test"));
    text.lines().take_while(tests_begin).map(|line| line.split("//").next().unwrap_or(""))
}

fn is_test_file(name: &str) -> bool {
    name.ends_with("tests.rs") || name.contains("tests/")
}

#[test]
fn every_crate_has_a_row_and_every_row_a_crate() {
    let rows: Vec<_> = table().into_keys().collect();
    let folders: Vec<_> = crates().into_keys().collect();
    assert_eq!(folders, rows, "folders of crates/ against rows of ARCHITECTURE.md");
}

#[test]
fn crates_use_only_whom_the_table_allows() {
    let table = table();
    for (name, path) in crates() {
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        let Some(used) = manifest.get("dependencies").and_then(|list| list.as_table()) else { continue };
        for dependency in used.keys().filter(|dependency| table.contains_key(*dependency)) {
            assert!(table[&name].uses.contains(dependency), "{name} may not use {dependency} (ARCHITECTURE.md)");
        }
    }
}

#[test]
fn unsafe_stands_only_where_the_table_allows() {
    let table = table();
    for (name, path) in crates() {
        let mut seen = BTreeSet::new();
        for (file, text) in sources(&path.join("src")) {
            let word =
                |line: &str| line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe");
            if code(&text).any(word) {
                seen.insert(file);
            }
        }
        match &table[&name].unsafe_code {
            Unsafe::Anywhere => {}
            Unsafe::In(files) => assert_eq!(&seen, files, "{name}: files with unsafe code"),
            Unsafe::Forbidden => {
                assert!(seen.is_empty(), "{name}: unsafe in {seen:?}");
                let entry = ["lib.rs", "main.rs"]
                    .iter()
                    .find_map(|file| std::fs::read_to_string(path.join("src").join(file)).ok());
                let entry = entry.unwrap_or_else(|| panic!("{name} has neither lib.rs nor main.rs"));
                assert!(entry.contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
            }
        }
    }
}

#[test]
fn pure_crates_do_not_touch_the_world() {
    let worldly = [
        "std::fs",
        "std::net::Udp",
        "std::net::Tcp",
        "Instant::now",
        "SystemTime",
        "std::process",
        "std::env",
        "getrandom",
    ];
    let table = table();
    for (name, path) in crates().into_iter().filter(|(name, _)| table[name].pure) {
        for (file, text) in sources(&path.join("src")).into_iter().filter(|(file, _)| !is_test_file(file)) {
            for line in code(&text) {
                let found = worldly.iter().find(|word| line.contains(*word));
                assert!(found.is_none(), "{name}/{file} reaches outside: {line}");
            }
        }
    }
}

#[test]
fn nothing_that_users_run_reads_the_folder_beside_the_repository() {
    let beside = concat!("../", "shared");
    for file in ["Makefile", "README.md"] {
        let text = std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!text.contains(beside), "{file} reads {beside}");
    }
    for (name, path) in crates() {
        for (file, text) in sources(&path) {
            assert!(!text.contains(beside), "crates/{name}/{file} reads {beside}");
        }
    }
}

#[test]
fn results_that_documents_name_are_there() {
    let folder = root().join("docs/results");
    let is_there = |name: &str| folder.join(name).is_file();
    // the first column of the table of results; a row without a name is of what is kept nowhere
    let text = std::fs::read_to_string(folder.join("README.md")).expect("docs/results/README.md");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(rows.len() > 20, "the table of results was not found");
    for name in rows.iter().flat_map(|row| quoted(row.split('|').nth(1).unwrap_or(""))) {
        assert!(is_there(&format!("{name}.md")), "docs/results/README.md names {name}, and there is no such result");
    }
    for document in
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "THREAT_MODEL.md", "CHANGELOG.md", "docs/results/README.md"]
    {
        let text = std::fs::read_to_string(root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"));
        for after in text.split("docs/results/").skip(1) {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(after.len());
            let name = after[..end].trim_end_matches('.');
            assert!(name.is_empty() || is_there(name), "{document} names docs/results/{name}, which is not there");
        }
    }
}

#[test]
fn every_fuzz_target_is_run() {
    let text =
        |file: &str| std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let targets = text("fuzz/Cargo.toml");
    let targets: Vec<&str> =
        targets.lines().filter_map(|line| line.strip_prefix("path = \"targets/")?.strip_suffix(".rs\"")).collect();
    assert!(targets.len() > 3, "{targets:?}");
    let makefile = text("Makefile");
    let run = makefile.lines().find(|line| line.contains("for target in")).expect("the loop of make fuzz");
    for target in targets {
        assert!(run.split([' ', ';']).any(|word| word == target), "make fuzz leaves {target} out");
    }
}

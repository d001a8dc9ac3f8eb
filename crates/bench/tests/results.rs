//! What docs/results/README.md says of the reports beside it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results")
}

/// The names in backticks of the sentence that begins so.
fn named(beginning: &str) -> BTreeSet<String> {
    let page = std::fs::read_to_string(folder().join("README.md")).unwrap().replace('\n', " ");
    let (_, rest) = page.split_once(beginning).unwrap_or_else(|| panic!("no '{beginning}' in the page"));
    let sentence = rest.split_once('.').unwrap().0;
    sentence.split('`').skip(1).step_by(2).map(String::from).collect()
}

/// The reports of which this holds, by name and text.
fn reports(is: impl Fn(&Path, &str) -> bool) -> BTreeSet<String> {
    let paths = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let pages = paths.filter(|path| path.extension().is_some_and(|of| of == "md") && !path.ends_with("README.md"));
    let pages = pages.filter(|path| is(path, &std::fs::read_to_string(path).unwrap()));
    pages.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn reports_of_one_round_are_named() {
    let one_round = reports(|_, text| text.contains(" 1 rounds in turn"));
    assert_eq!(named("Of one round alone, so that least, greatest and median are one figure, are"), one_round);
}

#[test]
fn reports_without_a_csv_are_named() {
    let without = reports(|path, _| !path.with_extension("csv").exists());
    assert_eq!(named("Without a CSV are those put together by hand:"), without);
}

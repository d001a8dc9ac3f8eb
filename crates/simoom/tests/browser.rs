//! A browser loads a page with images over our TCP, in the laboratory. Chromium is large, so this is not part of `make test`:
//! `make test-browser` installs it and builds this test (feature `browser`).

#![forbid(unsafe_code)]

use lab::{Lab, Process};
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Small images, beside one of a megabyte.
const IMAGES: usize = 24;

/// The page; when everything is loaded it says of how many images and with which style.
fn page() -> String {
    let mut page = String::from(
        "<!DOCTYPE html><html><head><title>page</title><link rel=\"stylesheet\" href=\"style.css\">\n\
         <script>window.onload = () => {\n\
         const whole = [...document.images].filter(it => it.complete && it.naturalWidth > 0);\n\
         document.title = `${whole.length} images, ${getComputedStyle(document.body).color}`; };</script></head><body>\n",
    );
    for n in 0..IMAGES {
        writeln!(page, "<img src=\"image-{n}.svg\">").unwrap();
    }
    page.push_str("<img src=\"large.bmp\"><img src=\"missing.png\"></body></html>\n");
    page
}

/// An uncompressed image of 512 x 512 points of 32 bits.
fn bitmap() -> Vec<u8> {
    const SIDE: u32 = 512;
    let bytes = SIDE * SIDE * 4;
    let mut file = b"BM".to_vec();
    // file header: size, two reserved, where the points begin; then the info header of 40 bytes
    for word in [54 + bytes, 0, 54, 40, SIDE, SIDE, 1 | 32 << 16, 0, bytes, 0, 0, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend((0..SIDE * SIDE).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()));
    file
}

#[test]
fn chromium_shows_a_page_with_all_its_images() {
    lab::require_programs(&["chromium", "ip", "ethtool"]);
    let lab = Lab::new().unwrap();
    let dir = tempfile::Builder::new().prefix("simoom-browser-").tempdir().unwrap();
    let site = dir.path().join("www");
    fs::create_dir(&site).unwrap();
    fs::write(site.join("index.html"), page()).unwrap();
    fs::write(site.join("style.css"), "body { color: rgb(1, 2, 3); }\n").unwrap();
    fs::write(site.join("large.bmp"), bitmap()).unwrap();
    for n in 0..IMAGES {
        let text = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{0}\"/>\n", n + 1);
        fs::write(site.join(format!("image-{n}.svg")), text).unwrap();
    }
    let mut command = lab.server().command(env!("CARGO_BIN_EXE_simoom"));
    command.arg("web").arg(&site).args(["--interface", "vs", "--listen", "198.18.0.1:80", "--access-log"]);
    command.arg(dir.path().join("log")).arg("--control").arg(dir.path().join("control"));
    let mut server = Process::spawn(command).unwrap();
    server.wait_for("serving on", PATIENCE).unwrap();
    let profile = dir.path().join("profile");
    let mut command = lab.client().command("chromium");
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", profile.display())).env("HOME", dir.path());
    command.arg("http://198.18.0.1/");
    let mut browser = Process::spawn(command).unwrap();
    let status = browser.wait(PATIENCE).unwrap();
    let said = browser.log();
    let expected = format!("<title>{} images, rgb(1, 2, 3)</title>", IMAGES + 1);
    assert!(status.success() && said.contains(&expected), "{status}: {said}");
    let done = server.stop();
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(done.success(), "{done}: {}", server.log());
    for (path, status) in [("/", 200), ("/style.css", 200), ("/large.bmp", 200), ("/missing.png", 404)] {
        assert!(log.contains(&format!("\"GET {path} HTTP/1.1\" {status} ")), "{path}: {log}");
    }
    assert_eq!(log.matches("GET /image-").count(), IMAGES, "{log}");
}

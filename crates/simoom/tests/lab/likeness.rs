//! Our answers beside nginx's, from the same directory, status by status, header by header, octet by octet. `likeness.toml` has
//! what may differ, each with the section of the RFC that leaves it to the server.

use crate::common::{PATIENCE, client, simoom};
use crate::web::{contents, curl};
use lab::{Host, Lab, Process};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use tempfile::TempDir;

/// Where ours listens, and nginx.
const OURS: &str = "198.18.0.1:80";
const THEIRS: &str = "198.18.0.1:8080";
/// When every file was changed, and the day before and after.
const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const EARLIER: &str = "Sat, 05 Nov 1994 08:49:37 GMT";
const LATER: &str = "Mon, 07 Nov 1994 08:49:37 GMT";

/// Both servers over one directory.
struct Pair {
    // the servers end before their host goes
    ours: Process,
    theirs: Process,
    lab: Lab,
    site: TempDir,
}

impl Pair {
    fn start() -> Pair {
        lab::require_programs(&["curl", "nginx"]);
        let lab = Lab::new().unwrap();
        let site = site();
        let ours = start_ours(lab.server(), site.path());
        let theirs = start_nginx(lab.server(), site.path());
        let pair = Pair { lab, ours, theirs, site };
        for at in [OURS, THEIRS] {
            let up = || pair.lab.client().run(&["curl", "-sSf", "--max-time", "5", &format!("http://{at}/")]).is_ok();
            assert!(lab::wait_until(up, PATIENCE), "{at}: {}{}", pair.ours.log(), pair.theirs.log());
        }
        pair
    }
}

/// A directory with files of several types, variants beside them, and directories with and without an index.
fn site() -> TempDir {
    let site = tempfile::Builder::new().prefix("simoom-likeness-").tempdir().unwrap();
    let page = format!("<!DOCTYPE html><title>{}</title>\n", "a page that can be made smaller ".repeat(200));
    let files: [(&str, &[u8]); 10] = [
        ("index.html", b"<!DOCTYPE html><title>index</title>\n"),
        ("page.html", page.as_bytes()),
        ("style.css", page.as_bytes()),
        ("page.html.br", b"not read as brotli here"),
        ("page.html.zst", b"not read as zstd here"),
        ("data.bin", &contents(100_000)),
        ("empty.txt", b""),
        ("a b.txt", b"a name with a space\n"),
        ("directory/index.html", b"<!DOCTYPE html><title>directory</title>\n"),
        ("bare/file.txt", b"no index beside this\n"),
    ];
    for (name, text) in files {
        let file = site.path().join("www").join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let www = site.path().join("www").display().to_string();
    let line = format!(
        "gzip -kn page.html style.css && find . -exec touch -h -d '{MODIFIED}' {{}} + && chmod -R a+rX . {www}/.."
    );
    let done = std::process::Command::new("sh").args(["-c", &line]).current_dir(&www).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    site
}

fn start_ours(host: &Host, site: &Path) -> Process {
    let mut command = simoom(host);
    command.arg("web").arg(site.join("www")).args(["--interface", "vs", "--listen", OURS]);
    command.arg("--control").arg(site.join("control"));
    let mut ours = Process::spawn(command).unwrap();
    ours.wait_for("serving on", PATIENCE).unwrap();
    ours
}

/// nginx with what ours has without being told: variants beside files, UTF-8, dates compared as RFC 9110 section 13.1.3 has it,
/// and the media types of the files here.
fn start_nginx(host: &Host, site: &Path) -> Process {
    let run = site.join("run");
    fs::create_dir(&run).unwrap();
    let mut text =
        format!("daemon off; master_process off; pid {}/pid; error_log stderr; events {{}}\n", run.display());
    text.push_str("http { access_log off; default_type application/octet-stream;\n");
    text.push_str(
        "types { text/html html; text/css css; text/plain txt; } charset utf-8; charset_types text/css text/plain;\n",
    );
    text.push_str("gzip_static on; gzip_vary on; if_modified_since before; absolute_redirect off;\n");
    for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(text, "{name}_temp_path {}/{name};", run.display()).unwrap();
    }
    let www = site.join("www");
    writeln!(text, "server {{ listen {THEIRS}; root {}; index index.html; }} }}", www.display()).unwrap();
    let file = run.join("nginx.conf");
    fs::write(&file, text).unwrap();
    host.spawn(&["nginx", "-c", file.to_str().unwrap()]).unwrap()
}

/// A difference that is allowed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    field: String,
    who: Who,
    #[serde(default)]
    cases: Vec<String>,
    #[serde(default)]
    from: u16,
    rfc: String,
    why: String,
}

/// Who has a field: one alone, or both with different values.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Who {
    Ours,
    Theirs,
    Both,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Differences {
    difference: Vec<Difference>,
}

/// An answer.
#[derive(Clone, Debug, Default)]
struct Answer {
    status: u16,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    /// The head at the beginning of `text`, and how many octets it takes.
    fn head(text: &[u8]) -> Option<(Answer, usize)> {
        let end = text.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&text[..end]).expect("a head of ASCII");
        let mut lines = head.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.1 ").expect("a status line");
        let mut answer = Answer { status: status[..3].parse().unwrap(), ..Answer::default() };
        for line in lines {
            let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("no field: {line:?}"));
            let before = answer.fields.insert(name.to_ascii_lowercase(), value.to_owned());
            assert!(before.is_none(), "{name} twice: {head}");
        }
        Some((answer, end + 4))
    }

    /// How long its body is, by RFC 9112 section 6.3.
    fn body_bytes(&self, to_head: bool) -> usize {
        if to_head || matches!(self.status, 204 | 304) {
            return 0;
        }
        self.fields.get("content-length").expect("a length").parse().unwrap()
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// The parts of a multipart answer, each with its head (RFC 2046 section 5.1.1), or the body as it is.
    fn content(&self) -> Vec<(BTreeMap<String, String>, Vec<u8>)> {
        let Some(boundary) =
            self.field("content-type").and_then(|it| it.strip_prefix("multipart/byteranges; boundary="))
        else {
            return vec![(BTreeMap::new(), self.body.clone())];
        };
        let delimiter = format!("\r\n--{boundary}");
        let whole = [b"\r\n", &self.body[..]].concat();
        let mut at: Vec<usize> = Vec::new();
        for start in 0..whole.len() {
            if whole[start..].starts_with(delimiter.as_bytes()) {
                at.push(start);
            }
        }
        let last = at.last().expect("a boundary") + delimiter.len();
        assert!(whole[last..].starts_with(b"--\r\n"), "the end of the last part");
        at.windows(2)
            .map(|pair| {
                let part = [b"HTTP/1.1 206 part", &whole[pair[0] + delimiter.len()..pair[1]]].concat();
                let (head, body) = Answer::head(&part).expect("the head of a part");
                (head.fields, part[body..].to_vec())
            })
            .collect()
    }
}

/// Sends requests on one connection and reads as many answers, fewer when the server ends it.
fn exchange(lab: &Lab, at: &str, requests: &[&str]) -> Vec<Answer> {
    let at: SocketAddr = at.parse().unwrap();
    let mut stream = lab.client().inside(|| TcpStream::connect_timeout(&at, PATIENCE)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(requests.concat().as_bytes()).unwrap();
    let (mut answers, mut text) = (Vec::new(), Vec::new());
    for request in requests {
        let mut some = [0; 65_536];
        let mut more = |text: &mut Vec<u8>| {
            // one that closed with something unread resets behind its answer
            let bytes = stream.read(&mut some).unwrap_or(0);
            text.extend_from_slice(&some[..bytes]);
            bytes > 0
        };
        let (mut answer, head_bytes) = loop {
            match Answer::head(&text) {
                Some(found) => break found,
                None if more(&mut text) => {}
                None => return answers,
            }
        };
        let bytes = head_bytes + answer.body_bytes(request.starts_with("HEAD "));
        while text.len() < bytes {
            assert!(more(&mut text), "{request:?}: {} of {bytes} bytes", text.len());
        }
        answer.body = text[head_bytes..bytes].to_vec();
        text.drain(..bytes);
        let last = answer.field("connection") == Some("close");
        answers.push(answer);
        if last {
            while more(&mut text) {}
            break;
        }
    }
    assert!(text.is_empty(), "{} bytes behind the last answer to {requests:?}", text.len());
    answers
}

/// Compares, and remembers which differences were needed.
struct Judge {
    allowed: Vec<Difference>,
    used: BTreeSet<usize>,
    complaints: String,
    cases: usize,
}

impl Judge {
    fn new() -> Judge {
        let allowed: Differences = toml::from_str(include_str!("likeness.toml")).expect("likeness.toml");
        for entry in &allowed.difference {
            assert!(entry.rfc.starts_with("RFC ") && !entry.why.is_empty(), "{entry:?}");
        }
        Judge { allowed: allowed.difference, used: BTreeSet::new(), complaints: String::new(), cases: 0 }
    }

    /// Notes a difference, as one that is needed or as one that is not allowed.
    fn differs(&mut self, case: &str, status: u16, field: &str, who: Who, what: &str) {
        let is = |entry: &Difference| {
            entry.field == field
                && entry.who == who
                && status >= entry.from
                && (entry.cases.is_empty() || entry.cases.iter().any(|name| name == case))
        };
        match self.allowed.iter().position(is) {
            Some(at) => _ = self.used.insert(at),
            None => writeln!(self.complaints, "{case}: {field}: {who:?}: {what}").unwrap(),
        }
    }

    fn compare(&mut self, case: &str, ours: &[Answer], theirs: &[Answer]) {
        self.cases += 1;
        if ours.len() != theirs.len() {
            writeln!(self.complaints, "{case}: {} and {} answers", ours.len(), theirs.len()).unwrap();
        }
        for (ours, theirs) in ours.iter().zip(theirs) {
            if ours.status != theirs.status {
                let what = format!("{} and {}", ours.status, theirs.status);
                // another status is another answer
                self.differs(case, ours.status, "status", Who::Both, &what);
                continue;
            }
            self.compare_fields(case, ours, theirs);
            if ours.content() != theirs.content() {
                let what = format!("{} and {} octets", ours.body.len(), theirs.body.len());
                self.differs(case, ours.status, "body", Who::Both, &what);
            }
        }
    }

    fn compare_fields(&mut self, case: &str, ours: &Answer, theirs: &Answer) {
        let multipart = |answer: &Answer| answer.content().len() > 1;
        let names: BTreeSet<&String> = ours.fields.keys().chain(theirs.fields.keys()).collect();
        for name in names {
            let (first, second) = (ours.field(name), theirs.field(name));
            let who = match (first, second) {
                (first, second) if first == second => continue,
                // a second may have passed (RFC 9110 section 5.6.7)
                (Some(first), Some(second)) if name == "date" && first.len() == second.len() => continue,
                // boundaries, and a line end before the first, are in both (RFC 2046 section 5.1.1)
                _ if multipart(ours) && multipart(theirs) && ["content-type", "content-length"].contains(&&**name) => {
                    continue;
                }
                (Some(_), None) => Who::Ours,
                (None, Some(_)) => Who::Theirs,
                _ => Who::Both,
            };
            self.differs(case, ours.status, name, who, &format!("{first:?} and {second:?}"));
        }
    }

    fn finish(self, least: usize) {
        let unused = self.allowed.iter().enumerate().filter(|(at, _)| !self.used.contains(at));
        let unused: Vec<&Difference> = unused.map(|(_, entry)| entry).collect();
        assert!(self.complaints.is_empty(), "not in likeness.toml:\n{}", self.complaints);
        assert!(unused.is_empty(), "in likeness.toml and not needed: {unused:#?}");
        assert!(self.cases >= least, "{} cases", self.cases);
    }
}

/// One request with these further fields.
fn ask(line: &str, fields: &[&str]) -> String {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    format!("{line} HTTP/1.1\r\nHost: lab\r\n{fields}\r\n")
}

/// A case's name and its requests, which go out at once on one connection; `{etag}` is the tag of data.bin as each server has it.
fn cases() -> Vec<(&'static str, Vec<String>)> {
    let one = |name, line: &str, fields: &[&str]| (name, vec![ask(line, fields)]);
    let data = "GET /data.bin";
    let since = |name: &str, date: &str| format!("{name}: {date}");
    let long = format!("GET /{}", "x".repeat(9000));
    let wide = format!("X-Wide: {}", "x".repeat(20_000));
    let mut cases = vec![
        one("index", "GET /", &[]),
        one("page", "GET /page.html", &[]),
        one("style", "GET /style.css", &[]),
        one("data", data, &[]),
        one("empty", "GET /empty.txt", &[]),
        one("escape", "GET /a%20b.txt", &[]),
        one("escape-plain", "GET /%69ndex.html", &[]),
        one("query", "GET /index.html?a=b&c", &[]),
        one("slashes", "GET //directory///index.html", &[]),
        one("dots", "GET /directory/../index.html", &[]),
        one("climb", "GET /../index.html", &[]),
        one("climb-escaped", "GET /%2e%2e/index.html", &[]),
        one("absolute", "GET http://lab/index.html", &[]),
        one("missing", "GET /missing", &[]),
        one("directory", "GET /directory", &[]),
        one("directory-query", "GET /directory?a=b", &[]),
        one("directory-slash", "GET /directory/", &[]),
        one("bare", "GET /bare/", &[]),
        one("head", "HEAD /data.bin", &[]),
        one("head-missing", "HEAD /missing", &[]),
        one("head-directory", "HEAD /directory", &[]),
        one("post", "POST /index.html", &["Content-Length: 0"]),
        one("delete", "DELETE /index.html", &[]),
        one("unknown-method", "BREW /index.html", &[]),
        one("options", "OPTIONS /index.html", &[]),
        one("options-server", "OPTIONS *", &[]),
        one("gzip", "GET /page.html", &["Accept-Encoding: gzip"]),
        one("gzip-only", "GET /style.css", &["Accept-Encoding: deflate, gzip, br, zstd"]),
        one("gzip-refused", "GET /page.html", &["Accept-Encoding: gzip;q=0"]),
        one("gzip-head", "HEAD /style.css", &["Accept-Encoding: gzip"]),
        one("gzip-range", "GET /style.css", &["Accept-Encoding: gzip", "Range: bytes=1-10"]),
        one("all-codings", "GET /page.html", &["Accept-Encoding: deflate, gzip, br, zstd"]),
        one("range", data, &["Range: bytes=0-99"]),
        one("range-middle", data, &["Range: bytes=5000-6000"]),
        one("range-rest", data, &["Range: bytes=99990-"]),
        one("range-last", data, &["Range: bytes=-1"]),
        one("range-all", data, &["Range: bytes=0-"]),
        one("range-long", data, &["Range: bytes=99990-200000"]),
        one("range-too-long-a-tail", data, &["Range: bytes=-200000"]),
        one("ranges", data, &["Range: bytes=0-0,-1"]),
        one("ranges-three", data, &["Range: bytes=0-9, 100-199, 5000-5009"]),
        one("ranges-one-good", data, &["Range: bytes=0-9,200000-"]),
        one("range-beyond", data, &["Range: bytes=100000-"]),
        one("range-unit", data, &["Range: lines=1-2"]),
        one("range-backwards", data, &["Range: bytes=9-5"]),
        one("range-of-nothing", "GET /empty.txt", &["Range: bytes=0-0"]),
        one("range-head", "HEAD /data.bin", &["Range: bytes=0-9"]),
        one("if-range", data, &["Range: bytes=0-9", "If-Range: {etag}"]),
        one("if-range-other", data, &["Range: bytes=0-9", "If-Range: \"other\""]),
        one("if-range-date", data, &["Range: bytes=0-9", &since("If-Range", MODIFIED)]),
        one("if-range-later", data, &["Range: bytes=0-9", &since("If-Range", LATER)]),
        one("none-match", data, &["If-None-Match: {etag}"]),
        one("none-match-weak", data, &["If-None-Match: W/{etag}"]),
        one("none-match-list", data, &["If-None-Match: \"a\", {etag}"]),
        one("none-match-any", data, &["If-None-Match: *"]),
        one("none-match-other", data, &["If-None-Match: \"a\""]),
        one("none-match-head", "HEAD /data.bin", &["If-None-Match: {etag}"]),
        one("match", data, &["If-Match: {etag}"]),
        one("match-other", data, &["If-Match: \"a\""]),
        one("match-any", data, &["If-Match: *"]),
        one("match-range", data, &["If-Match: {etag}", "Range: bytes=0-9"]),
        one("modified-since", data, &[&since("If-Modified-Since", MODIFIED)]),
        one("modified-since-earlier", data, &[&since("If-Modified-Since", EARLIER)]),
        one("modified-since-later", data, &[&since("If-Modified-Since", LATER)]),
        one("modified-since-garbage", data, &["If-Modified-Since: yesterday"]),
        one("unmodified-since", data, &[&since("If-Unmodified-Since", MODIFIED)]),
        one("unmodified-since-earlier", data, &[&since("If-Unmodified-Since", EARLIER)]),
        one("unmodified-since-later", data, &[&since("If-Unmodified-Since", LATER)]),
        one("tag-above-date", data, &["If-None-Match: \"a\"", &since("If-Modified-Since", LATER)]),
        one("match-above-date", data, &["If-Match: {etag}", &since("If-Unmodified-Since", EARLIER)]),
        one("condition-before-range", data, &["If-None-Match: {etag}", "Range: bytes=0-9"]),
        one("condition-of-missing", "GET /missing", &["If-None-Match: *"]),
        one("close", "GET /", &["Connection: close"]),
        one("target-too-long", &long, &[]),
        one("head-too-wide", "GET /", &[&wide]),
        one("gzip-not-modified", "GET /style.css", &["Accept-Encoding: gzip", &since("If-Modified-Since", MODIFIED)]),
    ];
    let plain = |name, text: &str| (name, vec![text.to_owned()]);
    cases.extend([
        plain("http-1.0", "GET / HTTP/1.0\r\n\r\n"),
        plain("http-1.0-host", "GET /data.bin HTTP/1.0\r\nHost: lab\r\n\r\n"),
        plain("http-1.0-keep", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        plain("http-1.0-missing", "GET /missing HTTP/1.0\r\n\r\n"),
        plain("http-2.0", "GET / HTTP/2.0\r\nHost: lab\r\n\r\n"),
        plain("no-host", "GET / HTTP/1.1\r\n\r\n"),
        plain("two-hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        plain("two-lengths", "GET / HTTP/1.1\r\nHost: lab\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        plain(
            "both-framings",
            "GET / HTTP/1.1\r\nHost: lab\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        plain("space-before-colon", "GET / HTTP/1.1\r\nHost : lab\r\n\r\n"),
    ]);
    let many = ["GET /", "HEAD /data.bin", "GET /missing", "GET /data.bin", "GET /directory"];
    cases.push(("pipeline", many.iter().map(|line| ask(line, &[])).collect()));
    let with_body = format!("{}hello", ask("GET /", &["Content-Length: 5"]));
    let with_chunks = format!("{}5\r\nhello\r\n0\r\n\r\n", ask("GET /", &["Transfer-Encoding: chunked"]));
    cases.push(("bodies", vec![with_body, with_chunks, ask("GET /empty.txt", &[])]));
    cases.push(("pipeline-close", vec![ask("GET /", &["Connection: close"]), ask("GET /data.bin", &[])]));
    cases
}

#[test]
fn answers_are_nginxs_but_where_the_rfcs_leave_it_open() {
    let pair = Pair::start();
    let mut judge = Judge::new();
    let tag = |at: &str| {
        let answers = exchange(&pair.lab, at, &[&ask("HEAD /data.bin", &[])]);
        answers[0].field("etag").expect("a tag").to_owned()
    };
    let tags = [OURS, THEIRS].map(tag);
    for (case, requests) in cases() {
        let [ours, theirs] = [(OURS, &tags[0]), (THEIRS, &tags[1])].map(|(at, tag)| {
            let requests: Vec<String> = requests.iter().map(|request| request.replace("{etag}", tag)).collect();
            exchange(&pair.lab, at, &requests.iter().map(String::as_str).collect::<Vec<_>>())
        });
        judge.compare(case, &ours, &theirs);
    }
    judge.finish(85);
}

#[test]
fn curl_gets_the_same_from_both() {
    let pair = Pair::start();
    let dir = tempfile::tempdir().unwrap();
    let www = pair.site.path().join("www");
    for at in [OURS, THEIRS] {
        let url = |path: &str| format!("http://{at}/{path}");
        // a download that goes on where it ended, and one that has all of it
        let half = dir.path().join("half");
        fs::write(&half, &contents(100_000)[..30_000]).unwrap();
        for _ in 0..2 {
            let file = half.to_str().unwrap();
            let args = ["curl", "-gsS", "-C", "-", "-o", file, &url("data.bin")];
            // what is there already is answered with 416; curl takes that for done from 7.85 on
            let done = pair.lab.client().run(&args);
            assert!(done.is_ok(), "{at}: {done:?}");
            assert!(fs::read(&half).unwrap() == contents(100_000), "{at}");
        }
        // the coding is undone by curl; it takes brotli first where it may
        assert_eq!(curl(&pair.lab, &["--compressed", &url("style.css")]), fs::read(www.join("style.css")).unwrap());
        let raw = curl(&pair.lab, &["--raw", "-H", "Accept-Encoding: gzip", &url("style.css")]);
        assert_eq!(raw, fs::read(www.join("style.css.gz")).unwrap());
        // newer than then, and not newer than then; older
        assert_eq!(curl(&pair.lab, &["-z", EARLIER, &url("index.html")]), fs::read(www.join("index.html")).unwrap());
        assert_eq!(curl(&pair.lab, &["-z", LATER, &url("index.html")]), b"");
        let code = |since: &str| {
            let line = format!("curl -gsS -o /dev/null -w %{{http_code}} {}", url("index.html"));
            let mut words: Vec<&str> = line.split(' ').collect();
            words.extend(["-z", since]);
            pair.lab.client().run(&words).unwrap()
        };
        assert_eq!((code(&format!("-{LATER}")), code(&format!("-{EARLIER}"))), ("200".into(), "412".into()));
        let ends = String::from_utf8_lossy(&curl(&pair.lab, &["-r", "0-0,-1", &url("index.html")])).into_owned();
        for part in
            ["\r\n\r\n<\r\n--", "\r\n\r\n\n\r\n--", "Content-Range: bytes 0-0/36", "Content-Range: bytes 35-35/36"]
        {
            assert!(ends.contains(part), "{at}: {part:?} in {ends}");
        }
        assert!(client(&pair.lab, &format!("curl -gsS -I {}", url("data.bin"))).contains("Content-Length: 100000"));
        assert_eq!(
            curl(&pair.lab, &["--http1.0", "-L", &url("directory")]),
            fs::read(www.join("directory/index.html")).unwrap()
        );
    }
}

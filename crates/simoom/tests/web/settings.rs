//! The configuration file is read again by a reload: zones and hosts are those that it names by now.

use super::*;
use common::Server;

const SECOND: &str =
    "$ORIGIN second.example.\n$TTL 60\n@ SOA ns host 1 2 3 4 5\n@ NS ns\nns A 192.0.2.1\nwww A 192.0.2.7\n";

/// A server of a file that says so of zones, the web and its hosts, and where it answers.
struct Configured {
    place: Place,
    server: Server,
    dns: SocketAddr,
    web: SocketAddr,
    head: String,
}

const FIRST: [&str; 3] = ["[[dns.zone]]\nfile = \"example.zone\"\n", "", "[[web.host]]\nroot = \"site\"\n"];

impl Configured {
    fn new() -> Configured {
        let place = Place::new();
        site(&place);
        place.write("second.zone", SECOND);
        let [dns, web] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], common::free_port())));
        let head = format!("[dataplane]\nlisten = [\"{dns}\"]\n[control]\npath = \"{}\"\n", place.path("control"));
        write(&place, &head, web, FIRST);
        let server = Server::start_config(&place, &place.path("s.toml"));
        Configured { place, server, dns, web, head }
    }

    fn say(&self, parts: [&str; 3]) {
        write(&self.place, &self.head, self.web, parts);
    }

    fn reload(&self) -> String {
        let output = self.server.ctl(&["reload"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    fn page(&self, host: &str, path: &str) -> String {
        let port = self.web.port();
        curl(&["--resolve", &format!("{host}:{port}:127.0.0.1"), &format!("http://{host}:{port}{path}")]).0
    }
}

fn write(place: &Place, head: &str, web: SocketAddr, [zones, more, hosts]: [&str; 3]) {
    let log = place.path("log");
    let web = format!(
        "[web]\nlisten = [\"{web}\"]\naccess-log = \"{log}\"\nlog-format = \"json\"\nwatch = true\nsettle = 50\n"
    );
    place.write("s.toml", &format!("{head}{zones}{web}{more}{hosts}"));
}

#[test]
fn a_reload_takes_zones_and_hosts_that_the_settings_name_by_now() {
    let on = Configured::new();
    assert_eq!(common::ask(on.dns, "www.second.example").0, 5, "nobody has it yet");
    assert_eq!(on.page("b.example", "/"), "<h1>hello</h1>", "the first host has every name");
    on.say([
        "# lines that move are no change\n[[dns.zone]]\nfile = \"second.zone\"\n",
        "server = \"other\"\n",
        "[[web.host]]\nroot = \"site\"\n[[web.host]]\nnames = [\"b.example\"]\nroot = \"site/sub\"\n\
         [[web.host.redirect]]\nfrom = \"/old\"\nto = \"/new\"\n",
    ]);
    let said = on.reload();
    assert!(said.starts_with("reloaded 1 zone, ") && said.contains(" pages, ") && !said.contains("restart"), "{said}");
    assert_eq!(common::ask(on.dns, "www.second.example"), (0, Some([192, 0, 2, 7])));
    assert_eq!(common::ask(on.dns, "www.example.com").0, 5, "it went");
    assert_eq!(
        (on.page("a.example", "/").as_str(), on.page("b.example", "/").as_str()),
        ("<h1>hello</h1>", "<h1>below</h1>")
    );
    let url = format!("http://127.0.0.1:{}/old", on.web.port());
    let redirect = curl(&["-i", "-H", "Host: b.example", &url]).0;
    assert!(redirect.contains("Location: /new\r\n") && redirect.contains("Server: other\r\n"), "{redirect}");
    let logged = || {
        std::fs::read_to_string(on.place.path("log"))
            .unwrap()
            .contains("\"target\":\"/old\",\"version\":\"1.1\",\"host\":\"b.example\"")
    };
    common::until(logged, || std::fs::read_to_string(on.place.path("log")).unwrap());
    // a rule alone, with no file that has changed
    on.say(["[[dns.zone]]\nfile = \"second.zone\"\n", "server = \"third\"\n", FIRST[2]]);
    on.reload();
    assert_eq!(on.page("b.example", "/"), "<h1>hello</h1>");
    assert!(curl(&["-i", &url]).0.contains("Server: third\r\n"));
}

#[test]
fn a_new_root_is_watched_and_an_old_one_is_not() {
    let on = Configured::new();
    std::fs::create_dir(on.place.path("other")).unwrap();
    on.place.write("other/index.html", "first");
    on.say([FIRST[0], "", "[[web.host]]\nroot = \"other\"\n"]);
    on.reload();
    assert_eq!(on.page("a.example", "/"), "first");
    on.place.write("other/index.html", "second");
    common::until(|| on.page("a.example", "/") == "second", || format!("{:#?}", on.server.log()));
    let reloads = || -> u64 {
        let stats = text(&on.server.ctl(&["stats"]).stdout);
        let counts = stats.lines().filter(|line| line.starts_with("reloads_total "));
        counts.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum()
    };
    // until what the reload began has come to rest
    let mut before = 0;
    common::until(
        || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            std::mem::replace(&mut before, reloads()) == reloads()
        },
        || format!("{:#?}", on.server.log()),
    );
    on.place.write("site/index.html", "nobody looks");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(reloads(), before, "{:#?}", on.server.log());
}

#[test]
fn what_a_restart_takes_is_said_and_what_is_wrong_keeps_everything() {
    let on = Configured::new();
    on.say([FIRST[0], "keep-alive = 7\n", FIRST[2]]);
    let said = on.reload();
    assert!(said.ends_with("web.keep-alive has changed: a restart takes it\n"), "{said}");
    on.place.zone("192.0.2.9");
    let refused = |said: [&str; 3], line: &str| {
        on.say(said);
        let output = on.server.ctl(&["reload"]);
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr).replace(&on.place.path(""), "DIR/");
        assert!(
            said.contains("not reloaded, the old zones and the old content go on serving") && said.contains(line),
            "{said}"
        );
        assert_eq!(common::ask(on.dns, "www.example.com").1, Some([192, 0, 2, 2]), "the old zone");
    };
    refused([FIRST[0], "wach = true\n", FIRST[2]], "DIR/s.toml:13:1: unknown key `wach`");
    refused(
        ["[[dns.zone]]\nfile = \"none\"\n", "", FIRST[2]],
        "DIR/s.toml:5:1: DIR/none: cannot be read: No such file or directory",
    );
    refused([FIRST[0], "", "[[web.host]]\nroot = \"none\"\n"], "DIR/none: cannot be read: No such file or directory");
    std::fs::remove_file(on.place.path("s.toml")).unwrap();
    let output = on.server.ctl(&["reload"]);
    let said = text(&output.stderr);
    assert!(said.contains("s.toml: cannot be read: No such file or directory; check the file"), "{said}");
    on.say(FIRST);
    on.reload();
    assert_eq!(common::ask(on.dns, "www.example.com").1, Some([192, 0, 2, 9]));
}

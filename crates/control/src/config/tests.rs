use super::*;
use crate::words::{LogFormat, QuestionCompression, Tier, Transmit, WebTransmit};

fn settings(text: &str) -> Settings {
    from_text("/etc/simoom/simoom.toml", text).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    match from_text("s.toml", text) {
        Ok(settings) => panic!("accepted: {settings:?}"),
        Err(error) => {
            assert_eq!(error.status(), 2);
            error.to_string()
        }
    }
}

const ZONE: &str = "[[dns.zone]]\norigin = \"example.com\"\nfile = \"example.com.zone\"\n";

#[test]
fn defaults_serve_port_53_of_every_address_on_sockets() {
    let settings = settings(ZONE);
    let dns = settings.dns.unwrap();
    assert_eq!(dns.listen, ["[::]:53".parse().unwrap(), "0.0.0.0:53".parse().unwrap()]);
    assert_eq!((settings.backend, settings.mode, settings.idle), (Backend::Sockets, Mode::Auto, Idle::Adaptive));
    assert_eq!((settings.batch, dns.edns_size, dns.rrl_rate), (32, 1232, None));
    assert!(dns.cookies && settings.web.is_none());
    assert_eq!((dns.tcp_memory_bytes, dns.tcp_backlog), (64 << 20, 1024));
    assert_eq!((dns.transmit, dns.tier), (Transmit::Inplace, Tier::Auto));
}

#[test]
fn a_key_value_store_has_memcacheds_port_and_limits() {
    let settings_of = |text: &str| settings(text).kv.unwrap();
    let kv = settings_of("[kv]\n");
    assert_eq!(kv.listen, ["[::]:11211".parse().unwrap(), "0.0.0.0:11211".parse().unwrap()]);
    assert_eq!((kv.memory_bytes, kv.item_bytes, kv.idle_s, kv.send_timeout_s), (64 << 20, 1 << 20, None, 60));
    assert!(kv.listen_by_default && !kv.udp);
    let kv = settings_of(
        "[kv]\nlisten = [\"192.0.2.1:1\"]\nmemory = \"1G\"\nitem-size = \"8M\"\nidle-timeout = 9\nudp = true\n",
    );
    assert_eq!((kv.memory_bytes, kv.item_bytes, kv.idle_s), (1 << 30, 8 << 20, Some(9)));
    assert!(!kv.listen_by_default && kv.udp && !kv.shared_nothing);
    assert!(settings_of("[kv]\nshared-nothing = true\n").shared_nothing);
    for (text, line) in [
        ("[kv]\nmemory = \"1M\"\n", "s.toml:2:10: too little to store anything in; give at least 4M"),
        ("[kv]\nitem-size = \"33M\"\n", "s.toml:2:13: give 1K to 64M, and no more than half of the memory"),
        (
            "[dataplane]\nlisten = [\"192.0.2.1:7\"]\n[kv]\n",
            "s.toml:2:11: dataplane.listen is for DNS, and there is no [dns]; move it to listen of [kv]",
        ),
    ] {
        assert_eq!(refused(text), line, "{text}");
    }
}

#[test]
fn echo_listens_on_port_7_of_every_address_and_is_careful() {
    let settings_of = |text: &str| settings(text).echo.unwrap();
    let echo = settings_of("[echo]\n");
    assert_eq!(echo.listen, ["[::]:7".parse().unwrap(), "0.0.0.0:7".parse().unwrap()]);
    assert!(echo.listen_by_default && !echo.any_source_port);
    let echo = settings_of("[echo]\nlisten = [\"192.0.2.1:7007\"]\nany-source-port = true\n");
    assert_eq!(echo.listen, ["192.0.2.1:7007".parse().unwrap()]);
    assert!(!echo.listen_by_default && echo.any_source_port);
    for (text, line) in [
        (
            "[dataplane]\nlisten = [\"192.0.2.1:7\"]\n[echo]\n",
            "s.toml:2:11: dataplane.listen is for DNS, and there is no [dns]; move it to listen of [echo]",
        ),
        (
            "[echo]\nlisten = [\"192.0.2.1:7\", \"192.0.2.1:7\"]\n",
            "s.toml:2:26: 192.0.2.1:7 is given twice; it stands at s.toml:2:11 already; remove one",
        ),
        ("[echo]\ncolour = 1\n", "s.toml:2:1: unknown key `colour`; known here: `listen`, `any-source-port`, `place`"),
    ] {
        assert_eq!(refused(text), line);
    }
}

#[test]
fn an_interface_means_af_xdp() {
    assert_eq!(settings(&format!("[dataplane]\ninterface = [\"e0\"]\n{ZONE}")).backend, Backend::Xdp);
    let asked = settings(&format!("[dataplane]\ninterface = [\"e0\"]\nbackend = \"auto\"\n{ZONE}"));
    assert_eq!(asked.backend, Backend::Auto);
}

#[test]
fn zone_files_are_relative_to_the_configuration() {
    let text = "[[dns.zone]]\nfile = \"zones/a\"\n[[dns.zone]]\norigin = \"b\"\nfile = \"/srv/b\"\n";
    let zones = settings(text).dns.unwrap().zones;
    assert_eq!(zones[0].file, "/etc/simoom/zones/a");
    assert_eq!((zones[1].file.as_str(), zones[1].origin.as_deref()), ("/srv/b", Some("b")));
}

#[test]
fn every_word_of_the_file_is_read() {
    let text = r#"
[dataplane]
interface = ["e0"]
listen = ["192.0.2.1:53", "[2001:db8::1]:53"]
own = ["192.0.2.7/24"]
backend = "xdp"
mode = "copy"
cpus = [0, 2]
batch = 16
idle = "spin"
busy-poll = 50
accept = "shared"
receive = "per-core"
balance = "steal"
flow-groups = 512
slow-after = 25
rss-key = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa"
rss-table = "keep"
allow = ["192.0.2.0/24"]
deny = ["198.51.100.0/24"]
[dns]
question-compression = "accept"
cookie-secret = "secrets"
nsid = "a"
version-string = "b"
id-string = "c"
edns-size = 1400
transmit = "precopy"
tier = "xdp"
driver-names = 70000
tcp-connections = 7
tcp-idle = 3
tcp-memory = 2
tcp-backlog = 9
[dns.rrl]
rate = 200
slip = 3
exempt = ["192.0.2.0/24"]
[[dns.zone]]
file = "x"
[control]
path = "/tmp/c"
metrics = "127.0.0.1:9153"
user = "nobody"
group = "nogroup"
"#;
    let settings = settings(text);
    assert_eq!(settings.cpus, Some(vec![0, 2]));
    assert_eq!((settings.batch, settings.idle, settings.busy_poll_us), (16, Idle::Spin, 50));
    assert_eq!((settings.accept, settings.receive), (Spread::Shared, Spread::PerCore));
    assert_eq!((settings.balance, settings.flow_groups), (Some(Balance::Steal), 512));
    assert_eq!(settings.slow_after, std::time::Duration::from_millis(25));
    assert_eq!(settings.rss_table, RssTable::Keep);
    assert_eq!(settings.rss_key.map(|key| key.to_string().len()), Some(40 * 3 - 1));
    assert_eq!((settings.mode, settings.own.len()), (Mode::Copy, 1));
    let dns = &settings.dns.unwrap();
    assert_eq!((settings.allow.len(), settings.deny.len(), dns.listen.len()), (1, 1, 2));
    assert_eq!((dns.rrl_rate, dns.rrl_slip, dns.edns_size), (Some(200), 3, 1400));
    assert_eq!(dns.rrl_exempt.len(), 1);
    assert_eq!((dns.tcp_connections, dns.tcp_idle_s, dns.cookies), (7, 3, true));
    assert_eq!((dns.tcp_memory_bytes, dns.tcp_backlog), (2 << 20, 9));
    assert_eq!(dns.cookie_secret.as_deref(), Some("/etc/simoom/secrets"));
    assert_eq!(dns.transmit, Transmit::Precopy);
    assert_eq!((dns.tier, dns.driver_names), (Tier::Xdp, 70_000));
    assert_eq!(dns.question_compression, QuestionCompression::Accept);
    let texts = [&dns.nsid, &dns.version_string, &dns.id_string].map(|text| text.as_deref());
    assert_eq!(texts, [Some("a"), Some("b"), Some("c")]);
    assert_eq!(settings.control.as_deref(), Some(Path::new("/tmp/c")));
    assert_eq!((settings.user.as_deref(), settings.group.as_deref()), (Some("nobody"), Some("nogroup")));
    assert_eq!(settings.metrics, Some("127.0.0.1:9153".parse().unwrap()));
}

#[test]
fn errors_name_their_place_and_the_mend() {
    let cases: &[(&str, &str)] = &[
        ("", "s.toml: no service; add [[dns.zone]] with origin and file, or [web] with root, or [kv], or [echo]"),
        ("[dns]\n", "s.toml: no zone; add [[dns.zone]] with origin and file"),
        (
            "[control]\ncolour = 1\n",
            "s.toml:2:1: unknown key `colour`; known here: `path`, `metrics`, `user`, `group`, `app-user`, `sandbox`, `supervise`",
        ),
        (
            "[wbe]\n",
            "s.toml:1:2: unknown key `wbe`; known here: `dataplane`, `dns`, `web`, `kv`, `echo`, `app`, `control`",
        ),
        ("[[dns.zone]]\norigin = \"a\"\n", "s.toml:1:1: `file` is missing; add it"),
        (
            "[dataplane]\ninterface = [\"e0\", \"e1\"]\nown = [\"192.0.2.7/24\"]\n[[dns.zone]]\nfile = \"z\"\n",
            "s.toml:3:8: with several interfaces it is not clear whose 192.0.2.7/24 is; start one server for each",
        ),
        ("[dataplane]\nbatch = 0\n", "s.toml:2:9: `0` is not a whole number from 1 to 64"),
        ("[dataplane]\nidle = \"lazy\"\n", "s.toml:2:8: `lazy` is none of spin, adaptive, block"),
        (
            "[dataplane]\nlisten = [\"127.0.0.1:53\", \"127.0.0.1\"]\n",
            "s.toml:2:10: `127.0.0.1` is not ADDR:PORT; write it as 192.0.2.1:53 or [2001:db8::1]:53",
        ),
        (
            "[dataplane]\nlisten = \"127.0.0.1:53\"\n",
            "s.toml:2:10: invalid type: string \"127.0.0.1:53\", expected a sequence",
        ),
        ("[dns]\ntransmit = \"gather\"\n", "s.toml:2:12: `gather` is none of inplace, copy, precopy"),
        ("[dns]\ncookies = \"maybe\"\n", "s.toml:2:11: `maybe` is neither on nor off"),
    ];
    for (text, line) in cases {
        assert_eq!(refused(text), *line, "{text}");
    }
}

#[test]
fn a_broken_file_is_one_line() {
    for text in ["[dns", "a = ", "= 1", "[dns]\nx = \"\n", "\u{0}"] {
        let line = refused(text);
        assert!(line.starts_with("s.toml:") && !line.contains('\n'), "{line}");
    }
}

#[test]
fn contradictions_are_refused_all_at_once() {
    let text = format!(
        "[dataplane]\nlisten = [\"127.0.0.1:53\", \"[::1]:53\", \"127.0.0.1:53\"]\nbackend = \"xdp\"\n\
         interface = []\nallow = [\"10.0.0.0/8\"]\ndeny = [\"10.0.0.0/8\"]\n{ZONE}"
    );
    assert_eq!(
        refused(&text).lines().collect::<Vec<_>>(),
        [
            "s.toml:2:39: 127.0.0.1:53 is given twice; it stands at s.toml:2:11 already; remove one",
            "s.toml: dataplane.backend = \"xdp\": needs an interface; add --interface IF",
            "s.toml: dataplane.deny: 10.0.0.0/8 is allowed too; remove one",
        ]
    );
    let own = format!("[dataplane]\nown = [\"192.0.2.7\"]\n{ZONE}");
    assert_eq!(
        refused(&own),
        "s.toml:2:8: 192.0.2.7/32 needs AF_XDP; add --interface IF or give the address to the kernel"
    );
    assert!(!settings(&format!("[dns]\ncookies = false\n{ZONE}")).dns.unwrap().cookies);
    let off = format!("[dns]\ncookies = false\ncookie-secret = \"x\"\n{ZONE}");
    assert_eq!(refused(&off), "s.toml: dns.cookie-secret: cookies are off; remove one of the two");
    let long = format!("[dns]\nnsid = \"{}\"\n{ZONE}", "x".repeat(256));
    assert_eq!(refused(&long), "s.toml: dns.nsid: 256 bytes; give 1 to 255");
}

#[test]
fn a_tier_that_cannot_be_had_is_refused() {
    let given = |dataplane: &str, tier: &str| format!("[dataplane]\n{dataplane}\n[dns]\ntier = \"{tier}\"\n{ZONE}");
    const XDP: &str = "interface = [\"e0\"]";
    for (dataplane, tier, why) in [
        ("", "driver", "needs AF_XDP; add --interface IF"),
        ("", "xdp", "needs AF_XDP; add --interface IF"),
        ("interface = [\"e0\"]\nbackend = \"sockets\"", "driver", "needs AF_XDP; add --interface IF"),
        (
            "interface = [\"e0\"]\nown = [\"192.0.2.7/24\"]",
            "driver",
            "the driver has no --own addresses; leave one of the two out",
        ),
        (
            "interface = [\"e0\"]\nown = [\"192.0.2.7/24\"]",
            "sockets",
            "kernel sockets cannot serve --own addresses; leave one of the two out",
        ),
        (
            "interface = [\"e0\"]\ndeny = [\"192.0.2.7/32\"]",
            "sockets",
            "kernel sockets cannot apply --allow and --deny; leave it out",
        ),
    ] {
        assert_eq!(refused(&given(dataplane, tier)), format!("s.toml: dns.tier = \"{tier}\": {why}"), "{dataplane}");
    }
    for (dataplane, tier) in
        [(XDP, "driver"), (XDP, "xdp"), (XDP, "sockets"), (XDP, "auto"), ("", "sockets"), ("", "auto")]
    {
        settings(&given(dataplane, tier));
    }
}

#[test]
fn the_command_line_names_its_options() {
    let dataplane = DataplaneOptions {
        listen: vec!["127.0.0.1:53".parse().unwrap(), "127.0.0.1:53".parse().unwrap()],
        interface: vec!["an-interface-name-too-long".into()],
        ..Default::default()
    };
    let zone = ["a=b".parse().unwrap()];
    let error = from_command_line(&zone, &dataplane, &DnsOptions::default(), &ControlOptions::default()).unwrap_err();
    assert_eq!(
        error.lines(),
        [
            "--listen: 127.0.0.1:53 is given twice; remove one",
            "--interface: `an-interface-name-too-long` cannot be an interface's name; see `ip link`",
        ]
    );
}

#[test]
fn a_web_service_with_hosts() {
    let text = r#"
[web]
listen = ["127.0.0.1:8080"]
server = ""
access-log = "access.log"
log-format = "json"
memory = "64M"
connections = 100
per-source = 10
drain = 5
request-timeout = 3
keep-alive = 4
send-timeout = 6
transmit = "offload"
proxy-protocol = ["127.0.0.0/8"]
forwarded = ["10.0.0.0/8", "::1"]
[[web.host]]
root = "site"
[[web.host]]
names = ["a.example", "*.b.example"]
root = "/srv/b"
index = ["i.html"]
listing = true
charset = "latin1"
types = { md = "text/markdown" }
precompressed = false
dotfiles = []
[[web.host.cache]]
path = "/**"
value = "no-cache"
[[web.host.header]]
path = "/**"
name = "X-A"
value = "b"
[[web.host.redirect]]
from = "/old/*"
to = "/new/*"
[[web.host.error-page]]
status = 404
path = "/404.html"
"#;
    let settings = settings(text);
    assert!(settings.dns.is_none());
    let web = settings.web.unwrap();
    assert_eq!((web.listen, web.listen_by_default), (vec!["127.0.0.1:8080".parse().unwrap()], false));
    assert_eq!((web.server, web.memory_bytes, web.connections, web.per_source), (None, Some(64 << 20), 100, 10));
    assert_eq!((web.drain_s, web.request_timeout_s, web.keep_alive_s, web.send_timeout_s), (5, 3, 4, 6));
    assert_eq!(web.transmit, WebTransmit::Offload);
    assert_eq!((web.proxy_protocol.len(), web.forwarded.len()), (1, 2));
    let path = Some("/etc/simoom/access.log".into());
    assert_eq!(web.access_log, Some(AccessLog { path, format: LogFormat::Json }));
    assert_eq!(web.hosts[0].root, Path::new("/etc/simoom/site"));
    let HostSpec { entry, root, place } = &web.hosts[1];
    assert_eq!((root.as_path(), place.as_str()), (Path::new("/srv/b"), "/etc/simoom/simoom.toml:19:1"));
    assert_eq!((entry.names.len(), entry.listing, entry.redirect[0].status), (2, true, 301));
    assert_eq!((entry.precompressed, entry.dotfiles.as_deref()), (Some(false), Some(&[][..])));
}

#[test]
fn a_web_services_defaults() {
    let web = settings("[web]\nroot = \"site\"\n").web.unwrap();
    assert_eq!(web.listen, ["[::]:80".parse().unwrap(), "0.0.0.0:80".parse().unwrap()]);
    assert_eq!((web.server.as_deref(), web.access_log, web.drain_s), (Some("simoom"), None, 60));
    assert_eq!(web.transmit, WebTransmit::Auto);
    assert_eq!(web.hosts[0].root, Path::new("/etc/simoom/site"));
    let log = settings("[web]\nroot = \"site\"\naccess-log = \"-\"\n").web.unwrap().access_log.unwrap();
    assert_eq!(log, AccessLog { path: None, format: LogFormat::Combined });
}

#[test]
fn a_web_services_errors() {
    for (text, line) in [
        ("[web]\n", "s.toml: no directory; add root = \"DIR\" to [web], or [[web.host]]"),
        (
            "[web]\nroot = \"a\"\n[[web.host]]\nroot = \"b\"\n",
            "s.toml:2:8: a root beside [[web.host]]; give each host its own and leave this out",
        ),
        ("[web]\nroot = \"a\"\nmemory = \"0\"\n", "s.toml:3:10: 0 bytes hold no content; leave it out"),
        (
            "[web]\nroot = \"a\"\ncache = \"1000K\"\n",
            "s.toml:3:9: 1000.0 KiB are too few to send files from; give at least 1M, or 0 to refuse what does not fit",
        ),
        (
            "[web]\nroot = \"a\"\nmemory = \"8M\"\ncache = \"8M\"\n",
            "s.toml:4:9: it leaves nothing of the memory for files that are held; give less, or more memory",
        ),
        (
            "[web]\nroot = \"a\"\nsettle = 100\n",
            "s.toml: web.settle: the directories are not watched; add watch = true",
        ),
        ("[web]\nroot = \"a\"\ntransmit = \"inplace\"\n", "s.toml:3:12: `inplace` is none of auto, copy, offload"),
        ("[web]\nroot = \"a\"\nmemory = \"4 GB\"\n", "s.toml:3:10: `4 GB` is not a size; write it as 512M or 4G"),
        (
            "[web]\nroot = \"a\"\nlog-format = \"json\"\n",
            "s.toml: web.log-format: there is no access log; add access-log",
        ),
        (
            "[dataplane]\nlisten = [\"127.0.0.1:80\"]\n[web]\nroot = \"a\"\n",
            "s.toml:2:11: dataplane.listen is for DNS, and there is no [dns]; move it to listen of [web]",
        ),
        (
            "[web]\nlisten = [\"127.0.0.1:80\", \"127.0.0.1:80\"]\nroot = \"a\"\n",
            "s.toml:2:27: 127.0.0.1:80 is given twice; it stands at s.toml:2:11 already; remove one",
        ),
        ("[[web.host]]\nnames = [\"a\"]\n", "s.toml:1:1: `root` is missing; add it"),
    ] {
        assert_eq!(refused(text), line, "{text}");
    }
    let unknown = refused("[[web.host]]\nroot = \"a\"\ncolour = 1\n");
    assert!(unknown.starts_with("s.toml:3:1: unknown key `colour`; known here: `names`, `root`"), "{unknown}");
}

#[test]
fn a_share_is_of_a_processor_that_is_named() {
    let app = "[[app]]\nprogram = [\"/bin/echo\"]\nlisten = [\"192.0.2.1:7\"]\n";
    assert_eq!(settings(app).apps[0].share, 1);
    assert_eq!(settings(&format!("{app}place = \"cpu=1\"\nshare = 8\n")).apps[0].share, 8);
    for place in ["", "place = \"same\"\n"] {
        let wrong = refused(&format!("{app}{place}share = 8\n"));
        assert!(wrong.contains("`echo` is on its engine thread's; add place = \"cpu=N\""), "{wrong}");
    }
    assert!(refused(&format!("{app}place = \"cpu=1\"\nshare = 65\n")).contains("65"));
}

#[test]
fn what_an_application_takes_of_the_machine_is_bounded() {
    let app = "[[app]]\nprogram = [\"/bin/echo\"]\nlisten = [\"192.0.2.1:7\"]\n";
    assert_eq!(settings(app).apps[0].bounds, Bounds { memory_bytes: 4 << 30, threads: 64 });
    let bounds = settings(&format!("{app}memory = \"96M\"\nthreads = 0\n")).apps[0].bounds;
    assert_eq!(bounds, Bounds { memory_bytes: 96 << 20, threads: 0 });
    for (text, line) in [
        ("memory = \"15M\"\n", "s.toml:4:10: too little to load a program in; give at least 16M"),
        ("threads = 32769\n", "s.toml:4:11: `32769` is not a whole number from 0 to 32768"),
    ] {
        assert_eq!(refused(&format!("{app}{text}")), line);
    }
    let unknown = refused(&format!("{app}colour = 1\n"));
    assert!(unknown.ends_with("`share`, `memory`, `threads`, `slow-after`, `reset-after`"), "{unknown}");
    let options = AppOptions { app_memory: Some("1M".parse().unwrap()), ..Default::default() };
    let dataplane = DataplaneOptions { listen: vec!["127.0.0.1:7".parse().unwrap()], ..Default::default() };
    let error = from_run_command_line(&["a".into()], &dataplane, &options, &ControlOptions::default()).unwrap_err();
    assert_eq!(error.lines(), ["--app-memory: too little to load a program in; give at least 16M"]);
}

#[test]
fn how_long_an_application_may_take_nothing_is_said_in_order() {
    let app = "[[app]]\nprogram = [\"/bin/echo\"]\nlisten = [\"192.0.2.1:7\"]\n";
    let ms = |settings: &Settings| {
        let Times { slow_after, reset_after } = settings.apps[0].times;
        [slow_after.as_millis(), reset_after.as_millis()]
    };
    assert_eq!(ms(&settings(app)), [10, 1000]);
    assert_eq!(ms(&settings(&format!("{app}slow-after = 250\nreset-after = 250\n"))), [250, 250]);
    for (text, line) in [
        ("slow-after = 0\n", "s.toml:4:14: `0` is not a whole number from 1 to 60000"),
        ("reset-after = 3600001\n", "s.toml:4:15: `3600001` is not a whole number from 1 to 3600000"),
        (
            "slow-after = 1001\n",
            "s.toml:4:14: connections would be reset after 1000 ms, before the program is unresponsive, after 1001 ms; give them as long at least",
        ),
        (
            "slow-after = 20\nreset-after = 19\n",
            "s.toml:5:15: connections would be reset after 19 ms, before the program is unresponsive, after 20 ms; give them as long at least",
        ),
    ] {
        assert_eq!(refused(&format!("{app}{text}")), line);
    }
    let dataplane = DataplaneOptions { listen: vec!["127.0.0.1:7".parse().unwrap()], ..Default::default() };
    let run =
        |options: &AppOptions| from_run_command_line(&["a".into()], &dataplane, options, &ControlOptions::default());
    let options = AppOptions { app_slow_after: Some("5".parse().unwrap()), ..Default::default() };
    assert_eq!(ms(&run(&options).unwrap()), [5, 1000]);
    let options = AppOptions { app_reset_after: Some("9".parse().unwrap()), ..Default::default() };
    let error = run(&options).unwrap_err();
    assert!(error.lines()[0].starts_with("--app-reset-after: connections would be reset after 9 ms,"), "{error}");
}

#[test]
fn there_are_no_more_applications_than_numbers_for_them() {
    let app = |n| format!("[[app]]\nname = \"a{n}\"\nprogram = [\"/bin/echo\"]\nlisten = [\"192.0.2.1:{}\"]\n", n + 1);
    let apps = |count: u32| (0..count).map(app).collect::<String>();
    assert_eq!(settings(&apps(256)).apps.len(), 256);
    let line = "s.toml: [[app]]: 257 applications, and there is room for 256; start another server for the rest";
    assert_eq!(refused(&apps(257)), line);
    // one of ours that has a process of its own counts too
    assert_eq!(refused(&format!("[kv]\nplace = \"same\"\n{}", apps(256))), line);
    settings(&format!("[kv]\n{}", apps(256)));
}

#[test]
fn whom_an_application_may_connect_to_is_nobody_unless_it_is_said() {
    let app = "[[app]]\nprogram = [\"/bin/echo\"]\nlisten = [\"192.0.2.1:7\"]\n";
    assert_eq!(settings(app).apps[0].connect, []);
    let some = settings(&format!("{app}connect = [\"192.0.2.0/24:80\", \"[2001:db8::/32]:*\"]\n"));
    let written: Vec<String> = some.apps[0].connect.iter().map(ToString::to_string).collect();
    assert_eq!(written, ["192.0.2.0/24:80", "[2001:db8::/32]:*"]);
    let wrong = refused(&format!("{app}connect = [\"192.0.2.0/24\"]\n"));
    assert!(wrong.contains("`192.0.2.0/24` is not ADDR/PREFIX:PORT; write it as 192.0.2.0/24:443"), "{wrong}");
    let many = vec!["\"192.0.2.1:80\""; 129].join(", ");
    let many = refused(&format!("{app}connect = [{many}]\n"));
    assert!(many.contains("connect of app `echo`: 129 peers, and there is room for 128"), "{many}");
}

#[test]
fn the_example_is_read() {
    let example = include_str!("../../../../contrib/simoom.toml");
    let settings = settings(example);
    assert_eq!(settings.backend, Backend::Auto);
    // every word of the example that is commented out is read too
    let all = example.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line)).collect::<Vec<_>>().join("\n");
    assert!(example.contains("#: "));
    assert!(settings.web.is_some());
    from_text("all.toml", &all).unwrap_or_else(|error| panic!("{error}"));
}

/// The keys that are known below these headers of tables, by what is said of one that is not; None where there is no table.
fn known(headers: &str) -> Option<Vec<String>> {
    let error = from_text("s.toml", &format!("{headers}\nzzz = 1\n")).err()?.to_string();
    let known = error.split_once("unknown key `zzz`; known here: ")?.1;
    Some(known.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Every table and its keys, `headers` being those of the tables around, each kind of header tried.
fn tables(headers: &str, path: &str, found: &mut Vec<(String, String)>) {
    for key in known(headers).unwrap_or_else(|| panic!("no table: {headers}")) {
        let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let table = [format!("{headers}\n[{inner}]"), format!("{headers}\n[[{inner}]]")];
        match table.into_iter().find(|headers| known(headers).is_some()) {
            Some(headers) => tables(&headers, &inner, found),
            None => found.push((path.to_owned(), key)),
        }
    }
}

#[test]
fn the_example_has_every_key() {
    let mut found = Vec::new();
    tables("", "", &mut found);
    assert!(found.len() > 80 && found.contains(&("web.host.cache".into(), "value".into())), "{found:?}");
    // in which table a line stands, and what it says, commented out or not
    let mut at = String::new();
    let lines = include_str!("../../../../contrib/simoom.toml").lines().map(|line| {
        let line = line.strip_prefix("#: ").unwrap_or(line);
        if line.starts_with('[') {
            at = line.trim_matches(['[', ']']).to_owned();
        }
        (at.clone(), line)
    });
    let lines: Vec<_> = lines.collect();
    let is_there = |(table, key): &&(String, String)| {
        // what excludes others stands in the words above its table
        let of_table = |at: &str| at == table || (table, key.as_str()) == (&"web".to_owned(), "root");
        let says = |line: &str| line.starts_with(&format!("{key} = ")) || line.contains(&format!(" {key} = "));
        lines.iter().any(|(at, line)| of_table(at) && says(line))
    };
    let missing: Vec<_> = found.iter().filter(|it| !is_there(it)).collect();
    assert!(missing.is_empty(), "contrib/simoom.toml lacks {missing:?}");
}

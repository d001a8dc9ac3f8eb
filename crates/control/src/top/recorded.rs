//! What a server said at two moments, two seconds apart, for the tests.

use super::reading::{Change, Reading};
use serde_json::{Value, json};
use std::time::Duration;

/// Figures at both moments: name{label=value,label=value} then now. What ends in `_total` is a counter.
const FIGURES: &str = "\
dataplane_backlog_frames{thread=0} 3 9
dataplane_backlog_frames{thread=1} 0 0
dataplane_busy{thread=0} 1 1
dataplane_busy{thread=1} 0 0
dataplane_bursts_total{frames=1} 100 200
dataplane_bursts_total{frames=64} 1000 1900
dataplane_crossed_frames_total{direction=in,thread=0} 0 0
dataplane_crossed_frames_total{direction=in,thread=1} 10 30
dataplane_cycles_total 5000 9000
dataplane_flow_groups{thread=0} 100 96
dataplane_flow_groups{thread=1} 28 32
dataplane_frames_total{direction=in} 60000 100000
dataplane_frames_total{direction=out} 60000 99000
dataplane_helped_frames_total{thread=0,to=itself} 0 0
dataplane_helped_frames_total{thread=1,to=itself} 0 64
dataplane_loop_nanoseconds{thread=0} 12000 15500
dataplane_loop_nanoseconds{thread=1} 800 900
dataplane_moved_groups_total{direction=in,thread=1} 0 4
dataplane_moved_groups_total{direction=out,thread=0} 0 4
dataplane_nic_grace_microseconds 250 250
dataplane_queue_delay_nanoseconds_total{thread=0} 0 500000000
dataplane_time_nanoseconds_total{state=asleep} 0 1000000000
dataplane_time_nanoseconds_total{state=busy} 0 3000000000
dns_answers_total{rcode=NOERROR} 1000 2000
dns_answers_total{rcode=NXDOMAIN} 10 20
dns_answers_total{rcode=SERVFAIL} 0 4
dns_connections_refused_total 0 2
dns_connections_total 5 15
dns_drops_total{reason=rate limited} 0 6
dns_drops_total{reason=short} 7 7
dns_questions_total{family=4,transport=udp} 1100 2130
gopher_requests_total 1 3
sockets_connections 3 4
sockets_connections_accepted_total 30 40
sockets_connections_ended_total 27 36
sockets_connections_refused_total{reason=too many} 0 0
sockets_cycles_total 10 20
start_time_seconds 1795210365 1795210365
tcp_connections 70 80
tcp_events_total{event=accepted} 700 900
tcp_events_total{event=closed} 630 820
tcp_half_open 1 2
tcp_time_wait 5 6
web_answers_total{class=2xx} 100 300
web_answers_total{class=4xx} 1 3
web_bytes_total 1000000 5194304
web_connections 70 80
web_connections_total 700 900
web_requests_total{method=GET} 101 303
xdp_frames_dropped_total{interface=eth0,queue=0,reason=receive ring full} 5 1005
";

fn stats(moment: usize) -> Value {
    let samples = FIGURES.lines().map(|line| {
        let fields: Vec<&str> = line.rsplitn(3, ' ').collect();
        let value: u64 = fields[1 - moment].parse().unwrap();
        let (name, labels) = fields[2].split_once('{').unwrap_or((fields[2], ""));
        let labels = labels.trim_end_matches('}').split(',').filter_map(|label| label.split_once('='));
        let labels: serde_json::Map<_, _> = labels.map(|(name, value)| (name.into(), value.into())).collect();
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        json!({"name": name, "type": kind, "labels": labels, "value": value})
    });
    json!({"ok": true, "metrics": samples.collect::<Vec<_>>()})
}

/// What it said at the first moment, or at the second.
pub(super) fn reading(moment: usize) -> Reading {
    let status = json!({"ok": true, "version": "0.1.0", "pid": 4711, "uptime_s": 3725 + 2 * moment,
        "backend": "AF_XDP: eth0 copy", "threads": 2});
    Reading::new(Duration::from_secs(10 + 2 * moment as u64), status, &stats(moment))
}

/// What changed.
pub(super) fn change() -> Change {
    Change::between(Some(&reading(0)), &reading(1))
}

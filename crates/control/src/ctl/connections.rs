//! The TCP connections of our own stack, at both ends of the control socket.

use super::server::failed;
use crate::launch::Running;
use serde_json::{Value, json};
use stack::tcp::View;
use stack::tcp::congestion::Algorithm;
use std::fmt::Write as _;
use std::time::Duration;

/// The server's answer.
pub(crate) fn answer(running: &Running, most: u32) -> Value {
    match running.views(most as usize) {
        Some((views, more)) => {
            json!({ "ok": true, "connections": views.iter().map(shown).collect::<Vec<_>>(), "more": more })
        }
        None => failed("the server is on kernel sockets: `ss -ti` shows their connections"),
    }
}

fn us(span: Duration) -> u64 {
    span.as_micros() as u64
}

fn shown(view: &View) -> Value {
    let sender = view.sender.as_ref().map(|sender| {
        json!({
            "algorithm": match sender.algorithm {
                Algorithm::Cubic => "cubic",
                Algorithm::NewReno => "newreno",
            },
            "window_bytes": sender.window_bytes,
            "threshold_bytes": (sender.threshold_bytes != u32::MAX).then_some(sender.threshold_bytes),
            "sacked_bytes": sender.sacked_bytes,
            "lost_bytes": sender.lost_bytes,
        })
    });
    json!({
        "local": view.local.to_string(),
        "peer": view.peer.to_string(),
        "state": view.state,
        "delivered_bytes": view.delivered_bytes,
        "unsent_bytes": view.unsent_bytes,
        "unacknowledged_bytes": view.unacknowledged_bytes,
        "acknowledged_bytes": view.acknowledged_bytes,
        "window_bytes": view.window_bytes,
        "peer_window_bytes": view.peer_window_bytes,
        "segment_bytes": view.segment_bytes,
        "rtt_us": view.round_trip.map(|(smoothed, _)| us(smoothed)),
        "rtt_variance_us": view.round_trip.map(|(_, variance)| us(variance)),
        "timeout_us": us(view.timeout),
        "silent_ms": view.silent.as_millis() as u64,
        "sack": view.sack,
        "timestamps": view.timestamps,
        "window_scales": view.window_scales,
        "ecn": view.ecn,
        "sender": sender,
    })
}

/// The client's text: a line for each connection as `ss` has it, and one with what is inside.
pub(super) fn table(answer: &Value) -> String {
    let none = Vec::new();
    let connections = answer["connections"].as_array().unwrap_or(&none);
    if connections.is_empty() {
        return "no connections\n".to_owned();
    }
    let mut text = format!("{:<12} {:>8} {:>9} {:<28} {}\n", "state", "recv-q", "send-q", "local", "peer");
    for it in connections {
        let word = |name: &str| it[name].as_str().unwrap_or("?").to_owned();
        let number = |name: &str| it[name].as_u64().unwrap_or_default();
        let queued = number("unsent_bytes") + number("unacknowledged_bytes");
        // writing to a string cannot fail
        let _ = writeln!(
            text,
            "{:<12} {:>8} {queued:>9} {:<28} {}",
            word("state"),
            number("delivered_bytes"),
            word("local"),
            word("peer")
        );
        let _ = writeln!(text, "{:12} {}", "", inside(it));
    }
    if answer["more"] == true {
        let _ = writeln!(text, "and more: give --most");
    }
    text
}

/// What is inside a connection, in the words of `ss -i`.
fn inside(it: &Value) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    let mut parts = Vec::new();
    parts.extend(["timestamps", "sack", "ecn"].iter().filter(|name| it[**name] == true).map(|name| (*name).to_owned()));
    if let Some([theirs, ours]) = it["window_scales"].as_array().map(Vec::as_slice) {
        parts.push(format!("wscale:{theirs},{ours}"));
    }
    parts.push(format!("rto:{:.0}ms", ms(it["timeout_us"].as_u64().unwrap_or_default())));
    if let (Some(smoothed), Some(variance)) = (it["rtt_us"].as_u64(), it["rtt_variance_us"].as_u64()) {
        parts.push(format!("rtt:{:.3}/{:.3}ms", ms(smoothed), ms(variance)));
    }
    for (name, shown) in [
        ("segment_bytes", "mss"),
        ("window_bytes", "rcv-wnd"),
        ("peer_window_bytes", "snd-wnd"),
        ("acknowledged_bytes", "bytes-acked"),
    ] {
        parts.push(format!("{shown}:{}", it[name]));
    }
    let sender = &it["sender"];
    if let Some(algorithm) = sender["algorithm"].as_str() {
        parts.push(format!("{algorithm} cwnd:{}", sender["window_bytes"]));
        for (name, shown) in [("threshold_bytes", "ssthresh"), ("sacked_bytes", "sacked"), ("lost_bytes", "lost")] {
            if let Some(bytes) = sender[name].as_u64().filter(|bytes| *bytes > 0) {
                parts.push(format!("{shown}:{bytes}"));
            }
        }
    }
    parts.push(format!("lastrcv:{}ms", it["silent_ms"]));
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use app::Listener;
    use stack::tcp::SenderView;

    fn view() -> View {
        View {
            local: "192.0.2.1:80".parse().unwrap(),
            peer: "[2001:db8::2]:50000".parse().unwrap(),
            state: "ESTABLISHED",
            listener: Listener(0),
            delivered_bytes: 3,
            unsent_bytes: 1000,
            unacknowledged_bytes: 2000,
            acknowledged_bytes: 77,
            window_bytes: 32_768,
            peer_window_bytes: 65_536,
            segment_bytes: 1448,
            round_trip: Some((Duration::from_micros(1500), Duration::from_micros(250))),
            timeout: Duration::from_millis(200),
            silent: Duration::from_millis(12),
            sack: true,
            timestamps: true,
            window_scales: Some((7, 1)),
            ecn: false,
            sender: Some(SenderView {
                algorithm: Algorithm::Cubic,
                window_bytes: 14_480,
                threshold_bytes: u32::MAX,
                sacked_bytes: 0,
                lost_bytes: 1448,
            }),
        }
    }

    #[test]
    fn a_connection_is_two_lines() {
        let answer = json!({ "connections": [shown(&view())], "more": true });
        let text = table(&answer);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..],
            [
                "ESTABLISHED         3      3000 192.0.2.1:80                 [2001:db8::2]:50000",
                "             timestamps sack wscale:7,1 rto:200ms rtt:1.500/0.250ms mss:1448 rcv-wnd:32768 snd-wnd:65536 \
                 bytes-acked:77 cubic cwnd:14480 lost:1448 lastrcv:12ms",
                "and more: give --most",
            ]
        );
        assert_eq!(table(&json!({ "connections": [], "more": false })), "no connections\n");
    }

    #[test]
    fn what_is_not_known_is_null() {
        let quiet = View { round_trip: None, window_scales: None, sender: None, ..view() };
        let value = shown(&quiet);
        for name in ["rtt_us", "rtt_variance_us", "window_scales", "sender"] {
            assert!(value[name].is_null(), "{name}: {value}");
        }
        assert!(shown(&view())["sender"]["threshold_bytes"].is_null());
        assert!(inside(&value).starts_with("timestamps sack rto:200ms mss:1448"));
    }
}

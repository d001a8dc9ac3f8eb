//! Services in processes of their own, over AF_XDP: the packets' way is our own stack's, and the process has never seen a device.

use crate::common::{Server, simoom};
use lab::Lab;

const AT: &str = "198.18.0.1";

#[test]
fn services_in_processes_of_their_own_answer_over_af_xdp() {
    lab::require();
    let lab = Lab::new().unwrap();
    for place in ["same", "cpu=1"] {
        let mut command = simoom(lab.server());
        command.args(["kv", "--interface", "vs", "--listen", "198.18.0.1:11211", "--place", place]);
        let server = Server::spawn(command);
        // values of a part of a segment and of many, whole lines of which are counted
        let script = "exec 3<>/dev/tcp/198.18.0.1/11211; \
                      for n in $(seq 50); do v=$(head -c $((n * 700)) /dev/zero | tr '\\0' x); printf 'set k%d 0 0 %d\\r\\n%s\\r\\n' $n ${#v} $v >&3; done; \
                      for n in $(seq 50); do printf 'get k%d\\r\\n' $n >&3; done; printf 'quit\\r\\n' >&3; cat <&3 | wc -cl";
        let counted = lab.client().run(&["timeout", "20", "bash", "-c", script]).unwrap();
        // STORED; VALUE, the value and END
        let expected: usize =
            (1..=50).map(|n: usize| 8 + format!("VALUE k{n} 0 {}\r\n", n * 700).len() + n * 700 + 2 + 5).sum();
        let counted: Vec<usize> = counted.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert_eq!(counted, [50 * 4, expected], "{place}");
        let stats = server.stats();
        assert!(stats.sum("app_calls_total", &[]) >= 100, "{place}");
        assert_eq!(stats.sum("app_rejects_total", &[]), 0, "{place}");
        drop(server);

        let mut command = simoom(lab.server());
        command.args(["echo", "--interface", "vs", "--listen", "198.18.0.1:7", "--place", place]);
        let server = Server::spawn(command);
        let mut ping = simoom(lab.client());
        ping.args(["ping", "--json", "--timeout", "20000", AT, "--count", "200", "--size", "333", "--warm-up", "0"]);
        let output = ping.output().unwrap();
        let figures: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!(
            (figures["answered"].as_u64(), figures["wrong"].as_u64()),
            (Some(200), Some(0)),
            "{place}: {figures}"
        );
        assert!(server.stats().sum("app_events_total", &[]) >= 200, "{place}");
    }
}

use super::*;

fn plan(bytes: u64) -> Plan {
    Plan { bytes, files: 3, connections: 5, in_flight: 64, batch: 16 }
}

#[test]
fn files_of_every_size_come_whole() {
    // the clients fail on the first answer that is missing, cut or wrong
    for bytes in [1, 100, 1024, 4096, 65_537, 1 << 20] {
        let mut clients = Clients::new(plan(bytes)).unwrap();
        let requests = if bytes > 100_000 { 20 } else { 200 };
        let figures = clients.run(requests).unwrap();
        assert!(figures.median_ns > 0.0 && figures.mean_ns > 0.0, "{bytes} bytes");
        clients.run(10).unwrap();
    }
}

#[test]
fn a_single_connection_with_the_least_window_is_served_too() {
    let mut clients = Clients::new(Plan { files: 1, connections: 1, in_flight: 2, batch: 1, bytes: 50_000 }).unwrap();
    clients.run(20).unwrap();
}

#[test]
fn another_answer_is_found_out() {
    let of = |request: &str| {
        let mut clients = Clients::new(plan(100)).unwrap();
        clients.ask_instead(request.as_bytes());
        clients.run(1).unwrap_err().to_string()
    };
    assert!(of("GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n").contains("no answer with status 200"));
    assert!(of("GET /files/0.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=0-9\r\n\r\n").contains("status 200"));
    assert!(of("GET /files/0.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").contains("the server closes"));
    // the second file, where the clients expect one at random
    assert!(of("GET /files/1.bin HTTP/1.1\r\nHost: a\r\n\r\n").contains("wrong bytes"));
    assert!(of("GET /files/0.bin HTTP/1.1\r\n").contains("0 of 5 requests were answered"));
}

//! What a server meets at its edges: many questions written at once over TCP, filters that nobody can apply.

mod common;

use common::*;
use std::io::{Read, Write};
use std::net::TcpStream;

/// RFC 7766 section 6.2.1.1: a client may send as many questions as it likes before it reads, and their answers may be
/// larger than they are.
#[test]
fn questions_in_one_piece_are_all_answered_though_their_answers_fill_every_queue() {
    const QUESTIONS: usize = 1500;
    let place = Place::new();
    let text = "text ".repeat(40);
    place.write("example.zone", &format!("{ZONE}t TXT \"{text}\" \"{text}\"\n"));
    let server = Server::start(&place, &[]);
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut questions = Vec::new();
    for id in 0..QUESTIONS as u16 {
        let [high, low] = id.to_be_bytes();
        let question =
            [&[0, 31, high, low, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x01t\x07example\x03com\0\0\x10\0\x01"];
        questions.extend(question.concat());
    }
    assert_eq!(questions.len(), QUESTIONS * 33);
    let mut writer = stream.try_clone().unwrap();
    let written = std::thread::spawn(move || writer.write_all(&questions));
    for id in 0..QUESTIONS as u16 {
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap_or_else(|error| panic!("answer {id}: {error}"));
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..2], id.to_be_bytes());
        assert!(answer.len() > 2 * text.len(), "answer {id}: {answer:?}");
    }
    written.join().unwrap().unwrap();
}

#[test]
fn a_server_that_cannot_apply_its_filters_does_not_fall_back() {
    let place = Place::new();
    let zone = place.path("example.zone");
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let control = place.path("control");
    let args =
        ["dns", &zone, "--listen", &listen, "--control", &control, "--interface", "nosuch0", "--backend", "auto"];
    let output = run(&[&args[..], &["--deny", "192.0.2.0/24"]].concat());
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("kernel sockets cannot apply --allow and --deny: use nftables"), "{said}");
}

//! Arbitrary bytes as a TCP segment.

use std::net::Ipv4Addr;
use wire::tcp::{Header, PayloadSum, Tcp, Verdict};
use wire::{Protocol, Sum};

/// Whatever parses can be written again in the fixed layout, verifies, and says the same when it is read back.
pub fn segment(data: &[u8]) {
    let data = &data[..data.len().min(9000)];
    let Ok(tcp) = Tcp::parse(data) else { return };
    assert_eq!(tcp.header_bytes() + tcp.payload().len(), data.len(), "bytes that belong nowhere");
    let options = tcp.options();
    let sack: Vec<_> = options.sack_blocks().collect();
    let header = Header {
        src_port: tcp.src_port(),
        dst_port: tcp.dst_port(),
        seq: tcp.seq(),
        ack: tcp.ack(),
        flags: tcp.flags(),
        window: tcp.window(),
        urgent: tcp.urgent(),
        timestamps: options.timestamps,
        sack: &sack,
        mss: options.mss,
        window_scale: options.window_scale,
        sack_permitted: options.sack_permitted,
    };
    let mut again = vec![0xA5; header.bytes()];
    again.extend(tcp.payload());
    let (a, b) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2));
    let pseudo = Sum::pseudo_v4(a, b, Protocol::TCP, again.len() as u16);
    let _ = tcp.verdict(pseudo);
    header.write(&mut again, pseudo, PayloadSum::Known(Sum::of(tcp.payload())));
    let twin = Tcp::parse(&again).expect("a segment that was just written");
    assert_eq!(twin.verdict(pseudo), Verdict::Good);
    let fields = |tcp: &Tcp<'_>| (tcp.src_port(), tcp.dst_port(), tcp.seq(), tcp.ack(), tcp.window(), tcp.urgent());
    assert_eq!((fields(&twin), twin.flags(), twin.payload()), (fields(&tcp), tcp.flags(), tcp.payload()));
    let read = twin.options();
    assert_eq!((read.mss, read.window_scale, read.timestamps), (options.mss, options.window_scale, options.timestamps));
    assert_eq!((read.sack_permitted, read.malformed), (options.sack_permitted, false));
    // a SYN carries no SACK blocks, and timestamps leave room for three
    let kept = read.sack_blocks().len();
    assert!(kept <= sack.len() && read.sack_blocks().eq(sack.iter().copied().take(kept)), "other SACK blocks");
}

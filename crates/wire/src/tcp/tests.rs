use super::*;
use crate::Protocol;
use proptest::prelude::*;
use std::net::Ipv4Addr;

fn pseudo(bytes: usize) -> Sum {
    let (a, b) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    Sum::pseudo_v4(a, b, Protocol::TCP, bytes as u16)
}

/// What the options say, as RFC 9293 section 3.1 tells it, byte by byte; the first mention counts.
#[derive(Debug, Default, PartialEq)]
struct Twin {
    mss: Option<u16>,
    scale: Option<u8>,
    permitted: bool,
    timestamps: Option<(u32, u32)>,
    sack: Vec<(u32, u32)>,
    malformed: bool,
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn twin(options: &[u8], syn: bool) -> Twin {
    let mut twin = Twin::default();
    let mut at = 0;
    while at < options.len() && options[at] != 0 {
        if options[at] == 1 {
            at += 1;
            continue;
        }
        if at + 1 == options.len() || options[at + 1] < 2 || at + usize::from(options[at + 1]) > options.len() {
            twin.malformed = true;
            break;
        }
        let data = &options[at + 2..at + usize::from(options[at + 1])];
        match options[at] {
            2 if syn && data.len() == 2 && twin.mss.is_none() => twin.mss = Some(number(data) as u16),
            3 if syn && data.len() == 1 && twin.scale.is_none() => twin.scale = Some(data[0].min(14)),
            4 if syn && data.is_empty() => twin.permitted = true,
            5 if !data.is_empty() && data.len().is_multiple_of(8) && twin.sack.is_empty() => {
                twin.sack = data.chunks(8).map(|block| (number(&block[..4]), number(&block[4..]))).collect();
            }
            8 if data.len() == 8 && twin.timestamps.is_none() => {
                twin.timestamps = Some((number(&data[..4]), number(&data[4..])));
            }
            _ => {}
        }
        at += 2 + data.len();
    }
    twin
}

fn told(options: &Options<'_>) -> Twin {
    Twin {
        mss: options.mss,
        scale: options.window_scale,
        permitted: options.sack_permitted,
        timestamps: options.timestamps.map(|clocks| (clocks.value, clocks.echo)),
        sack: options.sack_blocks().map(|block| (block.left.get(), block.right.get())).collect(),
        malformed: options.malformed,
    }
}

/// Bytes that are options most of the time: kinds we know and do not know, with right and wrong lengths.
fn some_options() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        2 => Just(vec![1]),
        1 => Just(vec![0]),
        2 => any::<u16>().prop_map(|mss| vec![2, 4, (mss >> 8) as u8, mss as u8]),
        2 => any::<u8>().prop_map(|scale| vec![3, 3, scale]),
        2 => Just(vec![4, 2]),
        2 => any::<[u8; 8]>().prop_map(|clocks| [&[8, 10][..], &clocks].concat()),
        2 => (1usize..4, any::<[u8; 24]>()).prop_map(|(n, bytes)| [&[5, 2 + 8 * n as u8][..], &bytes[..8 * n]].concat()),
        1 => (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(a, b, c)| vec![a, b, c]),
        1 => (2u8..9, 0u8..12).prop_map(|(kind, len)| vec![kind, len, 7, 7]),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| {
        let mut bytes = pieces.concat();
        bytes.truncate(40);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    })
}

fn a_header() -> impl Strategy<Value = (Header<'static>, Vec<SackBlock>)> {
    let block = any::<(u32, u32)>().prop_map(|(a, b)| SackBlock { left: Seq::new(a), right: Seq::new(b) });
    let sack = prop::collection::vec(block, 0..6);
    let fixed = any::<(u16, u16, u32, u32, u16, u16, u16)>();
    let options = any::<(Option<(u32, u32)>, Option<u16>, Option<u8>, bool)>();
    (fixed, options, sack).prop_map(|(fixed, (clocks, mss, window_scale, sack_permitted), sack)| {
        let (src_port, dst_port, seq, ack, flags, window, urgent) = fixed;
        let header = Header {
            src_port,
            dst_port,
            seq: Seq::new(seq),
            ack: Seq::new(ack),
            flags: Flags::from_bits(flags),
            window,
            urgent,
            timestamps: clocks.map(|(value, echo)| Timestamps { value, echo }),
            sack: &[],
            mss,
            window_scale,
            sack_permitted,
        };
        (header, sack)
    })
}

proptest! {
    #[test]
    fn any_bytes_are_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..90)) {
        if let Ok(tcp) = Tcp::parse(&bytes) {
            prop_assert_eq!(tcp.bytes(), tcp.payload().len() + tcp.header_bytes());
            prop_assert!(tcp.options().sack_blocks().len() <= MAX_SACK_BLOCKS);
            let _ = tcp.verdict(pseudo(tcp.bytes()));
        }
    }

    #[test]
    fn options_are_those_of_the_slow_reader(options in some_options(), syn: bool) {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[12] = ((bytes.len() + options.len()) as u8 / 4) << 4;
        bytes[13] = u8::from(syn) << 1;
        bytes.extend(&options);
        bytes.extend(b"payload that is no option");
        let tcp = Tcp::parse(&bytes).unwrap();
        prop_assert_eq!(told(&tcp.options()), twin(&options, syn));
    }

    #[test]
    fn what_is_written_reads_back((header, sack) in a_header(), payload in prop::collection::vec(any::<u8>(), 0..60)) {
        let header = Header { sack: &sack, ..header };
        let mut bytes = vec![0xA5; header.bytes() + payload.len()];
        let pseudo = pseudo(bytes.len());
        let header_bytes = header.write(&mut bytes, pseudo, PayloadSum::Known(Sum::of(&payload)));
        prop_assert!(header_bytes <= MAX_HEADER_BYTES && header_bytes.is_multiple_of(4));
        bytes[header_bytes..].copy_from_slice(&payload);
        let tcp = Tcp::parse(&bytes).unwrap();
        prop_assert_eq!(tcp.verdict(pseudo), Verdict::Good);
        prop_assert_eq!((tcp.src_port(), tcp.dst_port()), (header.src_port, header.dst_port));
        prop_assert_eq!((tcp.seq(), tcp.ack(), tcp.flags()), (header.seq, header.ack, header.flags));
        prop_assert_eq!((tcp.window(), tcp.urgent(), tcp.payload()), (header.window, header.urgent, &payload[..]));
        let syn = header.flags.contains(Flags::SYN);
        let fitting = if header.timestamps.is_some() { 3 } else { 4 };
        let expected = Twin {
            mss: header.mss.filter(|_| syn),
            scale: header.window_scale.filter(|_| syn).map(|scale| scale.min(14)),
            permitted: header.sack_permitted && syn,
            timestamps: header.timestamps.map(|clocks| (clocks.value, clocks.echo)),
            sack: sack.iter().take(if syn { 0 } else { fitting }).map(|b| (b.left.get(), b.right.get())).collect(),
            malformed: false,
        };
        prop_assert_eq!(told(&tcp.options()), expected);
        let fin = header.flags.contains(Flags::FIN);
        prop_assert_eq!(tcp.sequence_bytes(), payload.len() as u32 + u32::from(syn) + u32::from(fin));
    }
}

#[test]
fn layouts_are_the_fixed_ones() {
    let clocks = Some(Timestamps { value: 0x0102_0304, echo: 0x0506_0708 });
    let block = SackBlock { left: Seq::new(0x1111_1111), right: Seq::new(0x2222_2222) };
    let full = Header {
        timestamps: clocks,
        sack: &[block; 4],
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        ..Header::default()
    };
    let layout = |header: &Header<'_>| {
        let mut out = [0; MAX_HEADER_BYTES];
        let bytes = header.write(&mut out, Sum::ZERO, PayloadSum::Device);
        out[HEADER_BYTES..bytes].to_vec()
    };
    let ts = [1, 2, 3, 4, 5, 6, 7, 8];
    let sack = [[0x11; 4], [0x22; 4]].concat();
    let syn = Header { flags: Flags::SYN, ..full };
    assert_eq!(layout(&syn), [&[2, 4, 5, 180, 4, 2, 8, 10][..], &ts, &[1, 3, 3, 7]].concat());
    let no_clocks = Header { timestamps: None, ..syn };
    assert_eq!(layout(&no_clocks), [2, 4, 5, 180, 1, 1, 4, 2, 1, 3, 3, 7]);
    let data = Header { flags: Flags::ACK, ..full };
    assert_eq!(layout(&data), [&[1, 1, 8, 10][..], &ts, &[1, 1, 5, 26], &sack, &sack, &sack].concat());
    let bare = Header { timestamps: None, ..data };
    assert_eq!(layout(&bare), [&[1, 1, 5, 34][..], &sack, &sack, &sack, &sack].concat());
    assert_eq!(layout(&Header { sack: &[], ..data }), [&[1, 1, 8, 10][..], &ts].concat());
    assert_eq!(layout(&Header { sack: &[], ..bare }), []);
}

#[test]
fn malformed_headers_are_refused_each_for_its_reason() {
    let mut bytes = [0; 24];
    let with = |first: u8, bytes: &mut [u8]| {
        bytes[12] = first;
        Tcp::parse(bytes).err()
    };
    assert_eq!(with(0x50, &mut bytes), None);
    assert_eq!(with(0x60, &mut bytes), None);
    assert_eq!(with(0x40, &mut bytes), Some(Malformed::DataOffset));
    assert_eq!(with(0x70, &mut bytes), Some(Malformed::DataOffset));
    assert_eq!(Tcp::parse(&bytes[..19]).err(), Some(Malformed::Short));
}

#[test]
fn illegal_lengths_end_the_reading_and_keep_what_came_before() {
    // RFC 9293 MUST-7: zero, one, and beyond the header
    for bad in [[5, 0], [5, 1], [5, 11], [99, 250]] {
        let bytes = [&[2, 4, 1, 2][..], &bad, &[0; 6]].concat();
        let options = Options::parse(&bytes, true);
        assert_eq!((options.mss, options.malformed), (Some(0x102), true), "{bad:?}");
    }
    // a length that is not there, and one that an end of options hides
    assert!(Options::parse(&[1, 1, 1, 4], true).malformed);
    assert!(!Options::parse(&[1, 0, 5, 0], true).malformed);
    // a wrong length of a known kind is no reason to stop: RFC 7323 timestamps behind an MSS of three bytes
    let bytes = [&[2, 3, 1, 8, 10][..], &[9; 8], &[0; 3]].concat();
    let options = Options::parse(&bytes, true);
    assert_eq!((options.mss, options.timestamps.map(|clocks| clocks.value)), (None, Some(0x0909_0909)));
}

#[test]
fn verdicts() {
    let header = Header { src_port: 80, dst_port: 4097, flags: Flags::ACK | Flags::PSH, ..Header::default() };
    let payload = *b"odd";
    let mut bytes = [[0; 20].as_slice(), &payload].concat();
    let sum = pseudo(bytes.len());
    header.write(&mut bytes, sum, PayloadSum::Known(Sum::of(&payload)));
    assert_eq!(Tcp::parse(&bytes).unwrap().verdict(sum), Verdict::Good);
    bytes[22] ^= 1;
    assert_eq!(Tcp::parse(&bytes).unwrap().verdict(sum), Verdict::Bad);
    header.write(&mut bytes, sum, PayloadSum::Device);
    assert_eq!(bytes[16..18], sum.partial());
    assert_eq!(Tcp::parse(&bytes).unwrap().verdict(sum), Verdict::Partial);
}

#[test]
fn quoted_segments_may_end_after_eight_bytes() {
    let bytes = [0, 80, 16, 1, 1, 2, 3, 4];
    let quoted = Quoted { src_port: 80, dst_port: 4097, seq: Seq::new(0x0102_0304) };
    assert_eq!(Quoted::parse(&bytes), Some(quoted));
    assert_eq!(Quoted::parse(&bytes[..7]), None);
}

#[test]
fn flags_have_names() {
    assert_eq!(format!("{:?}", Flags::SYN | Flags::ACK | Flags::AE), "SYN|ACK|AE");
    assert_eq!(format!("{:?} {:?}", Flags::NONE, Flags::FIN), "- FIN");
    assert_eq!((Flags::SYN | Flags::FIN).sequence_bytes(), 2);
    assert_eq!(Flags::from_bits(0xffff).only(Flags::ECE | Flags::CWR), Flags::ECE | Flags::CWR);
    assert!(Flags::from_bits(0xffff).intersects(Flags::URG) && !Flags::SYN.contains(Flags::SYN | Flags::ACK));
}

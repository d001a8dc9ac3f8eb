//! Names that have no entry, answered by one above them.

use super::*;

const ABSENT: Below = Below::Answered { absent: true, whole: true };
const REFERRAL: Below = Below::Answered { absent: false, whole: false };

/// `front` before `rest`, both in wire form, `front` without its end; None when that is no name.
fn join(front: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
    (front.len() + rest.len() <= 255).then(|| [front, rest].concat())
}

/// Labels of so many octets in all, drawn from a few letters and octets that are none.
fn labels(rng: &mut Rng, octets: usize) -> Vec<u8> {
    let mut wire = Vec::new();
    while wire.len() < octets {
        let left = octets - wire.len();
        let most = [2, 8, 63][rng.below(3) as usize];
        let mut label = (1 + rng.below(most) as usize).min(left - 1);
        // no label may leave a single octet, which no label fills
        if left - 1 - label == 1 {
            label = if label == 63 { 62 } else { label + 1 };
        }
        wire.push(label as u8);
        wire.extend((0..label).map(|_| *b"abcxyz\0\x3f\x40\xff".get(rng.below(24) as usize).unwrap_or(&b'a')));
    }
    wire
}

fn shuffled_case(rng: &mut Rng, name: &[u8]) -> Vec<u8> {
    name.iter().map(|octet| if rng.chance(0.5) { octet.to_ascii_uppercase() } else { *octet }).collect()
}

fn asked(rng: &mut Rng, name: &[u8]) -> Frame {
    let mut frame =
        Frame::question(&shuffled_case(rng, name), [1, 2, 28, 43, 255, 6, 0, 65_535][rng.below(8) as usize]);
    frame.v6 = rng.chance(0.5);
    frame.tag = rng.chance(0.3);
    frame.opt = [None, Some(0), Some(512), Some(700), Some(1232), Some(4096)][rng.below(6) as usize];
    frame.flags = rng.next_u64() as u8 & 0x07;
    frame
}

/// A held name, with a body that is short or long.
fn held(rng: &mut Rng, name: Vec<u8>, below: Below) -> Held {
    let held = Held::new(name, 30);
    match below {
        Below::AsAbove => held,
        _ => {
            let most = [40, 70, 400, 1100][rng.below(4) as usize];
            let bytes = 1 + rng.below(most) as usize;
            let pointers = 1 + rng.below(32.min(1 + bytes as u64 / 3)) as usize;
            let held = held.with_below(rng, below, bytes, pointers);
            if config().answers.unwrap().takes(&held.name, &held.others()) { held } else { Held::new(held.name, 30) }
        }
    }
}

/// Names above and below each other, of which some say something of those below.
fn tree(rng: &mut Rng, root: bool) -> Vec<Held> {
    let mut names: Vec<Vec<u8>> = vec![vec![0]];
    for _ in 0..40 {
        let above = names[rng.below(names.len() as u64) as usize].clone();
        let most = if rng.chance(0.1) { 200 } else { 12 };
        let octets = 2 + rng.below(most) as usize;
        names.extend(join(&labels(rng, octets), &above).filter(|name| !names.contains(name)));
    }
    let names = names.into_iter().skip(usize::from(!root));
    names
        .map(|name| {
            let below = [Below::AsAbove, Below::AsAbove, Below::Left, ABSENT, REFERRAL][rng.below(5) as usize];
            held(rng, name, below)
        })
        .collect()
}

#[test]
fn names_without_an_entry_are_answered_as_the_twin_does() {
    let mut counts = [[0; 2]; 2];
    let mut bed = Bed::new(Vec::new());
    for seed in 0..24 {
        let rng = &mut Rng::new(seed);
        let whole = seed % 3 > 0;
        bed.hold(Names { held: tree(rng, seed % 4 > 0), whole });
        for _ in 0..600 {
            let at = rng.below(bed.names.held.len() as u64) as usize;
            let octets = [2, 3, 4, 9, 40, 150][rng.below(6) as usize] + rng.below(8) as usize;
            let near = bed.names.held[at].name.clone();
            // below, beside, or what is above with another label
            let rest = if rng.chance(0.7) { &near[..] } else { &near[near.len().min(1 + usize::from(near[0]))..] };
            let rest = if rest.is_empty() { &[0] } else { rest };
            let Some(name) = join(&labels(rng, octets), rest) else { continue };
            let frame = asked(rng, &name);
            let answered = bed.compare(&frame.bytes(), &frame);
            if bed.names.held.iter().all(|held| held.name != name) {
                counts[usize::from(whole)][usize::from(answered)] += 1;
            }
        }
    }
    assert!(counts.iter().flatten().all(|count| *count > 1000), "{counts:?}");
}

/// Every place that a pointer may have, and all that a name may be longer.
#[test]
fn pointers_grow_by_what_the_name_is_longer() {
    let rng = &mut Rng::new(5);
    let mut bed = Bed::new(Vec::new());
    for above in [1, 3, 4, 19, 20, 61, 62, 130, 253] {
        let of = |rng: &mut Rng, bytes, pointers| Held::new(name(above), 30).with_below(rng, ABSENT, bytes, pointers);
        // as many as an entry takes, and none
        let mut all = vec![of(rng, 300, 32), of(rng, 21, 10), of(rng, 60, 12), of(rng, 85, 1)];
        all.push(of(rng, 900, 1).with_below(rng, REFERRAL, 900, 32));
        for held in all {
            assert!(config().answers.unwrap().takes(&held.name, &held.others()), "{held:?}");
            bed.hold(Names { held: vec![held], whole: true });
            let mut answered = 0;
            for more in 2..=255 - above {
                let name = join(&labels(rng, more), &bed.names.held[0].name).unwrap();
                for opt in [None, Some(1232)] {
                    let frame = Frame { opt, rtype: 1, ..asked(rng, &name) };
                    answered += usize::from(bed.compare(&frame.bytes(), &frame));
                }
            }
            assert!(answered > 0, "below {above}");
        }
    }
    let too_many = Held::new(name(20), 30).with_below(rng, ABSENT, 300, 33);
    assert_eq!(too_many.others().moves.unwrap().len(), 33);
    assert_eq!(put(&mut bed.fill(), &too_many), Put::Unfit);
    let others = Which::Others { but_any: false, but_ds: false, below: Below::AsAbove };
    let answers = [(others, too_many.others())];
    assert_eq!(bed.fill().put(&Name { seat: 0, name: &name(20), answers: &answers }).unwrap(), Put::Unfit, "no use");
}

#[test]
fn names_of_many_labels_and_what_is_no_name() {
    let rng = &mut Rng::new(9);
    let held = |name: &[u8], below| Held::new(name.to_vec(), 30).with_below(&mut Rng::new(1), below, 40, 3);
    let mut bed = Bed::of(&config(), Names { held: vec![held(&[0], ABSENT)], whole: true });
    // the longest name there is, of 127 labels
    let most = [[1, b'a'].repeat(127), vec![0]].concat();
    assert_eq!(most.len(), 255);
    assert!(bed.compare(&Frame::question(&most, 1).bytes(), &"127 labels"));
    for at in (0..most.len()).step_by(7) {
        for octet in [0, 2, 63, 64, 65, 0x7f, 0x80, 0xc0, 0xff] {
            let mut name = most.clone();
            name[at] = octet;
            let frame = Frame::question(&name, 1).bytes();
            bed.compare(&frame, &(at, octet));
        }
    }
    // a name that ends early, or late
    for (name, what) in [
        (&b"\x01a\0\x01b\0"[..], "an end within"),
        (b"\x01a\x01b", "no end"),
        (b"\x05a\0", "a label that is cut off"),
        (b"\x01a\xc0\x0c", "a pointer"),
        (b"\x40aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\0", "a label of 64 octets"),
    ] {
        assert!(!bed.compare(&Frame::question(name, 1).bytes(), &what), "{what}");
    }
    // entries at so many lengths that not all are looked at
    for (count, takes) in [(8, true), (9, false)] {
        let ends = |n: usize| [[1, b'a'].repeat(n), vec![1, b'z', 0]].concat();
        let mut all: Vec<Held> = (0..count - 1).map(|n| held(&ends(n), Below::Left)).collect();
        all.push(held(&[0], ABSENT));
        bed.hold(Names { held: all, whole: true });
        let name = [[1, b'b'].repeat(20), vec![0]].concat();
        assert_eq!(bed.compare(&asked(rng, &name).bytes(), &count), takes, "{count} lengths");
    }
}

/// A generation that says of all other names that they do not exist says so no more when one of its names goes; one that has not
/// all of them never does, while cuts answer for what is below them as they come and go.
#[test]
fn names_that_come_and_go_are_never_taken_for_missing() {
    let held = |name: &[u8], below| Held::new(name.to_vec(), 30).with_below(&mut Rng::new(1), below, 40, 3);
    let (apex, cut, leaf) =
        (held(b"\x01z\0", ABSENT), held(b"\x01c\x01z\0", REFERRAL), Held::new(b"\x01l\x01z\0".to_vec(), 30));
    let other = held(b"\x03far\x01c\x01y\0", REFERRAL);
    let [missing, below, gone, elsewhere] =
        [&b"\x01m\x01z\0"[..], b"\x02xx\x01c\x01z\0", &leaf.name, b"\x01a\x03far\x01c\x01y\0"]
            .map(|name| Frame { opt: Some(1232), ..Frame::question(name, 1) });
    let all = vec![apex.clone(), cut.clone(), leaf.clone()];
    let mut bed = Bed::new(Vec::new());
    let given = bed.hold(Names { held: all.clone(), whole: true });
    let says = |bed: &mut Bed| [&missing, &below, &gone, &elsewhere].map(|frame| bed.compare(&frame.bytes(), &frame));
    assert_eq!(says(&mut bed), [true, true, true, false]);
    change(&given, &[&leaf], &[]).unwrap();
    bed.names = Names { held: vec![apex.clone(), cut.clone()], whole: false };
    assert_eq!(says(&mut bed), [false, true, false, false]);
    // a name of a length that no other had says something, too
    change(&given, &[&cut], &[(1, &other), (2, &leaf)]).unwrap();
    bed.names.held = vec![apex.clone(), other.clone(), leaf.clone()];
    assert_eq!(says(&mut bed), [false, false, true, true]);
    change(&given, &[&other], &[(1, &cut)]).unwrap();
    bed.names.held = vec![apex, cut, leaf];
    assert_eq!(says(&mut bed), [false, true, true, false]);
    // what was told of one generation does not hold for the next
    bed.hold(Names { held: vec![other], whole: true });
    assert_eq!(says(&mut bed), [false, false, false, true]);
    bed.names = Names { held: all, whole: true };
    let answers = bed.steering.answers().unwrap();
    let fill = bed.fill();
    answers.stop().unwrap();
    assert_eq!([&missing, &below].map(|frame| bed.run(&frame.bytes()).0), [PASS; 2]);
    fill.start(false, true).unwrap();
    assert_eq!(says(&mut bed), [true, true, true, false]);
}

#[test]
fn missing_names_have_their_zone_s_account_and_are_counted_as_missing() {
    const RATE: u32 = 20;
    let held = |name: &[u8], below| Held::new(name.to_vec(), 30).with_below(&mut Rng::new(1), below, 40, 3);
    let names = Names { held: vec![held(b"\x01z\0", ABSENT), held(b"\x01c\x01z\0", REFERRAL)], whole: true };
    let mut limited = config();
    limited.answers.as_mut().unwrap().rate = Some(RATE);
    let mut bed = Bed::of(&limited, names);
    let begun = std::time::Instant::now();
    let mut sent = |name: &dyn Fn(usize) -> Vec<u8>| {
        let frames = (0..50).map(|n| Frame { opt: Some(1232), ..Frame::question(&name(n), 1) }.bytes());
        frames.filter(|frame| bed.run(frame).0 == TX).count()
    };
    let two = |n: usize| [b'a' + (n / 10) as u8, b'a' + (n % 10) as u8];
    let missing = sent(&|n| [&[2][..], &two(n), b"\x01z\0"].concat());
    let data = sent(&|_| b"\x01z\0".to_vec());
    let referrals = sent(&|n| [&[2][..], &two(n), b"\x01c\x01z\0"].concat());
    // referrals for a cut and for what is below it are the same
    let cut = sent(&|_| b"\x01c\x01z\0".to_vec());
    let more = (begun.elapsed().as_secs_f64() * f64::from(RATE)).ceil() as usize;
    for count in [missing, data, referrals] {
        assert!((RATE as usize..=RATE as usize + more).contains(&count), "{missing} {data} {referrals}, {more} more");
    }
    assert!(cut <= more, "{cut}, {more}");
    let answered = bed.steering.answers().unwrap().answered(4).unwrap();
    assert_eq!(answered.zones[2], [referrals as u64, missing as u64]);
}

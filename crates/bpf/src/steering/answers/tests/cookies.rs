//! Cookies: those that RFC 9018 shows, and everything else beside the twin.

use super::model::option;
use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

const SECRET: [u8; 16] = *b"of the first one";
const OTHER: [u8; 16] = *b"of another oven.";
const CLIENT: [u8; 8] = [0x24, 0x64, 0xc4, 0xab, 0xcf, 0x10, 0xc9, 0x57];

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// A bed that makes cookies, in the second 1,600,000,000.
fn bed(held: Vec<Held>, others: bool) -> Bed {
    let mut bed = Bed::new(held);
    bed.bake(SECRET, others, 1_600_000_000);
    bed
}

/// A cookie for a sender, made so many seconds ago by a bed's oven.
fn cookie(bed: &Bed, from: IpAddr, age: i32) -> Vec<u8> {
    let made = bed.oven.second().wrapping_sub_signed(age);
    [&CLIENT[..], &bed.oven.server(&CLIENT, made, from)].concat()
}

/// The vectors of RFC 9018 appendix A: secret, time, question's cookie, sender, the answer's, whether it was right.
#[test]
fn the_published_cookies_are_made() {
    let held = Held::new(name(20), 30);
    let first = "e5e973e5a6b2a43f48e7dc849e37bfcf";
    for (secret, unix_s, asked, from, baked, proven) in [
        (
            first,
            1_559_731_985,
            "2464c4abcf10c957",
            "198.51.100.100",
            "2464c4abcf10c957010000005cf79f111f8130c3eee29480",
            0,
        ),
        (
            first,
            1_559_734_385,
            "2464c4abcf10c957010000005cf79f111f8130c3eee29480",
            "198.51.100.100",
            "2464c4abcf10c957010000005cf7a871d4a564a1442aca77",
            1,
        ),
        // from another implementation, whose reserved octets are not zero: too old when it was shown, and right before
        (
            first,
            1_559_734_700,
            "fc93fc62807ddb8601abcdef5cf78f71a314227b6679ebf5",
            "203.0.113.203",
            "fc93fc62807ddb86010000005cf7a9acf73a7810aca2381e",
            0,
        ),
        (
            first,
            0x5cf7_8f71 + 60,
            "fc93fc62807ddb8601abcdef5cf78f71a314227b6679ebf5",
            "203.0.113.203",
            "fc93fc62807ddb86010000005cf78fadfb138d6372b6af70",
            1,
        ),
        // a new secret
        (
            "445536bcd2513298075a5d379663c962",
            1_559_741_961,
            "22681ab97d52c298",
            "2001:db8:220:1:59de:d0f4:8769:82b8",
            "22681ab97d52c298010000005cf7c609a6bb79d16625507a",
            0,
        ),
        // the old one's time
        (
            "dd3bdf9344b678b185a6f5cb60fca715",
            1_559_741_817,
            "22681ab97d52c298",
            "2001:db8:220:1:59de:d0f4:8769:82b8",
            "22681ab97d52c298010000005cf7c57926556bd0934c72f8",
            0,
        ),
    ] {
        let mut bed = Bed::new(vec![held.clone()]);
        let mut frame = Frame { opt: Some(1232), cookie: Some(hex(asked)), ..Frame::question(&held.name, 1) };
        match from.parse().unwrap() {
            IpAddr::V4(from) => frame.from4 = from.octets(),
            IpAddr::V6(from) => (frame.v6, frame.from6) = (true, from),
        }
        // a machine may be so busy that the second is over
        let mut tries = 0;
        let out = loop {
            bed.bake(hex(secret).try_into().unwrap(), false, unix_s);
            let (action, out) = bed.run(&frame.bytes());
            assert_eq!(action, TX);
            if bed.oven.second() == unix_s {
                break out;
            }
            tries += 1;
            assert!(tries < 20, "{unix_s}");
        };
        assert_eq!(out[out.len() - 24..], hex(baked), "{unix_s}");
        assert_eq!(bed.proven(), tries * proven + proven, "{unix_s}");
    }
}

#[test]
fn every_name_family_size_and_cookie_is_answered_as_the_twin_does() {
    let rng = &mut Rng::new(17);
    let mut bed = bed(names(), false);
    let (mut answered, mut frames) = (0, 0);
    for held in bed.names.held.clone() {
        for n in 0..20 {
            let mut frame = Frame::question(&held.name, [1, 28, 65_280][n % 3]);
            frame.v6 = n % 2 == 1;
            frame.tag = n % 5 == 0;
            frame.opt = [Some(0), Some(512), Some(900), Some(1232), Some(4096)][n / 4];
            let cookie = match n % 4 {
                0 => CLIENT.to_vec(),
                1 | 2 => cookie(&bed, frame.from(), rng.below(3800) as i32 - 250),
                _ => (0..24).map(|_| rng.next_u64() as u8).collect(),
            };
            frame.cookie = Some(cookie);
            for octet in &mut frame.name {
                if rng.chance(0.5) {
                    octet.make_ascii_uppercase();
                }
            }
            answered += usize::from(bed.compare(&frame.bytes(), &frame));
            frames += 1;
        }
    }
    // but for what has no cut so small
    assert!(answered > frames * 2 / 3, "{answered} of {frames}");
    assert!(bed.proven() > frames as u64 / 4, "{} of {frames}", bed.proven());
}

/// The option takes room, so that fewer sets fit.
#[test]
fn sets_leave_at_the_sizes_at_which_they_do_for_the_twin() {
    let mut bed = bed(vec![Held::new(name(21), 700), Held::new(name(22), 430), Held::new(name(23), 1100)], false);
    let mut truncated = 0;
    for (n, held) in bed.names.held.clone().into_iter().enumerate() {
        for size in 500..1240 {
            let v6 = (usize::from(size) + n) % 2 == 0;
            let plain = Frame { v6, opt: Some(size), ..Frame::question(&held.name, 1) };
            let proven = cookie(&bed, plain.from(), 0);
            for cookie in [None, Some(CLIENT.to_vec()), Some(proven)] {
                let frame = Frame { cookie, ..plain.clone() };
                truncated += u32::from(bed.compare(&frame.bytes(), &frame));
            }
        }
    }
    assert_eq!(truncated, 3 * 3 * 740);
}

#[test]
fn a_cookie_is_good_for_its_client_for_an_hour() {
    let held = Held::new(name(20), 30);
    let mut bed = bed(vec![held.clone()], false);
    for v6 in [false, true] {
        let plain = Frame { v6, opt: Some(1232), ..Frame::question(&held.name, 1) };
        let from = plain.from();
        let proves = |bed: &mut Bed, cookie: Vec<u8>| {
            let before = bed.proven();
            assert!(bed.compare(&Frame { cookie: Some(cookie), ..plain.clone() }.bytes(), &"a cookie"));
            bed.proven() > before
        };
        // a second may pass in between: then the twin says so, too
        for age in [-301, -300, -299, 0, 1, 3599, 3600, 3601, i32::MAX, i32::MIN] {
            let cookie = cookie(&bed, from, age);
            let proven = proves(&mut bed, cookie);
            assert!(proven == (-300..=3600).contains(&age) || matches!(age, -301 | 3600), "{age}");
        }
        let good = cookie(&bed, from, 10);
        assert!(proves(&mut bed, good.clone()));
        for octet in 0..24 {
            let mut forged = good.clone();
            // of the time's lowest octet a bit that leaves it fresh
            forged[octet] ^= 1;
            assert!(!proves(&mut bed, forged), "octet {octet}");
        }
        for other in ["198.51.100.8", "2001:db8:7::8"] {
            let cookie = cookie(&bed, other.parse().unwrap(), 10);
            assert!(!proves(&mut bed, cookie), "{other}");
        }
    }
}

#[test]
fn what_is_not_a_cookie_alone_goes_on_as_it_came() {
    let held = Held::new(name(20), 30);
    let mut bed = bed(vec![held.clone()], false);
    let plain = Frame { opt: Some(1232), ..Frame::question(&held.name, 1) };
    for bytes in 0..=48 {
        let frame = Frame { cookie: Some(vec![7; bytes]), ..plain.clone() };
        let answered = bed.compare(&frame.bytes(), &frame);
        assert_eq!(answered, matches!(bytes, 8 | 24), "{bytes} octets");
    }
    let cookies = [CLIENT.to_vec(), cookie(&bed, plain.from(), 0)];
    for cookie in &cookies {
        let of = Frame { cookie: Some(cookie.clone()), ..plain.clone() };
        let end = of.message().len() - 15 - cookie.len();
        let changes: [(&str, Change<'_>); 14] = [
            ("a name", &|m| m[end] = 1),
            ("not OPT", &|m| m[end + 2] = 42),
            ("not OPT at all", &|m| m[end + 1] = 1),
            ("an upper RCODE", &|m| m[end + 5] = 1),
            ("version 1", &|m| m[end + 6] = 1),
            ("DO", &|m| m[end + 7] = 0x80),
            ("a flag", &|m| m[end + 8] = 1),
            ("fewer data", &|m| m[end + 10] -= 1),
            ("more data", &|m| m[end + 9] = 1),
            ("another option", &|m| m[end + 12] = 3),
            ("one more", &|m| m[end + 11] = 1),
            ("a longer cookie", &|m| m[end + 14] += 1),
            ("an octet behind", &|m| m.push(0)),
            ("another option behind", &|m| {
                m[end + 10] += 4;
                m.extend([0, 3, 0, 0]);
            }),
        ];
        for (what, change) in changes {
            for v6 in [false, true] {
                let mut message = of.message();
                change(&mut message);
                assert!(!bed.compare(&Frame { v6, ..of.clone() }.around(&message), &what), "{what}, {cookie:?}");
            }
        }
    }
    // options of the lengths of one cookie
    for options in [[option(10, &[]), option(10, &[0; 4])], [option(3, &[]), option(10, &CLIENT)]] {
        let mut message = Frame { cookie: Some(Vec::new()), ..plain.clone() }.message();
        let at = message.len() - 6;
        message.truncate(at);
        let options = options.concat();
        message.extend((options.len() as u16).to_be_bytes());
        message.extend(options);
        assert!(!bed.compare(&plain.around(&message), &message));
    }
}

/// A cookie may end as a record without options does, and a name may have, just so far from the end, what looks like one with a
/// cookie.
#[test]
fn one_form_is_not_taken_for_another() {
    let plain = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    let label = [&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 28, 0, 10, 0, 24][..], &[9; 8]].concat();
    let odd = [&[23][..], &label, &[0]].concat();
    let mut bed = bed(vec![Held::new(name(20), 30), Held::new(odd, 30)], false);
    let [held, odd] = [bed.names.held[0].clone(), bed.names.held[1].clone()];
    // taken for one without options, whose name is not there; the stack tells them apart
    let cookie = [&[1; 13][..], &plain].concat();
    let frame = Frame { opt: Some(1232), cookie: Some(cookie), ..Frame::question(&held.name, 1) };
    assert_eq!(bed.run(&frame.bytes()), (PASS, frame.bytes()));
    for cookie in [None, Some(CLIENT.to_vec()), Some(vec![1; 24])] {
        let frame = Frame { opt: Some(1232), cookie, ..Frame::question(&odd.name, 1) };
        assert!(bed.compare(&frame.bytes(), &frame), "{frame:?}");
    }
}

#[test]
fn any_bit_changed_anywhere_beside_a_cookie_is_judged_as_by_the_twin() {
    let rng = &mut Rng::new(23);
    let mut bed = bed(vec![Held::new(name(20), 30), Held::new(name(61), 700), Held::new(name(1), 3)], false);
    let mut answered = 0;
    for n in 0..20_000 {
        let held = &bed.names.held[n % 3];
        let mut frame = Frame::question(&held.name, [1, 28, 6][n / 3 % 3]);
        frame.v6 = rng.chance(0.5);
        frame.tag = rng.chance(0.3);
        frame.opt = Some(1232);
        let cookie = if rng.chance(0.5) { CLIENT.to_vec() } else { cookie(&bed, frame.from(), 100) };
        frame.cookie = Some(cookie);
        let mut message = frame.message();
        for _ in 0..rng.below(3) {
            let at = rng.below(message.len() as u64) as usize;
            message[at] ^= 1 << rng.below(8);
        }
        let bytes = frame.around(&message);
        answered += usize::from(bed.compare(&bytes, &bytes.clone()));
    }
    assert!(answered > 8000, "{answered}");
    assert!(bed.proven() > 3000, "{}", bed.proven());
}

#[test]
fn cookies_that_another_secret_may_have_made_are_left() {
    let held = Held::new(name(20), 30);
    for others in [false, true] {
        let mut bed = bed(vec![held.clone()], others);
        let plain = Frame { opt: Some(1232), ..Frame::question(&held.name, 1) };
        let good = cookie(&bed, plain.from(), 0);
        let old = cookie(&bed, plain.from(), 3700);
        for (cookie, answered) in [(CLIENT.to_vec(), true), (good, true), (old, !others), (vec![0; 24], !others)] {
            let frame = Frame { cookie: Some(cookie), ..plain.clone() };
            assert_eq!(bed.compare(&frame.bytes(), &frame), answered, "{frame:?}");
        }
    }
}

#[test]
fn without_cookies_questions_with_one_are_answered_without() {
    let mut ignoring = config();
    ignoring.answers.as_mut().unwrap().cookies = false;
    let held = [Held::new(name(20), 30), Held::new(name(61), 700)];
    let mut bed = Bed::with(&ignoring, held.to_vec());
    bed.oven = Oven::Ignored;
    let answers = bed.steering.answers().unwrap();
    for round in 0..3 {
        for (n, held) in held.iter().enumerate() {
            for size in [512, 740, 760, 1232] {
                // what is no cookie by its length is the stack's, which passes over it, too
                for bytes in [0, 7, 9, 15, 41] {
                    let cookie = Some(vec![1; bytes]);
                    let frame = Frame { opt: Some(size as u16), cookie, ..Frame::question(&held.name, 1) };
                    assert_eq!(bed.run(&frame.bytes()), (PASS, frame.bytes()), "{bytes} octets");
                }
                for cookie in [None, Some(CLIENT.to_vec()), Some(vec![1; 24])] {
                    let v6 = (size + n) % 2 == 0;
                    let frame = Frame { v6, opt: Some(size as u16), cookie, ..Frame::question(&held.name, 1) };
                    assert!(bed.compare(&frame.bytes(), &frame), "{frame:?}");
                }
            }
        }
        // who asks for none gets none, whatever is said to the program
        let baking = Baking { secret: SECRET, others: false, zero_ns: 0, unix_time_at_zero_s: 0 };
        if round == 0 { answers.make_cookies(&baking) } else { answers.leave_cookies() }.unwrap();
    }
}

#[test]
fn a_good_cookie_exempts_from_the_rate() {
    let mut limited = config();
    limited.answers.as_mut().unwrap().rate = Some(1);
    let held = Held::new(name(20), 30);
    let mut bed = Bed::with(&limited, vec![held.clone()]);
    bed.bake(SECRET, false, 1_600_000_000);
    let plain = Frame { opt: Some(1232), ..Frame::question(&held.name, 1) };
    let good = Frame { cookie: Some(cookie(&bed, plain.from(), 0)), ..plain.clone() };
    let client = Frame { cookie: Some(CLIENT.to_vec()), ..plain.clone() };
    let forged = Frame { cookie: Some(vec![3; 24]), ..plain.clone() };
    let begun = std::time::Instant::now();
    let mut sent = [0; 4];
    for _ in 0..50 {
        for (sent, frame) in sent.iter_mut().zip([&plain, &good, &client, &forged]) {
            *sent += u64::from(bed.run(&frame.bytes()).0 == TX);
        }
    }
    assert_eq!((sent[1], bed.proven()), (50, 50));
    let others = sent[0] + sent[2] + sent[3];
    assert!((1..=2 + begun.elapsed().as_secs()).contains(&others), "{sent:?}");
    let left = bed.steering.counts().get("steering_rate_reached_total", "").unwrap();
    assert_eq!(left, 150 - others);
}

/// As when the machine's clock was 600 s behind when the server started, and is set then.
#[test]
fn cookies_follow_the_clock_when_it_is_set() {
    let held = Held::new(name(20), 30);
    let mut bed = Bed::new(vec![held.clone()]);
    let plain = Frame { opt: Some(1232), ..Frame::question(&held.name, 1) };
    let proves = |bed: &mut Bed, cookie: &[u8]| {
        let before = bed.proven();
        assert!(bed.compare(&Frame { cookie: Some(cookie.to_vec()), ..plain.clone() }.bytes(), &"a cookie"));
        bed.proven() > before
    };
    let from = plain.from();
    bed.bake(SECRET, false, 1_600_000_600);
    let theirs = cookie(&bed, from, 0);
    bed.bake(SECRET, false, 1_600_000_000);
    assert!(!proves(&mut bed, &theirs), "of a server whose clock is right");
    let early = cookie(&bed, from, 0);
    bed.bake(SECRET, false, 1_600_000_600);
    assert!(proves(&mut bed, &theirs) && proves(&mut bed, &early));
    let (action, out) = bed.run(&Frame { cookie: Some(CLIENT.to_vec()), ..plain.clone() }.bytes());
    let made = u32::from_be_bytes(out[out.len() - 12..out.len() - 8].try_into().unwrap());
    assert!(action == TX && (1_600_000_600..1_600_000_700).contains(&made), "{made}");
    bed.bake(SECRET, false, 1_600_000_000);
    assert!(!proves(&mut bed, &theirs));
}

/// While secrets are exchanged who asks is answered with a cookie of one of them, whole, or not at all; and when that has been
/// done, of the new one.
#[test]
fn nobody_gets_a_cookie_of_half_a_secret_or_of_one_that_is_gone() {
    const CHANGES: usize = 200;
    let held = Held::new(name(20), 30);
    let bed = bed(vec![held.clone()], false);
    let answers = bed.steering.answers().unwrap();
    let zero_ns = model::now_ns();
    let ovens = [SECRET, OTHER]
        .map(|secret| Oven::Made(Baking { secret, others: false, zero_ns, unix_time_at_zero_s: 1_600_000_000 }));
    let frame = Frame { opt: Some(1232), cookie: Some(CLIENT.to_vec()), ..Frame::question(&held.name, 1) };
    let (question, from) = (frame.bytes(), frame.from());
    // which oven made what came out
    let maker = |out: &[u8]| {
        let server = &out[out.len() - 16..];
        let unix_s = u32::from_be_bytes(server[4..8].try_into().unwrap());
        ovens.iter().position(|oven| oven.server(&CLIENT, unix_s, from) == server)
    };
    let stop = AtomicBool::new(false);
    let bed = std::sync::Mutex::new(bed);
    let program = || bed.lock().unwrap().run(&question);
    let (answered, left) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut outcomes = [0usize; 2];
            while !stop.load(Ordering::Relaxed) {
                let (action, out) = program();
                assert!(action == TX && maker(&out).is_some() || action == PASS && out == question, "{out:02x?}");
                outcomes[usize::from(action == PASS)] += 1;
            }
            outcomes.into()
        });
        for n in 0..CHANGES {
            let Oven::Made(baking) = &ovens[n % 2] else { panic!("it makes cookies") };
            answers.make_cookies(baking).unwrap();
            let (action, out) = program();
            assert_eq!((action, maker(&out)), (TX, Some(n % 2)), "{out:02x?}");
            answers.leave_cookies().unwrap();
            assert_eq!(program(), (PASS, question.clone()));
            assert_eq!(answers.lock().secret.get(&0, 0).unwrap(), [0; BAKING_BYTES], "the secret is gone");
            if asking.is_finished() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        asking.join().unwrap()
    });
    assert!(answered > 0 && left > 0, "{answered} answered, {left} left to the socket");
}

//! DNS cookies (RFC 7873) in the interoperable form of RFC 9018: SipHash-2-4 over the client's cookie, a time and its
//! address. Every server behind an anycast address that has the same secret takes the others' cookies.

use base::Instant;
use base::publish::{Publisher, Reader};
use siphasher::sip::SipHasher24;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Octets of a server cookie (RFC 9018 section 4).
pub(crate) const SERVER_BYTES: usize = 16;
/// Octets of a client cookie.
pub(crate) const CLIENT_BYTES: usize = 8;
/// Octets of the option that goes out: code, length, both cookies.
pub(crate) const OPTION_BYTES: usize = 4 + CLIENT_BYTES + SERVER_BYTES;

/// How long ago a cookie may have been made, in seconds (RFC 9018 section 4.3).
const PAST_S: i32 = 3600;
/// How far ahead the clock of the server that made it may be.
const AHEAD_S: i32 = 300;

/// Secrets, ready for use.
pub struct Secrets {
    secrets: Vec<[u8; 16]>,
    hashers: Vec<SipHasher24>,
}

impl Secrets {
    /// Cookies are made with the first, and taken under any: put the next secret second first, then in front, then drop the
    /// old one (RFC 9018 section 5). Without one there are no cookies.
    pub fn new(secrets: Vec<[u8; 16]>) -> Secrets {
        let hashers = secrets.iter().map(SipHasher24::new_with_key).collect();
        Secrets { secrets, hashers }
    }

    /// The one that cookies are made with, for who makes them in front of the service; None when there is none.
    pub fn active(&self) -> Option<&[u8; 16]> {
        self.secrets.first()
    }

    /// Whether cookies are taken under others, too.
    pub fn has_others(&self) -> bool {
        self.secrets.len() > 1
    }
}

/// Those of the same secrets in the same order.
impl PartialEq for Secrets {
    fn eq(&self, other: &Self) -> bool {
        self.secrets == other.secrets
    }
}

impl Eq for Secrets {}

/// Secrets are not shown.
impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.secrets.len())
    }
}

/// The server's secrets and its clock.
#[derive(Clone, Debug)]
pub struct Config {
    /// they may be replaced while the server serves; it takes the new ones at its next cycle
    pub secrets: Arc<Publisher<Secrets>>,
    /// the time that cookies tell; it may be set while the server serves
    pub time: Arc<UnixTime>,
}

/// The wall clock at the zero of an engine's time, which several threads read. Engines' clocks count on when the machine's is set,
/// and stand still while it is suspended; servers that share secrets must agree on the time all the same.
#[derive(Debug)]
pub struct UnixTime(AtomicU64);

impl UnixTime {
    /// With seconds since 1970 at [`Instant::ZERO`].
    pub const fn new(at_zero_s: u64) -> UnixTime {
        UnixTime(AtomicU64::new(at_zero_s))
    }

    /// Replaces them.
    pub fn set(&self, at_zero_s: u64) {
        self.0.store(at_zero_s, Ordering::Relaxed);
    }

    /// Seconds since 1970 at [`Instant::ZERO`].
    #[inline]
    pub fn at_zero_s(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Config {
    /// With secrets that stay, and seconds since 1970 at [`Instant::ZERO`].
    pub fn fixed(secrets: Vec<[u8; 16]>, unix_time_at_zero_s: u64) -> Config {
        let secrets = Arc::new(Publisher::new(Arc::new(Secrets::new(secrets))));
        Config { secrets, time: Arc::new(UnixTime::new(unix_time_at_zero_s)) }
    }
}

/// Makes and checks server cookies.
pub(crate) struct Baker {
    secrets: Reader<Secrets>,
    time: Arc<UnixTime>,
}

impl Baker {
    /// With the secrets of now.
    pub(crate) fn new(config: &Config) -> Baker {
        Baker { secrets: config.secrets.reader(), time: config.time.clone() }
    }

    /// Takes newer secrets if there are some; between bursts only.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        self.secrets.refresh();
    }

    /// The cookie for this client now; None without a secret.
    pub(crate) fn make(&self, now: Instant, client: &[u8; CLIENT_BYTES], peer: IpAddr) -> Option<[u8; SERVER_BYTES]> {
        let active = self.secrets.hashers.first()?;
        let mut head = [1, 0, 0, 0, 0, 0, 0, 0];
        head[4..].copy_from_slice(&self.seconds(now).to_be_bytes());
        Some(baked(active, head, client, peer))
    }

    /// Whether the cookie is ours, for this client, and fresh.
    pub(crate) fn is_valid(&self, now: Instant, client: &[u8; CLIENT_BYTES], server: &[u8], peer: IpAddr) -> bool {
        let Ok(server) = <&[u8; SERVER_BYTES]>::try_from(server) else { return false };
        // version 1; what the three reserved octets say is nothing to us, but it is hashed (RFC 9018 section 4.2)
        let [head @ .., _, _, _, _, _, _, _, _] = *server;
        let [1, _, _, _, made @ ..] = head else { return false };
        let made = u32::from_be_bytes(made);
        // serial number arithmetic (RFC 1982), as RFC 9018 section 4.3 wants
        let age = self.seconds(now).wrapping_sub(made) as i32;
        if !(-AHEAD_S..=PAST_S).contains(&age) {
            return false;
        }
        self.secrets.hashers.iter().any(|hasher| {
            let expected = baked(hasher, head, client, peer);
            // no early end, so that time tells nothing
            expected.iter().zip(server).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
        })
    }

    fn seconds(&self, now: Instant) -> u32 {
        (self.time.at_zero_s() + now.as_nanos() / 1_000_000_000) as u32
    }
}

/// The cookie of such a version, reserved octets and time (RFC 9018 section 4.4).
fn baked(
    hasher: &SipHasher24,
    head: [u8; SERVER_BYTES - 8],
    client: &[u8; CLIENT_BYTES],
    peer: IpAddr,
) -> [u8; SERVER_BYTES] {
    let mut input = [0; 32];
    input[..8].copy_from_slice(client);
    input[8..16].copy_from_slice(&head);
    let len = match peer {
        IpAddr::V4(address) => {
            input[16..20].copy_from_slice(&address.octets());
            20
        }
        IpAddr::V6(address) => {
            input[16..32].copy_from_slice(&address.octets());
            32
        }
    };
    let mut cookie = [0; SERVER_BYTES];
    cookie[..8].copy_from_slice(&head);
    cookie[8..].copy_from_slice(&hasher.hash(&input[..len]).to_le_bytes());
    cookie
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        let octets: Vec<u8> =
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
        octets.try_into().unwrap()
    }

    fn baker(secrets: &[&str], unix_time_at_zero_s: u64) -> Baker {
        Baker::new(&Config::fixed(secrets.iter().map(|text| hex(text)).collect(), unix_time_at_zero_s))
    }

    /// RFC 9018 appendix A.1.
    #[test]
    fn makes_the_published_cookie() {
        let baker = baker(&["e5e973e5a6b2a43f48e7dc849e37bfcf"], 1_559_731_985);
        let peer = "198.51.100.100".parse().unwrap();
        let made = baker.make(Instant::ZERO, &hex("2464c4abcf10c957"), peer);
        assert_eq!(made.unwrap(), hex("010000005cf79f111f8130c3eee29480"));
    }

    /// RFC 9018 appendix A.3: another implementation's, which has something in the reserved octets.
    #[test]
    fn reserved_octets_are_hashed_and_not_judged() {
        let baker = baker(&["e5e973e5a6b2a43f48e7dc849e37bfcf"], 0x5cf7_8f71 + 60);
        let (client, peer) = (hex("fc93fc62807ddb86"), "203.0.113.203".parse().unwrap());
        let theirs: [u8; 16] = hex("01abcdef5cf78f71a314227b6679ebf5");
        assert!(baker.is_valid(Instant::ZERO, &client, &theirs, peer));
        for octet in 0..4 {
            let mut other = theirs;
            other[octet] ^= 2;
            assert!(!baker.is_valid(Instant::ZERO, &client, &other, peer), "octet {octet}");
        }
    }

    #[test]
    fn a_cookie_is_good_for_its_client_for_an_hour() {
        let old = baker(&["00000000000000000000000000000001"], 1000);
        let rolled = baker(&["00000000000000000000000000000002", "00000000000000000000000000000001"], 1000);
        let (client, peer) = ([7; 8], "2001:db8::1".parse().unwrap());
        let made = old.make(Instant::ZERO, &client, peer).unwrap();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        assert!(old.is_valid(at(0), &client, &made, peer));
        assert!(rolled.is_valid(at(3600), &client, &made, peer));
        assert!(!old.is_valid(at(3601), &client, &made, peer));
        assert!(!old.is_valid(at(0), &[8; 8], &made, peer));
        assert!(!old.is_valid(at(0), &client, &made, "2001:db8::2".parse().unwrap()));
        assert!(!old.is_valid(at(0), &client, &made[..15], peer));
        for octet in 0..SERVER_BYTES {
            let mut forged = made;
            forged[octet] ^= 1;
            // the low bit of the time leaves it fresh, but no longer fits the hash
            assert!(!old.is_valid(at(2), &client, &forged, peer), "octet {octet}");
        }
        let early = old.make(at(301), &client, peer).unwrap();
        assert!(!old.is_valid(at(0), &client, &early, peer));
        assert!(old.is_valid(at(1), &client, &early, peer));
    }

    #[test]
    fn secrets_roll_while_clients_keep_their_cookies() {
        let [first, second] = [[1; 16], [2; 16]];
        let config = Config::fixed(vec![first], 1000);
        let mut baker = Baker::new(&config);
        let (client, peer, now) = ([7; 8], "192.0.2.1".parse().unwrap(), Instant::ZERO);
        let old = baker.make(now, &client, peer).unwrap();
        let steps =
            [(vec![first, second], true, true), (vec![second, first], true, false), (vec![second], false, false)];
        for (secrets, takes_old, makes_old) in steps {
            config.secrets.publish(Arc::new(Secrets::new(secrets)));
            baker.refresh();
            assert_eq!(baker.is_valid(now, &client, &old, peer), takes_old);
            let made = baker.make(now, &client, peer).unwrap();
            assert_eq!(made == old, makes_old);
            assert!(baker.is_valid(now, &client, &made, peer));
            // a server made now, from the settings of the start
            assert!(Baker::new(&config).is_valid(now, &client, &made, peer));
        }
    }

    /// Another server's clock was right all the time; ours was 600 s behind when we began, or was suspended for so long.
    #[test]
    fn cookies_follow_the_clock_when_it_is_set() {
        let config = Config::fixed(vec![[1; 16]], 1000);
        let (ours, right) = (Baker::new(&config), Baker::new(&Config::fixed(vec![[1; 16]], 1600)));
        let (client, peer, now) = ([7; 8], "192.0.2.1".parse().unwrap(), Instant::ZERO);
        let theirs = right.make(now, &client, peer).unwrap();
        let early = ours.make(now, &client, peer).unwrap();
        assert!(!ours.is_valid(now, &client, &theirs, peer));
        config.time.set(1600);
        assert!(ours.is_valid(now, &client, &theirs, peer));
        assert_eq!(ours.make(now, &client, peer), Some(theirs));
        assert!(ours.is_valid(now, &client, &early, peer), "10 minutes old");
        config.time.set(1000);
        assert!(!ours.is_valid(now, &client, &theirs, peer));
    }

    #[test]
    fn without_a_secret_there_are_no_cookies() {
        let none = Baker::new(&Config::fixed(Vec::new(), 0));
        let peer = "192.0.2.1".parse().unwrap();
        assert_eq!(none.make(Instant::ZERO, &[0; 8], peer), None);
        assert!(!none.is_valid(Instant::ZERO, &[0; 8], &[0; 16], peer));
    }
}

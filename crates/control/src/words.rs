//! The values of the command line and the configuration file: one type a word, read with `FromStr`, with an error that
//! says what would have been right. Both places read the same types, so both accept the same spellings.

mod peers;

pub(crate) use peers::Peers;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use wire::toeplitz::Key;

/// An address with a prefix length, such as `192.0.2.0/24`; an address alone means all its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// the address as written
    pub address: IpAddr,
    /// how many leading bits count
    pub bits: u8,
}

impl Prefix {
    fn parse(text: &str) -> Option<Prefix> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            // `parse` would take a sign
            Some(bits) if bits.bytes().all(|b| b.is_ascii_digit()) => bits.parse().ok().filter(|&bits| bits <= most)?,
            Some(_) => return None,
            None => most,
        };
        Some(Prefix { address, bits }.unmapped())
    }

    /// IPv4 for what is written as mapped into IPv6: no packet has such an address (RFC 4291 section 2.5.5.2).
    fn unmapped(self) -> Prefix {
        match (self.address.to_canonical(), self.bits.checked_sub(96)) {
            (IpAddr::V4(address), Some(bits)) if self.address.is_ipv6() => Prefix { address: address.into(), bits },
            _ => self,
        }
    }

    /// The first address of the prefix.
    pub fn network(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V4((u32::from(address) & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V6((u128::from(address) & mask).into())
            }
        }
    }
}

impl FromStr for Prefix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let prefix = Prefix::parse(text)
            .ok_or_else(|| format!("`{text}` is not a prefix; write it as 192.0.2.0/24 or 2001:db8::/32"))?;
        if prefix.network() != prefix.address {
            let network = prefix.network();
            return Err(format!("`{text}` has bits beyond its length; write {network}/{}", prefix.bits));
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// An address that simoom answers for itself, with the prefix length of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Own(pub Prefix);

impl FromStr for Own {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let prefix = Prefix::parse(text)
            .ok_or_else(|| format!("`{text}` is not an address; write it as 192.0.2.7/24 or 2001:db8::7/64"))?;
        let special = match prefix.address {
            IpAddr::V4(address) => address.is_broadcast(),
            IpAddr::V6(_) => false,
        };
        if special || prefix.address.is_unspecified() || prefix.address.is_multicast() || prefix.address.is_loopback() {
            return Err(format!("`{text}` cannot be owned; give a unicast address of the link"));
        }
        Ok(Own(prefix))
    }
}

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The key of a NIC's receive-side scaling, in hexadecimal bytes with colons, as `ethtool -x` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssKey(pub Key);

impl FromStr for RssKey {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let byte = |pair: &str| {
            let whole = pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit());
            whole.then(|| u8::from_str_radix(pair, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let bytes = bytes.ok_or_else(|| {
            format!("`{text}` is not a key; write its bytes in hexadecimal with colons, as `ethtool -x` shows them")
        })?;
        Key::new(&bytes).map(RssKey).map_err(|error| error.to_string())
    }
}

impl fmt::Display for RssKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: Vec<String> = self.0.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        f.write_str(&bytes.join(":"))
    }
}

/// What becomes of the table by which a NIC spreads flows, when flow groups move: `follow`, `keep`, or the pinned map that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RssTable {
    /// the interface's own follows, where it can be written
    Follow,
    /// it stays as it is
    Keep,
    /// this pinned array of a program's follows
    Map(String),
}

impl FromStr for RssTable {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "follow" => Ok(RssTable::Follow),
            "keep" => Ok(RssTable::Keep),
            path if path.starts_with('/') => Ok(RssTable::Map(path.to_owned())),
            _ => Err(format!("`{text}` is none of follow, keep and the absolute path of a pinned map")),
        }
    }
}

/// Where to listen: an address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listen(pub SocketAddr);

impl FromStr for Listen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let address: SocketAddr = text
            .parse()
            .map_err(|_| format!("`{text}` is not ADDR:PORT; write it as 192.0.2.1:53 or [2001:db8::1]:53"))?;
        if address.port() == 0 {
            return Err(format!("`{text}` has port 0; give one from 1 to 65535"));
        }
        if address.ip().is_multicast() {
            return Err(format!("`{text}` is a multicast address; give a unicast one"));
        }
        Ok(Listen(address))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Processors, each of which gets a pinned thread: `0`, `0,2`, `0-3,6`; in the order given, none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(pub Vec<usize>);

impl FromStr for Cpus {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a list of processors; write it as 0,2-3");
        let number = |text: &str| text.trim().parse::<u16>().map(usize::from).map_err(|_| wrong());
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last || last >= 4096 {
                return Err(wrong());
            }
            for cpu in first..=last {
                if cpus.contains(&cpu) {
                    return Err(format!("`{text}` names processor {cpu} twice"));
                }
                cpus.push(cpu);
            }
        }
        Ok(Cpus(cpus))
    }
}

/// A zone to serve: `ORIGIN=FILE`, or a FILE that sets its own $ORIGIN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneArg {
    /// the zone's name as written
    pub origin: Option<String>,
    /// the zone file
    pub file: String,
}

impl FromStr for ZoneArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        // a path may hold `=` too: a name has no slash, so what stands before the first `=` tells them apart
        let (origin, file) = match text.split_once('=') {
            Some((origin, file)) if !origin.contains('/') => (Some(origin.to_owned()), file),
            _ => (None, text),
        };
        if file.is_empty() || origin.as_deref() == Some("") {
            return Err(format!("`{text}` is not ORIGIN=FILE; write it as example.com=/etc/simoom/example.com.zone"));
        }
        Ok(ZoneArg { origin, file: file.to_owned() })
    }
}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every spelling.
            pub const WORDS: &[&str] = &[$($text),+];
        }

        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok($name::$variant),)+
                    _ => Err(format!("`{text}` is none of {}", Self::WORDS.join(", "))),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $text,)+ })
            }
        }
        from_text!($name);
    };
}

/// Reads a type in the configuration file as its `FromStr` reads a string.
macro_rules! from_text {
    ($($name:ident),+) => {
        $(impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        })+
    };
}

/// Where a service runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// in the server's own process
    #[default]
    Inline,
    /// in a process of its own, on the processor of the thread that serves it
    Same,
    /// in a process of its own, on this processor
    Cpu(u32),
}

impl FromStr for Placement {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "inline" => return Ok(Placement::Inline),
            "same" => return Ok(Placement::Same),
            _ => {}
        }
        let cpu = text.strip_prefix("cpu=").and_then(|cpu| cpu.parse().ok()).filter(|cpu| *cpu < 4096);
        cpu.map(Placement::Cpu).ok_or_else(|| format!("`{text}` is none of inline, same, cpu=N"))
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Inline => f.write_str("inline"),
            Placement::Same => f.write_str("same"),
            Placement::Cpu(cpu) => write!(f, "cpu={cpu}"),
        }
    }
}

from_text!(Prefix, Own, Listen, Peers, Placement, RssKey, RssTable);

impl<'de> serde::Deserialize<'de> for Cpus {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// `cpus = [0, 2]` and `cpus = "0,2"` are the same.
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Cpus;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("processors, such as [0, 2] or \"0,2-3\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Cpus, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Cpus, A::Error> {
                let mut parts = Vec::new();
                while let Some(cpu) = seq.next_element::<u16>()? {
                    parts.push(cpu.to_string());
                }
                self.visit_str(&parts.join(","))
            }
        }
        from.deserialize_any(Visitor)
    }
}

word! {
    /// Which engine carries the packets.
    Backend {
        /// our own stack over AF_XDP, or exit
        Xdp = "xdp",
        /// the kernel's sockets
        Sockets = "sockets",
        /// AF_XDP where it can be had, else sockets with a warning
        Auto = "auto",
    }
}

word! {
    /// What answers the datagrams of DNS.
    Tier {
        /// the program in the driver what it can, and AF_XDP the rest
        Driver = "driver",
        /// our own stack over AF_XDP
        Xdp = "xdp",
        /// the kernel's sockets
        Sockets = "sockets",
        /// our own stack where there is AF_XDP, else the kernel's sockets
        Auto = "auto",
    }
}

word! {
    /// How AF_XDP is bound.
    Mode {
        /// the best that works, in the order of the others; for TCP with large sends on a virtual
        /// link of one queue, generic first
        Auto = "auto",
        /// the NIC writes into our memory
        Zerocopy = "zerocopy",
        /// the driver's XDP hook, and the kernel copies
        Copy = "copy",
        /// the kernel's generic hook, and the kernel copies
        Generic = "generic",
    }
}

word! {
    /// What a thread does when nothing comes.
    Idle {
        /// looks again at once
        Spin = "spin",
        /// looks again for a while, then sleeps
        Adaptive = "adaptive",
        /// sleeps
        Block = "block",
    }
}

word! {
    /// How connections and datagrams get to the threads on kernel sockets.
    Spread {
        /// one socket for all threads
        Shared = "shared",
        /// a socket a thread, and the kernel's hash between them, or where connections arrive
        PerCore = "per-core",
        /// a socket a thread, and a table of flow groups between them
        Affinity = "affinity",
    }
}

word! {
    /// How threads help each other out.
    Balance {
        /// who has time takes over flow groups of who has none; on kernel sockets it first takes from its queue
        On = "on",
        /// on kernel sockets, who has time takes from who has none; flow groups stay, everywhere
        Steal = "steal",
        /// each for itself
        Off = "off",
    }
}

word! {
    /// Whether the server confines itself once everything is open.
    Sandbox {
        /// it does, or does not start
        On = "on",
        /// it does not
        Off = "off",
        /// by what the kernel has for that
        Auto = "auto",
    }
}

word! {
    /// How many of the threads serve.
    Threads {
        /// all of them
        Static = "static",
        /// as many as the load needs
        Elastic = "elastic",
    }
}

word! {
    /// How `simoom ping` sleeps on a kernel socket.
    Sleep {
        /// in recv(2)
        Recv = "recv",
        /// in epoll_wait(2)
        Epoll = "epoll",
    }
}

word! {
    /// What happens to a question with a compressed name.
    QuestionCompression {
        /// FORMERR
        Refuse = "refuse",
        /// answered
        Accept = "accept",
    }
}

word! {
    /// How a DNS answer gets into the frame that is sent.
    Transmit {
        /// the received frame becomes the answer
        Inplace = "inplace",
        /// the answer is made in a frame of our own
        Copy = "copy",
        /// finished answers are retained and copied whole
        Precopy = "precopy",
    }
}

word! {
    /// How the segments of web answers get to the device.
    WebTransmit {
        /// as super-segments where the device cuts them and there is no zero-copy
        Auto = "auto",
        /// each is written into a frame of our own
        Copy = "copy",
        /// as super-segments whenever the device cuts them
        Offload = "offload",
    }
}

word! {
    /// What a line of the access log is.
    LogFormat {
        /// as Apache and nginx write it, with referrer and user agent
        Combined = "combined",
        /// an object
        Json = "json",
    }
}

/// A size in bytes: `1000`, `64K`, `512M`, `4G`, in powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
        let shift = match &text[digits.len()..] {
            "" => Some(0),
            "K" | "k" | "KiB" => Some(10),
            "M" | "m" | "MiB" => Some(20),
            "G" | "g" | "GiB" => Some(30),
            "T" | "t" | "TiB" => Some(40),
            _ => None,
        };
        // `parse` would take a sign
        let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten();
        let bytes = shift.zip(number).and_then(|(shift, number)| number.checked_mul(1 << shift));
        bytes.map(Size).ok_or_else(|| format!("`{text}` is not a size; write it as 512M or 4G"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> serde::Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// `memory = 1000` and `memory = "4G"`.
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size, such as \"4G\"")
            }
            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<Size, E> {
                bytes.to_string().parse().map_err(E::custom)
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// `on` or `off`; in the file `true` and `false` too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(pub bool);

impl FromStr for Switch {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(Switch(true)),
            "off" => Ok(Switch(false)),
            _ => Err(format!("`{text}` is neither on nor off")),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Switch {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Switch;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true or false")
            }
            fn visit_bool<E>(self, on: bool) -> Result<Switch, E> {
                Ok(Switch(on))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Switch, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// A number within bounds that the type states, so that both places refuse the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within<const LEAST: u32, const MOST: u32>(pub u32);

impl<const LEAST: u32, const MOST: u32> Within<LEAST, MOST> {
    fn check(value: i64, text: &dyn fmt::Display) -> Result<Self, String> {
        match u32::try_from(value) {
            Ok(value) if (LEAST..=MOST).contains(&value) => Ok(Within(value)),
            _ => Err(format!("`{text}` is not a whole number from {LEAST} to {MOST}")),
        }
    }
}

impl<const LEAST: u32, const MOST: u32> FromStr for Within<LEAST, MOST> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::check(text.parse().unwrap_or(-1), &text)
    }
}

impl<'de, const LEAST: u32, const MOST: u32> serde::Deserialize<'de> for Within<LEAST, MOST> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = i64::deserialize(from)?;
        Self::check(value, &value).map_err(serde::de::Error::custom)
    }
}

/// A value with its place in the configuration file, as a range of bytes; on the command line there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<T> {
    /// the value
    pub value: T,
    /// where the file has it
    pub span: Option<std::ops::Range<usize>>,
}

impl<T: FromStr> FromStr for Placed<T> {
    type Err = T::Err;
    fn from_str(text: &str) -> Result<Self, T::Err> {
        Ok(Placed { value: text.parse()?, span: None })
    }
}

impl<'de, T: serde::Deserialize<'de>> serde::Deserialize<'de> for Placed<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let spanned = toml::Spanned::<T>::deserialize(from)?;
        let span = Some(spanned.span());
        Ok(Placed { value: spanned.into_inner(), span })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error<T: FromStr<Err = String> + fmt::Debug>(text: &str) -> String {
        text.parse::<T>().unwrap_err()
    }

    #[test]
    fn values_that_are_right() {
        assert_eq!("0-2,5".parse(), Ok(Cpus(vec![0, 1, 2, 5])));
        let tables: [RssTable; 3] = ["follow", "keep", "/sys/fs/bpf/rss"].map(|text| text.parse().unwrap());
        assert_eq!(tables, [RssTable::Follow, RssTable::Keep, RssTable::Map("/sys/fs/bpf/rss".into())]);
        assert_eq!("3".parse(), Ok(Cpus(vec![3])));
        assert_eq!("[::1]:5300".parse::<Listen>().unwrap().to_string(), "[::1]:5300");
        assert_eq!("192.0.2.7/24".parse::<Own>().unwrap().0.bits, 24);
        assert_eq!("2001:db8::7".parse::<Own>().unwrap().0.bits, 128);
        let prefix = |text: &str| text.parse::<Prefix>().unwrap().to_string();
        assert_eq!(prefix("0.0.0.0/0"), "0.0.0.0/0");
        assert_eq!(["::ffff:0:0/96", "::ffff:10.0.0.0/104"].map(prefix), ["0.0.0.0/0", "10.0.0.0/8"]);
        assert_eq!(["::ffff:192.0.2.1", "::/0"].map(prefix), ["192.0.2.1/32", "::/0"]);
        assert_eq!("adaptive".parse(), Ok(Idle::Adaptive));
        let size = |text: &str| text.parse::<Size>().unwrap().0;
        assert_eq!((size("7"), size("64K"), size("2G"), size("1MiB")), (7, 64 << 10, 2 << 30, 1 << 20));
    }

    #[test]
    fn zones_on_the_command_line() {
        let zone = |origin: Option<&str>, file: &str| Ok(ZoneArg { origin: origin.map(Into::into), file: file.into() });
        assert_eq!("example.com=a/b".parse(), zone(Some("example.com"), "a/b"));
        assert_eq!("a.zone".parse(), zone(None, "a.zone"));
        assert_eq!("./odd=name".parse(), zone(None, "./odd=name"));
        assert_eq!("example.com=/odd=name".parse(), zone(Some("example.com"), "/odd=name"));
        for text in ["", "=file", "example.com="] {
            assert!(error::<ZoneArg>(text).contains("is not ORIGIN=FILE; write it as"), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_says_what_would_be_right() {
        assert_eq!(
            error::<Listen>("192.0.2.1"),
            "`192.0.2.1` is not ADDR:PORT; write it as 192.0.2.1:53 or [2001:db8::1]:53"
        );
        assert_eq!(error::<Listen>("192.0.2.1:0"), "`192.0.2.1:0` has port 0; give one from 1 to 65535");
        assert_eq!(error::<Listen>("[ff02::1]:53"), "`[ff02::1]:53` is a multicast address; give a unicast one");
        assert_eq!(error::<Prefix>("10.0.0.1/8"), "`10.0.0.1/8` has bits beyond its length; write 10.0.0.0/8");
        for text in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "::/129", "host"] {
            assert!(error::<Prefix>(text).contains("is not a prefix; write it as"), "{text}");
        }
        assert_eq!(error::<Own>("224.0.0.1"), "`224.0.0.1` cannot be owned; give a unicast address of the link");
        for text in ["", "a", "1-", "3-1", "1,,2", "99999"] {
            assert!(error::<Cpus>(text).ends_with("is not a list of processors; write it as 0,2-3"), "{text}");
        }
        assert_eq!(error::<Cpus>("0-2,1"), "`0-2,1` names processor 1 twice");
        for text in ["", "K", "1KB", "-1", "+1", "1.5G", "99999999999999999999", "99999999T"] {
            assert!(error::<Size>(text).ends_with("is not a size; write it as 512M or 4G"), "{text}");
        }
        assert_eq!(error::<RssTable>("rss"), "`rss` is none of follow, keep and the absolute path of a pinned map");
        assert_eq!(error::<Backend>("kernel"), "`kernel` is none of xdp, sockets, auto");
    }

    proptest! {
        #[test]
        fn a_network_keeps_exactly_its_leading_bits(address: u32, bits in 0u8..=32, flip in 0u8..32) {
            let network = Prefix { address: IpAddr::V4(address.into()), bits }.network();
            let other = Prefix { address: IpAddr::V4((address ^ (1 << (31 - flip))).into()), bits }.network();
            prop_assert_eq!(network == other, flip >= bits);
        }
    }
}

//! Whom an application may begin something with.

use super::Prefix;
use std::fmt;
use std::str::FromStr;

/// Peers, by prefix and port: `192.0.2.0/24:443`, `192.0.2.7:80`, `[2001:db8::/32]:*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peers {
    /// the addresses
    pub prefix: Prefix,
    /// None: every port
    pub port: Option<u16>,
}

impl FromStr for Peers {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not ADDR/PREFIX:PORT; write it as 192.0.2.0/24:443 or [2001:db8::/32]:*");
        let (prefix, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = prefix.strip_prefix('[').and_then(|prefix| prefix.strip_suffix(']'));
        let prefix: Prefix = bracketed.unwrap_or(prefix).parse()?;
        if prefix.address.is_ipv6() != bracketed.is_some() {
            return Err(wrong());
        }
        let port = match port {
            "*" => None,
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
                Some(digits.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?)
            }
            _ => return Err(wrong()),
        };
        Ok(Peers { prefix, port })
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix.address.is_ipv6() {
            true => write!(f, "[{}]:", self.prefix)?,
            false => write!(f, "{}:", self.prefix)?,
        }
        match self.port {
            Some(port) => write!(f, "{port}"),
            None => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_a_prefix_and_a_port() {
        for (text, written) in [
            ("192.0.2.0/24:443", "192.0.2.0/24:443"),
            ("192.0.2.7:80", "192.0.2.7/32:80"),
            ("0.0.0.0/0:*", "0.0.0.0/0:*"),
            ("[2001:db8::/32]:53", "[2001:db8::/32]:53"),
            ("[::1]:*", "[::1/128]:*"),
        ] {
            assert_eq!(text.parse::<Peers>().map(|peers| peers.to_string()), Ok(written.to_owned()));
        }
        for wrong in [
            "",
            "192.0.2.1",
            "192.0.2.1:",
            "192.0.2.1:0",
            "192.0.2.1:65536",
            "192.0.2.1:+1",
            "2001:db8::1:53",
            "[192.0.2.1]:5",
            "192.0.2.1/33:5",
            "[::1]",
            "::1",
            ":80",
            "*:80",
        ] {
            let error = wrong.parse::<Peers>().unwrap_err();
            assert!(error.starts_with(&format!("`{wrong}`")) || error.contains("is not a prefix"), "{wrong}: {error}");
        }
        let beyond = "192.0.2.1/24:80".parse::<Peers>().unwrap_err();
        assert!(beyond.contains("write 192.0.2.0/24"), "{beyond}");
    }
}

//! Filter expressions for captures, a small part of what tcpdump takes:
//!
//! ```text
//! expression = term { "or" term }          term = factor { "and" factor }
//! factor     = "not" factor | "(" expression ")" | primitive
//! primitive  = [ "src" | "dst" ] ( "host" ADDR | "net" ADDR "/" BITS | "port" N )
//!            | "udp" | "tcp" | "icmp" | "icmp6" | "arp" | "ip" | "ip6" | "vlan" [ ID ]
//! ```
//!
//! `&&`, `||` and `!` are taken too. Nothing at all means every frame. An address in ARP counts for `host` and `net`, as
//! in tcpdump. One tag is looked through everywhere, so `port 53` finds tagged frames as well, unlike tcpdump. A fragment
//! that is not the first has no ports; behind IPv6 extension headers the transport is found where the stack finds it.
//!
//! An expression is parsed once into a list of tests, and a frame is judged without allocation.

use crate::arp::Arp;
use crate::ethernet::{EtherType, Link};
use crate::ipv4::Ipv4;
use crate::ipv6::{self, Ipv6};
use crate::{Protocol, be16};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Nesting allowed in an expression; judging a frame recurses this deep.
const DEPTH_MAX: usize = 64;

/// A parsed expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    root: Option<Node>,
}

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// where, counted in characters from 1
    pub column: usize,
    /// what, and the mend
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.message)
    }
}

impl std::error::Error for ParseError {}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Not(Box<Node>),
    Test(Test),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
    Either,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Net(Side, IpAddr, u8),
    Port(Side, u16),
    EtherType(EtherType),
    Protocol(Protocol, Option<EtherType>),
    Vlan(Option<u16>),
}

/// What a frame shows to the tests.
#[derive(Debug, Default)]
struct Seen {
    ether_type: Option<EtherType>,
    vlan: Option<u16>,
    addresses: Option<(IpAddr, IpAddr)>,
    protocol: Option<Protocol>,
    ports: Option<(u16, u16)>,
}

impl Seen {
    fn of(frame: &[u8]) -> Seen {
        let Some(link) = Link::parse(frame) else { return Seen::default() };
        let mut seen =
            Seen { ether_type: Some(link.ether_type), vlan: link.tag.map(|tag| tag & 0xfff), ..Seen::default() };
        let packet = &frame[link.bytes()..];
        match link.ether_type {
            EtherType::ARP => {
                if let Some(arp) = Arp::parse(packet) {
                    seen.addresses = Some((arp.sender.into(), arp.target.into()));
                }
            }
            // damaged packets are shown too, so nothing is verified here
            EtherType::IPV4 => {
                if let Ok(ip) = Ipv4::parse_quoted(packet) {
                    seen.addresses = Some((ip.src().into(), ip.dst().into()));
                    seen.set_transport(ip.protocol(), if ip.is_later_fragment() { &[] } else { ip.payload() });
                }
            }
            EtherType::IPV6 => {
                if let Ok(ip) = Ipv6::parse_quoted(packet) {
                    seen.addresses = Some((ip.src().into(), ip.dst().into()));
                    match ipv6::walk(ip.next_header(), ip.payload()) {
                        Ok(upper) => seen.set_transport(upper.protocol, &ip.payload()[upper.at..]),
                        Err(_) => seen.protocol = Some(ip.next_header()),
                    }
                }
            }
            _ => {}
        }
        seen
    }

    fn set_transport(&mut self, protocol: Protocol, transport: &[u8]) {
        self.protocol = Some(protocol);
        if matches!(protocol, Protocol::UDP | Protocol::TCP) && transport.len() >= 4 {
            self.ports = Some((be16(transport, 0), be16(transport, 2)));
        }
    }
}

impl Side {
    fn holds<T>(self, pair: Option<(T, T)>, test: impl Fn(T) -> bool) -> bool {
        pair.is_some_and(|(src, dst)| match self {
            Side::Source => test(src),
            Side::Destination => test(dst),
            Side::Either => test(src) || test(dst),
        })
    }
}

impl Test {
    fn holds(self, seen: &Seen) -> bool {
        match self {
            Test::Net(side, net, bits) => side.holds(seen.addresses, |addr| in_net(addr, net, bits)),
            Test::Port(side, port) => side.holds(seen.ports, |seen| seen == port),
            Test::EtherType(ether_type) => seen.ether_type == Some(ether_type),
            Test::Protocol(protocol, within) => {
                seen.protocol == Some(protocol) && (within.is_none() || seen.ether_type == within)
            }
            Test::Vlan(id) => seen.vlan.is_some() && (id.is_none() || seen.vlan == id),
        }
    }
}

fn in_net(addr: IpAddr, net: IpAddr, bits: u8) -> bool {
    match (addr, net) {
        (IpAddr::V4(addr), IpAddr::V4(net)) => (addr.to_bits() ^ net.to_bits()).leading_zeros() >= u32::from(bits),
        (IpAddr::V6(addr), IpAddr::V6(net)) => (addr.to_bits() ^ net.to_bits()).leading_zeros() >= u32::from(bits),
        _ => false,
    }
}

impl Node {
    fn holds(&self, seen: &Seen) -> bool {
        match self {
            Node::And(a, b) => a.holds(seen) && b.holds(seen),
            Node::Or(a, b) => a.holds(seen) || b.holds(seen),
            Node::Not(a) => !a.holds(seen),
            Node::Test(test) => test.holds(seen),
        }
    }
}

impl Filter {
    /// Whether the frame is one that the expression asks for. Allocates nothing.
    pub fn matches(&self, frame: &[u8]) -> bool {
        self.root.as_ref().is_none_or(|root| root.holds(&Seen::of(frame)))
    }
}

impl FromStr for Filter {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Filter, ParseError> {
        let mut parser = Parser { words: words(text), at: 0, end: text.chars().count() + 1, depth: 0 };
        if parser.words.is_empty() {
            return Ok(Filter { root: None });
        }
        let root = parser.expression()?;
        match parser.peek() {
            None => Ok(Filter { root: Some(root) }),
            Some(")") => Err(parser.error("this `)` closes nothing; remove it")),
            Some(word) => Err(parser.error(format!("`and` or `or` is missing before `{word}`"))),
        }
    }
}

/// The words of an expression with their columns; parentheses and operators are words of their own.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (column, letter) in (1..).zip(text.chars()) {
        let operator = matches!(letter, '(' | ')' | '!' | '&' | '|');
        if letter.is_whitespace() {
            open = false;
        } else if let Some((_, last)) = words
            .last_mut()
            .filter(|(_, last)| (open && !operator) || (matches!(letter, '&' | '|') && *last == letter.to_string()))
        {
            last.push(letter);
        } else {
            words.push((column, letter.to_string()));
            open = !operator;
        }
    }
    words
}

struct Parser {
    words: Vec<(usize, String)>,
    at: usize,
    /// the column after the last
    end: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(|(_, word)| word.as_str())
    }

    /// An error at the word that `peek` shows.
    fn error(&self, message: impl Into<String>) -> ParseError {
        let column = self.words.get(self.at).map_or(self.end, |(column, _)| *column);
        ParseError { column, message: message.into() }
    }

    fn accept(&mut self, words: &[&str]) -> bool {
        let found = self.peek().is_some_and(|word| words.contains(&word));
        self.at += usize::from(found);
        found
    }

    fn expression(&mut self) -> Result<Node, ParseError> {
        let mut node = self.term()?;
        while self.accept(&["or", "||"]) {
            node = Node::Or(Box::new(node), Box::new(self.deeper(Parser::term)?));
        }
        Ok(node)
    }

    fn term(&mut self) -> Result<Node, ParseError> {
        let mut node = self.factor()?;
        while self.accept(&["and", "&&"]) {
            node = Node::And(Box::new(node), Box::new(self.deeper(Parser::factor)?));
        }
        Ok(node)
    }

    /// A part of the expression that lies deeper in the tree.
    fn deeper(&mut self, part: fn(&mut Parser) -> Result<Node, ParseError>) -> Result<Node, ParseError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(format!("more than {DEPTH_MAX} parts; write a shorter expression")));
        }
        part(self)
    }

    fn factor(&mut self) -> Result<Node, ParseError> {
        if self.accept(&["not", "!"]) {
            return Ok(Node::Not(Box::new(self.deeper(Parser::factor)?)));
        }
        if self.accept(&["("]) {
            let node = self.deeper(Parser::expression)?;
            return if self.accept(&[")"]) { Ok(node) } else { Err(self.error("a `)` is missing here")) };
        }
        self.primitive().map(Node::Test)
    }

    fn primitive(&mut self) -> Result<Test, ParseError> {
        let side = match () {
            () if self.accept(&["src"]) => Side::Source,
            () if self.accept(&["dst"]) => Side::Destination,
            () => Side::Either,
        };
        if self.accept(&["host"]) {
            let addr: IpAddr = self.value("an address")?;
            return Ok(Test::Net(side, addr, if addr.is_ipv4() { 32 } else { 128 }));
        }
        if self.accept(&["net"]) {
            return self.net(side);
        }
        if self.accept(&["port"]) {
            return Ok(Test::Port(side, self.value("a port number from 0 to 65535")?));
        }
        if side != Side::Either {
            return Err(self.error("`src` and `dst` are followed by `host`, `net` or `port`"));
        }
        let test = match self.peek() {
            Some("udp") => Test::Protocol(Protocol::UDP, None),
            Some("tcp") => Test::Protocol(Protocol::TCP, None),
            Some("icmp") => Test::Protocol(Protocol::ICMP, Some(EtherType::IPV4)),
            Some("icmp6") => Test::Protocol(Protocol::ICMPV6, Some(EtherType::IPV6)),
            Some("arp") => Test::EtherType(EtherType::ARP),
            Some("ip") => Test::EtherType(EtherType::IPV4),
            Some("ip6") => Test::EtherType(EtherType::IPV6),
            Some("vlan") => Test::Vlan(None),
            found => return Err(self.error(unknown(found))),
        };
        self.at += 1;
        if test == Test::Vlan(None) && self.peek().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
            let id: u16 = self.value("a VLAN number from 0 to 4095")?;
            if id > 4095 {
                self.at -= 1;
                return Err(self.error(format!("`{id}` is not a VLAN number from 0 to 4095")));
            }
            return Ok(Test::Vlan(Some(id)));
        }
        Ok(test)
    }

    fn net(&mut self, side: Side) -> Result<Test, ParseError> {
        let word = self.peek().unwrap_or_default().to_owned();
        let parsed = word.split_once('/').and_then(|(addr, bits)| {
            let addr: IpAddr = addr.parse().ok()?;
            let bits: u8 = bits.parse().ok()?;
            (bits <= if addr.is_ipv4() { 32 } else { 128 }).then_some((addr, bits))
        });
        let Some((addr, bits)) = parsed else {
            return Err(self.error(format!("`{word}` is not a prefix; write it as 192.0.2.0/24 or 2001:db8::/32")));
        };
        if !has_no_host_bits(addr, bits) {
            return Err(self.error(format!("`{word}` has bits set after the first {bits}; clear them, or use `host`")));
        }
        self.at += 1;
        Ok(Test::Net(side, addr, bits))
    }

    fn value<T: FromStr>(&mut self, what: &str) -> Result<T, ParseError> {
        let value = match self.peek() {
            None => Err(self.error(format!("{what} is missing here"))),
            Some(word) => word.parse().map_err(|_| self.error(format!("`{word}` is not {what}"))),
        }?;
        self.at += 1;
        Ok(value)
    }
}

fn has_no_host_bits(addr: IpAddr, bits: u8) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.to_bits().checked_shl(u32::from(bits)).unwrap_or(0) == 0,
        IpAddr::V6(addr) => addr.to_bits().checked_shl(u32::from(bits)).unwrap_or(0) == 0,
    }
}

fn unknown(found: Option<&str>) -> String {
    const KNOWN: &str = "host, net, port, src, dst, udp, tcp, icmp, icmp6, arp, ip, ip6, vlan, not, ( )";
    match found {
        None => format!("a test is missing here: one of {KNOWN}"),
        Some(word) if word.parse::<IpAddr>().is_ok() => format!("write `host {word}` for an address"),
        Some(word) if word.parse::<u16>().is_ok() => format!("write `port {word}` for a port"),
        Some(word) => format!("`{word}` is not known here; use one of {KNOWN}"),
    }
}

#[cfg(test)]
mod tests;

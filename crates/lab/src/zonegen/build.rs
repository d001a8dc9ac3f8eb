//! Draws the zones of a world.

mod webs;

use super::{Data, Name, Reason, World, Zone, below, child, parent, present, rtype};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// How many of each shape a zone gets, times a zone's weight.
const SHAPES: usize = 12;

impl World {
    /// Draws a world. The same seed gives the same world.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let name = |text: &str| -> Name { text.parse().expect("a name") };
        // a name of two labels, of one, and the root
        let top = match seed % 5 {
            0 => Name::root_vec(),
            1 | 2 => name(&format!("zone{seed}.")),
            _ => name(&format!("zone{seed}.test.")),
        };
        let origins = Origins {
            child: child(b"child", &top).expect("short"),
            grandchild: child(b"grand", &child(b"child", &top).expect("short")).expect("short"),
            // below an empty non-terminal, and without a cut in the parent
            hidden: child(b"hidden", &child(b"ent", &top).expect("short")).expect("short"),
            other: name("other.example."),
            dname: child(b"redirect", &top).expect("short"),
            top,
        };
        let mut targets = BTreeMap::new();
        let mut zones = Vec::new();
        for (origin, weight) in [
            (&origins.top, 4),
            (&origins.child, 2),
            (&origins.grandchild, 1),
            (&origins.hidden, 1),
            (&origins.other, 1),
        ] {
            let mut builder = Builder::new(&mut rng, origin, &origins, &mut targets);
            builder.apex();
            builder.fill(SHAPES * weight);
            zones.push(builder.finish());
        }
        let mut builder = Builder::new(&mut rng, &origins.dname, &origins, &mut targets);
        builder.apex();
        let target = builder.origins.other.clone();
        let apex = builder.origin.clone();
        builder.add(&apex, rtype::DNAME, Data::Name(target));
        builder.target(Reason::DnameOut, &apex);
        zones.push(builder.finish());
        for origin in [&origins.child, &origins.grandchild, &origins.hidden, &origins.dname] {
            targets.entry(Reason::Nested).or_insert_with(BTreeSet::new).insert((*origin).clone());
        }
        for unserved in [".", "test.", "com.", "unserved.example.", "example.", "a.b.c.d.invalid."] {
            targets.entry(Reason::Unserved).or_insert_with(BTreeSet::new).insert(name(unserved));
        }
        Self { seed, zones, targets }
    }
}

struct Origins {
    top: Name,
    child: Name,
    grandchild: Name,
    hidden: Name,
    other: Name,
    dname: Name,
}

impl Origins {
    fn all(&self) -> [&Name; 6] {
        [&self.top, &self.child, &self.grandchild, &self.hidden, &self.other, &self.dname]
    }
}

struct Builder<'a> {
    rng: &'a mut Rng,
    origin: Name,
    origins: &'a Origins,
    targets: &'a mut BTreeMap<Reason, BTreeSet<Name>>,
    nodes: BTreeMap<Name, BTreeMap<u16, Vec<Data>>>,
    /// names under which further names may grow
    stems: Vec<Name>,
    /// names with address records
    hosts: Vec<Name>,
    cuts: Vec<Name>,
    wild_parents: Vec<Name>,
    dnames: Vec<Name>,
    count: u32,
}

impl<'a> Builder<'a> {
    fn new(
        rng: &'a mut Rng,
        origin: &Name,
        origins: &'a Origins,
        targets: &'a mut BTreeMap<Reason, BTreeSet<Name>>,
    ) -> Self {
        Self {
            rng,
            origin: origin.clone(),
            origins,
            targets,
            nodes: BTreeMap::new(),
            stems: vec![origin.clone()],
            hosts: Vec::new(),
            cuts: Vec::new(),
            wild_parents: Vec::new(),
            dnames: Vec::new(),
            count: 0,
        }
    }

    fn target(&mut self, reason: Reason, name: &Name) {
        self.targets.entry(reason).or_default().insert(name.clone());
    }

    fn add(&mut self, owner: &Name, rtype: u16, data: Data) {
        let set = self.nodes.entry(owner.clone()).or_default().entry(rtype).or_default();
        if !set.contains(&data) {
            set.push(data);
        }
    }

    fn text(&mut self, owner: &Name, rtype: u16, data: impl Into<String>) {
        self.add(owner, rtype, Data::Text(data.into()));
    }

    /// A label that this zone does not have yet; now and then one that needs escapes, or the longest there can be.
    fn label(&mut self) -> Vec<u8> {
        self.count += 1;
        let mut label = format!("n{}", self.count).into_bytes();
        match self.rng.u8(..24) {
            0 => label.extend(b".dot"),
            1 => label.extend(b" sp;\"(@$\\"),
            2 => label.extend([0, 7, 200, 255]),
            3 => label.resize(63, b'x'),
            4 => label.splice(0..0, *b"_").for_each(drop),
            _ => {}
        }
        label
    }

    /// A name that does not exist yet, below a random stem, at times with an empty non-terminal between.
    fn fresh(&mut self) -> Name {
        loop {
            let mut stem = self.stems[if self.rng.bool() { 0 } else { self.rng.usize(..self.stems.len()) }].clone();
            if self.rng.u8(..5) == 0 {
                let label = self.label();
                let Some(between) = child(&label, &stem) else { continue };
                self.target(Reason::Ent, &between);
                stem = between;
            }
            let label = self.label();
            // short enough that questions below it, and prefixes such as "ns.", still fit
            if let Some(name) = child(&label, &stem).filter(|name| name.len() < 160) {
                return name;
            }
        }
    }

    fn address(&mut self) -> (u16, String) {
        if self.rng.bool() {
            (rtype::A, format!("192.0.{}.{}", self.rng.u8(..), self.rng.u8(..)))
        } else {
            (rtype::AAAA, format!("2001:db8::{:x}", self.rng.u16(1..)))
        }
    }

    fn addresses(&mut self, owner: &Name) {
        for _ in 0..self.rng.usize(1..4) {
            let (rtype, data) = self.address();
            self.text(owner, rtype, data);
        }
    }

    fn host(&mut self) -> Name {
        if self.hosts.is_empty() || self.rng.u8(..8) == 0 {
            let name = self.fresh();
            self.addresses(&name);
            self.hosts.push(name.clone());
            return name;
        }
        self.hosts[self.rng.usize(..self.hosts.len())].clone()
    }

    fn apex(&mut self) {
        let origin = self.origin.clone();
        let (minimum, other) = (self.rng.u32(0..7200), self.rng.u32(0..7200));
        let serial = self.rng.u32(..);
        self.text(&origin, rtype::SOA, format!("Ns1 Host.Master {serial} {other} 3600 1209600 {minimum}"));
        let ns = child(b"ns1", &origin).expect("short");
        self.addresses(&ns);
        self.hosts.push(ns.clone());
        self.add(&origin, rtype::NS, Data::Name(ns));
        self.add(&origin, rtype::NS, Data::Name("ns.unserved.example.".parse().expect("a name")));
        if self.rng.bool() {
            let host = self.host();
            self.add(&origin, rtype::NS, Data::Name(host));
        }
        self.random_rrset(&origin, 3);
        self.target(Reason::Apex, &origin);
    }

    fn fill(&mut self, shapes: usize) {
        for _ in 0..shapes * 2 {
            self.plain();
        }
        for size in 0..shapes / 2 {
            self.big(size);
        }
        for _ in 0..shapes {
            self.cut();
        }
        for _ in 0..shapes / 3 {
            self.big_cut();
            self.bare_cut();
        }
        for _ in 0..shapes {
            self.wildcard();
        }
        self.nested_cuts();
        for _ in 0..shapes {
            self.dname();
        }
        for _ in 0..shapes {
            self.cname();
        }
    }

    fn plain(&mut self) {
        let name = self.fresh();
        let count = self.rng.usize(1..5);
        self.random_rrset(&name, count);
        if self.rng.bool() {
            self.stems.push(name.clone());
        }
        self.target(Reason::Plain, &name);
    }

    /// Up to `count` RRsets of random types.
    fn random_rrset(&mut self, name: &Name, count: usize) {
        for _ in 0..count {
            for _ in 0..self.rng.usize(1..4) {
                self.random_record(name);
            }
        }
    }

    fn random_record(&mut self, name: &Name) {
        let preference = self.rng.u16(..);
        match self.rng.u8(..14) {
            0..3 => self.addresses(name),
            3 | 4 => {
                let target = self.some_name();
                self.text(name, rtype::MX, format!("{preference} {target}"));
            }
            5 | 6 => self.text(name, rtype::TXT, format!("\"t{preference}\" \"\\\"quoted\\\" \\200\" plain")),
            7 => {
                let target = self.some_name();
                self.text(name, rtype::SRV, format!("{preference} 1 53 {target}"));
            }
            8 => self.text(name, rtype::CAA, format!("0 issue \"ca{preference}.example\"")),
            9 => {
                let target = self.some_name();
                self.text(name, rtype::PTR, target);
            }
            10 => {
                let target = self.some_name();
                self.text(name, rtype::HTTPS, format!("{} {target} alpn=h2,h3 port=443", preference | 1));
            }
            11 => {
                let target = self.some_name();
                self.text(name, rtype::NAPTR, format!("{preference} 10 \"s\" \"SIP+D2U\" \"\" {target}"));
            }
            12 => self.text(name, rtype::PRIVATE, format!("\\# 4 0102{preference:04x}")),
            _ => self.text(name, rtype::SVCB, "0 ."),
        }
    }

    /// A name to point at, as a zone file has it: a host, something below a cut or wildcard, something absent, something outside.
    fn some_name(&mut self) -> String {
        let name = match self.rng.u8(..8) {
            0 => "mail.unserved.example.".parse().expect("a name"),
            1 if !self.cuts.is_empty() => self.cuts[self.rng.usize(..self.cuts.len())].clone(),
            2 if !self.wild_parents.is_empty() => {
                child(b"mail", &self.wild_parents[self.rng.usize(..self.wild_parents.len())]).expect("short")
            }
            3 => child(b"absent", &self.origin).expect("short"),
            _ => self.host(),
        };
        mixed_case(self.rng, &present(&name))
    }

    /// An RRset that fits 512, 1232 or neither.
    fn big(&mut self, size: usize) {
        let name = self.fresh();
        let count = [20, 40, 60, 110][size % 4];
        match self.rng.u8(..3) {
            0 => {
                for _ in 0..count / 8 {
                    let text = "long ".repeat(20) + &self.rng.u32(..).to_string();
                    self.text(&name, rtype::TXT, format!("\"{text}\""));
                }
            }
            1 => {
                for _ in 0..count / 3 {
                    let target =
                        present(&child(format!("m{}", self.rng.u32(..)).as_bytes(), &self.origin).expect("short"));
                    self.text(&name, rtype::MX, format!("10 {target}"));
                }
            }
            _ => {
                for number in 0..count {
                    let third = self.rng.u8(..);
                    self.text(&name, rtype::A, format!("10.9.{third}.{number}"));
                }
            }
        }
        self.text(&name, rtype::CAA, "0 iodef \"mailto:a@example\"");
        self.target(Reason::Big, &name);
    }

    fn cut(&mut self) {
        let cut = self.fresh();
        for _ in 0..self.rng.usize(1..5) {
            let server = match self.rng.u8(..10) {
                0..3 => {
                    let name = child(format!("ns{}", self.rng.u8(..4)).as_bytes(), &cut).expect("short");
                    self.addresses(&name);
                    name
                }
                3 => {
                    let name = child(b"a", &child(b"deep", &cut).expect("short")).expect("short");
                    self.addresses(&name);
                    name
                }
                // no glue although there should be
                4 => child(b"lost", &cut).expect("short"),
                5 => {
                    self.addresses(&cut);
                    cut.clone()
                }
                6 if !self.cuts.is_empty() => {
                    let sibling = &self.cuts[self.rng.usize(..self.cuts.len())];
                    let name = child(b"ns0", sibling).expect("short");
                    self.addresses(&name);
                    name
                }
                7 => "ns.unserved.example.".parse().expect("a name"),
                8 if !self.wild_parents.is_empty() => {
                    child(b"ns", &self.wild_parents[self.rng.usize(..self.wild_parents.len())]).expect("short")
                }
                _ => self.host(),
            };
            self.add(&cut, rtype::NS, Data::Name(server));
        }
        if self.rng.bool() {
            self.ds(&cut);
        }
        self.target(Reason::Cut, &cut);
        self.cuts.push(cut);
    }

    fn ds(&mut self, owner: &Name) {
        let digest: String = (0..32).map(|_| format!("{:02x}", self.rng.u8(..))).collect();
        let tag = self.rng.u16(..);
        self.text(owner, rtype::DS, format!("{tag} 8 2 {digest}"));
    }

    /// A cut whose glue exceeds a datagram.
    fn big_cut(&mut self) {
        let cut = self.fresh();
        let count = self.rng.usize(8..22);
        for number in 0..count {
            let name = child(format!("server{number}").as_bytes(), &cut).expect("short");
            self.addresses(&name);
            self.add(&cut, rtype::NS, Data::Name(name));
        }
        self.target(Reason::BigCut, &cut);
    }

    /// A cut without a single address.
    fn bare_cut(&mut self) {
        let cut = self.fresh();
        self.add(&cut, rtype::NS, Data::Name("ns.unserved.example.".parse().expect("a name")));
        if self.rng.bool() {
            let lost = child(b"lost", &cut).expect("short");
            self.add(&cut, rtype::NS, Data::Name(lost));
        }
        self.target(Reason::BareCut, &cut);
    }

    fn wildcard(&mut self) {
        let stem = self.fresh();
        let wild = child(b"*", &stem).expect("short");
        match self.rng.u8(..6) {
            0 => {
                let host = self.host();
                self.add(&wild, rtype::CNAME, Data::Name(host));
            }
            1 => {
                let absent = child(b"absent", &self.origin).expect("short");
                self.add(&wild, rtype::CNAME, Data::Name(absent));
            }
            _ => {
                self.addresses(&wild);
                self.random_rrset(&wild, 2);
            }
        }
        if self.rng.bool() {
            // what exists beside the wildcard shuts it out, an empty non-terminal too
            let beside = child(b"beside", &stem).expect("short");
            let deeper = child(b"deeper", &beside).expect("short");
            self.random_rrset(&deeper, 1);
            self.target(Reason::Ent, &beside);
        }
        if self.rng.u8(..4) == 0 {
            let under = child(b"under", &wild).expect("short");
            self.random_rrset(&under, 1);
        }
        if self.rng.bool() {
            self.text(&stem, rtype::TXT, "stem");
        } else {
            self.target(Reason::Ent, &stem);
        }
        self.target(Reason::WildParent, &stem);
        self.wild_parents.push(stem);
    }

    /// The cuts for the nested zones that this zone delegates.
    fn nested_cuts(&mut self) {
        for origin in [&self.origins.child, &self.origins.grandchild] {
            if parent(origin).as_ref() == Some(&self.origin) {
                let origin = origin.clone();
                let ns = child(b"ns1", &origin).expect("short");
                self.addresses(&ns);
                self.add(&origin, rtype::NS, Data::Name(ns));
                if self.rng.bool() {
                    self.ds(&origin);
                }
            }
        }
    }

    fn finish(mut self) -> Zone {
        self.prune();
        let mut text = format!("$ORIGIN {}\n$TTL 3600\n", present(&self.origin));
        let mut owners: Vec<Name> = self.nodes.keys().filter(|name| **name != self.origin).cloned().collect();
        self.rng.shuffle(&mut owners);
        owners.insert(0, self.origin.clone());
        for owner in owners {
            let mut types: Vec<u16> = self.nodes[&owner].keys().copied().collect();
            self.rng.shuffle(&mut types);
            // SOA first, as NSD asks
            types.sort_by_key(|&rtype| rtype != rtype::SOA);
            let shown = mixed_case(self.rng, &present(&owner));
            for rtype in types {
                let ttl = self.rng.u32(0..100_000);
                for data in &self.nodes[&owner][&rtype] {
                    let data = match data {
                        Data::Name(name) => mixed_case(self.rng, &present(name)),
                        Data::Text(text) => text.clone(),
                    };
                    text += &format!("{shown} {ttl} IN {} {data}\n", mnemonic(rtype));
                }
            }
        }
        self.empty_non_terminals();
        Zone { origin: self.origin, text, nodes: self.nodes }
    }

    /// Takes out what may not stand together: data beside a CNAME, anything below a DNAME.
    fn prune(&mut self) {
        for types in self.nodes.values_mut() {
            if types.contains_key(&rtype::CNAME) {
                types.retain(|&rtype, _| rtype == rtype::CNAME);
            }
        }
        let dnames: Vec<Name> = self
            .nodes
            .iter()
            .filter(|(_, types)| types.contains_key(&rtype::DNAME))
            .map(|(name, _)| name.clone())
            .collect();
        self.nodes.retain(|name, _| !dnames.iter().any(|dname| below(name, dname)));
    }

    fn empty_non_terminals(&mut self) {
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            let mut name = name;
            while name != self.origin {
                let Some(above) = parent(&name) else { break };
                self.nodes.entry(above.clone()).or_default();
                name = above;
            }
        }
    }
}

fn mixed_case(rng: &mut Rng, text: &str) -> String {
    if rng.u8(..3) > 0 {
        return text.into();
    }
    text.chars().map(|c| if rng.bool() { c.to_ascii_uppercase() } else { c }).collect()
}

fn mnemonic(rtype: u16) -> String {
    domain::base::iana::Rtype::from_int(rtype).to_string()
}

//! The CNAME and DNAME records of a world: chains, loops, and ways out of the zone.

use super::{
    super::{Data, Name, Reason, child, rtype},
    Builder,
};

impl Builder<'_> {
    pub(super) fn dname(&mut self) {
        let owner = self.fresh();
        let (target, reason) = match self.rng.u8(..10) {
            0 => (self.outside(), Reason::DnameOut),
            1 => {
                let second = self.fresh();
                self.add(&second, rtype::DNAME, Data::Name(owner.clone()));
                self.dnames.push(second.clone());
                (second, Reason::DnameLoop)
            }
            2 | 3 => (self.long(), Reason::DnameLong),
            4 if !self.cuts.is_empty() => (self.cuts[self.rng.usize(..self.cuts.len())].clone(), Reason::Dname),
            5 => (self.other_zone(), Reason::Dname),
            6 if !self.dnames.is_empty() => (self.dnames[self.rng.usize(..self.dnames.len())].clone(), Reason::Dname),
            7 => (self.wild_parents[self.rng.usize(..self.wild_parents.len())].clone(), Reason::Dname),
            _ => {
                let target = self.fresh();
                for label in ["www", "mail", "a"] {
                    let name = child(label.as_bytes(), &target).expect("short");
                    self.random_rrset(&name, 2);
                }
                (target, Reason::Dname)
            }
        };
        self.add(&owner, rtype::DNAME, Data::Name(target));
        if self.rng.u8(..3) == 0 {
            self.text(&owner, rtype::TXT, "beside a DNAME");
        }
        self.target(reason, &owner);
        self.dnames.push(owner);
    }

    /// A name so long that few labels fit before it.
    fn long(&mut self) -> Name {
        let mut name = self.origin.clone();
        while name.len() < 190 {
            let label = vec![b'l'; 254_usize.saturating_sub(name.len()).min(40)];
            name = child(&label, &name).expect("the loop's bound");
        }
        name
    }

    fn outside(&mut self) -> Name {
        let text = ["target.unserved.example.", "com.", "a.b.test."][self.rng.usize(..3)];
        text.parse().expect("a name")
    }

    /// A name in another zone of the same server.
    fn other_zone(&mut self) -> Name {
        let all = self.origins.all();
        let zone = loop {
            let zone = all[self.rng.usize(..all.len())];
            if *zone != self.origin {
                break zone.clone();
            }
        };
        match self.rng.u8(..3) {
            0 => zone,
            1 => child(b"ns1", &zone).expect("short"),
            _ => child(b"absent", &zone).expect("short"),
        }
    }

    pub(super) fn cname(&mut self) {
        let owner = self.fresh();
        let (target, reason) = match self.rng.u8(..16) {
            0 | 1 => {
                // a chain within the bound that every server follows
                let mut target = self.host();
                for _ in 0..self.rng.usize(1..4) {
                    let link = self.fresh();
                    self.add(&link, rtype::CNAME, Data::Name(target));
                    target = link;
                }
                (target, Reason::CnameChain)
            }
            2 => {
                let mut target = self.host();
                for _ in 0..8 {
                    let link = self.fresh();
                    self.add(&link, rtype::CNAME, Data::Name(target));
                    target = link;
                }
                (target, Reason::CnameChain)
            }
            3 => (owner.clone(), Reason::CnameLoop),
            4 => {
                let second = self.fresh();
                self.add(&second, rtype::CNAME, Data::Name(owner.clone()));
                (second, Reason::CnameLoop)
            }
            5 | 6 => (self.outside(), Reason::CnameOut),
            7 => (self.other_zone(), Reason::CnameZone),
            8 | 9 => (child(b"absent", &self.origin).expect("short"), Reason::CnameMissing),
            10 | 11 => {
                let cut = self.cuts[self.rng.usize(..self.cuts.len())].clone();
                (child(b"www", &cut).expect("short"), Reason::CnameCut)
            }
            12 => {
                let stem = &self.wild_parents[self.rng.usize(..self.wild_parents.len())];
                (child(b"any", stem).expect("short"), Reason::Cname)
            }
            13 => {
                let dname = &self.dnames[self.rng.usize(..self.dnames.len())];
                (child(b"www", dname).expect("short"), Reason::Cname)
            }
            14 => (self.stems[self.rng.usize(..self.stems.len())].clone(), Reason::Cname),
            _ => (self.host(), Reason::Cname),
        };
        self.add(&owner, rtype::CNAME, Data::Name(target));
        self.target(reason, &owner);
    }
}

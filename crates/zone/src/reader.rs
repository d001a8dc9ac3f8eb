//! Master files into a [`Builder`]: entries become records, and `$ORIGIN`, `$TTL`, `$INCLUDE` and `$GENERATE`
//! are followed. A wrong entry is reported and skipped, so one run shows every error.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::{self, Read};
use std::rc::Rc;

use crate::build::{Builder, MAX_TTL};
use crate::error::{Error, Wrong};
use crate::generate;
use crate::name::{self, Name, NameRef};
use crate::parse::{self, Cursor};
use crate::rtype::{Class, Rtype};
use crate::scan::{Entry, Scanner, Token};
use crate::source::Source;
use crate::store::At;
use crate::time;
use crate::zone::Zone;

/// What a zone may use up while it is read. The defaults are far above any real zone's need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How deep `$INCLUDE` may go.
    pub include_depth: usize,
    /// How many files may be read in all, each reading counted.
    pub files: usize,
    /// How many records all `$GENERATE` together may make.
    pub generated: u64,
    /// How many octets of text all `$GENERATE` together may make, and the second and later readings of included files with them.
    pub repeated_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { include_depth: 16, files: 10_000, generated: 1 << 22, repeated_bytes: 1 << 29 }
    }
}

/// Reads the zone file at `path` and checks it. Without an `origin`, names are relative to the file's first
/// `$ORIGIN`, and the zone's apex is its SOA's owner. All errors of the run come back, up to a bound.
pub fn load(source: &dyn Source, path: &str, origin: Option<Name>) -> Result<Zone, Vec<Error>> {
    load_within(source, path, origin, Limits::default())
}

/// Reads a zone as [`load`] does, within `limits`: for input from strangers, and fuzzing.
pub fn load_within(source: &dyn Source, path: &str, origin: Option<Name>, limits: Limits) -> Result<Zone, Vec<Error>> {
    let mut reader = Reader {
        source,
        limits,
        builder: Builder::for_file(path, origin.clone()),
        origin,
        first_origin: None,
        owner: Vec::new(),
        orphaned: false,
        class: Class::IN,
        default_ttl: None,
        last_ttl: None,
        rdata: Vec::new(),
        open: Vec::new(),
        read: HashSet::new(),
        files: 0,
        generated: 0,
        repeatable: Rc::new(Cell::new(limits.repeated_bytes)),
    };
    match source.open(path) {
        Ok(input) => {
            let identity = source.identity(path);
            reader.read_file(path, identity, input);
        }
        Err(error) => {
            let place = At { file: 1, ..At::default() };
            reader.builder.error(place, format!("the file cannot be read: {error}"));
            return Err(reader.builder.into_errors());
        }
    }
    if let Some(origin) = &reader.first_origin {
        reader.builder.set_fallback_origin(origin.view());
    }
    reader.builder.finish()
}

struct Reader<'s> {
    source: &'s dyn Source,
    limits: Limits,
    builder: Builder,
    origin: Option<Name>,
    /// The first `$ORIGIN`, which names the zone where it has no SOA to do so.
    first_origin: Option<Name>,
    /// The owner of the record before, in wire form; empty before the first.
    owner: Vec<u8>,
    /// The owner before was not a name, so records that leave theirs out have none.
    orphaned: bool,
    class: Class,
    default_ttl: Option<u32>,
    last_ttl: Option<u32>,
    rdata: Vec<u8>,
    /// The identities of the files being read, each included by the one before.
    open: Vec<String>,
    /// The identities of all files that were read.
    read: HashSet<String>,
    files: usize,
    generated: u64,
    /// What is left of [`Limits::repeated_bytes`].
    repeatable: Rc<Cell<u64>>,
}

/// What stands between an owner and the rdata.
struct Head {
    ttl: Option<u32>,
    rtype: Rtype,
}

impl<'s> Reader<'s> {
    fn read_file(&mut self, path: &str, identity: String, input: Box<dyn Read + '_>) {
        self.files += 1;
        self.read.insert(identity.clone());
        // the limit on files keeps the number far below 65536
        let file = self.builder.file(path).unwrap_or(u16::MAX);
        self.open.push(identity);
        let mut scanner = Scanner::new(input);
        let mut entry = Entry::default();
        while !self.builder.is_flooded() {
            let outcome = match scanner.next_entry(&mut entry) {
                Ok(true) => self.read_entry(file, path, &entry),
                Ok(false) => break,
                Err(wrong) => Err(wrong),
            };
            if let Err(wrong) = outcome {
                self.report(file, wrong);
            }
        }
        if let Some(error) = scanner.take_failure() {
            self.builder.error(At { file, ..At::default() }, format!("the file cannot be read to its end: {error}"));
        }
        self.open.pop();
    }

    fn report(&mut self, file: u16, wrong: Wrong) {
        let column = u16::try_from(wrong.column).unwrap_or(u16::MAX);
        self.builder.error(At { file, line: wrong.line, column }, wrong.what);
    }

    fn read_entry(&mut self, file: u16, path: &str, entry: &Entry) -> Result<(), Wrong> {
        let first = entry.tokens()[0];
        let text = entry.text(first);
        if text.starts_with(b"$") && !first.quoted {
            return self.directive(file, path, entry);
        }
        if !entry.owner_omitted {
            // what belongs to a bad owner is still looked at, for its own errors, and then dropped
            self.set_owner(entry, first)?;
            return self.record(file, entry, 1);
        }
        if self.owner.is_empty() && !self.orphaned {
            // before the first record the origin counts, as NSD and Knot have it
            let Some(origin) = &self.origin else {
                return Err(wrong(
                    first,
                    "the record has no owner: the line begins with a blank, and no name stands before it",
                ));
            };
            self.owner.extend_from_slice(origin.as_wire());
        }
        self.record(file, entry, 0)
    }

    fn set_owner(&mut self, entry: &Entry, token: Token) -> Result<(), Wrong> {
        let origin = self.origin.as_ref().map(Name::view);
        self.owner.clear();
        let named = name::parse_into(&mut self.owner, entry.text(token), origin);
        self.orphaned = named.is_err();
        named.map_err(|why| bad_name(entry, token, why))
    }

    /// The record of `self.owner` whose TTL, class, type and rdata stand from token `next` on.
    fn record(&mut self, file: u16, entry: &Entry, next: usize) -> Result<(), Wrong> {
        let mut rdata = std::mem::take(&mut self.rdata);
        rdata.clear();
        let mut cursor = Cursor::new(entry, next, None);
        let outcome = self.head(&mut cursor).and_then(|head| {
            cursor.origin = self.origin.as_ref().map(Name::view);
            parse::rdata(head.rtype, &mut cursor, &mut rdata)?;
            Ok(head)
        });
        let added = outcome.and_then(|head| self.add(file, entry, &head, &rdata));
        self.rdata = rdata;
        added
    }

    fn add(&mut self, file: u16, entry: &Entry, head: &Head, rdata: &[u8]) -> Result<(), Wrong> {
        let first = entry.tokens()[0];
        let at = At { file, line: first.line, column: u16::try_from(first.column).unwrap_or(u16::MAX) };
        let ttl = match (head.ttl, self.default_ttl, self.last_ttl) {
            (Some(ttl), ..) | (None, Some(ttl), _) | (None, None, Some(ttl)) => ttl,
            (None, None, None) if head.rtype == Rtype::SOA => {
                // what was usual before RFC 2308 section 4 gave zone files a $TTL
                let minimum = rdata.last_chunk().copied().map_or(0, u32::from_be_bytes).min(MAX_TTL);
                let what = format!(
                    "no TTL is known yet; the SOA's MINIMUM, {minimum}, is taken; write $TTL first (RFC 2308 4)"
                );
                self.builder.warn(at, what);
                self.default_ttl = Some(minimum);
                minimum
            }
            (None, None, None) => return Err(wrong(first, "the record has no TTL; write $TTL before it (RFC 2308 4)")),
        };
        if head.ttl.is_some() {
            self.last_ttl = head.ttl;
        }
        if !self.orphaned {
            self.builder.add_checked(NameRef::trusted(&self.owner), self.class, ttl, head.rtype, rdata, at);
        }
        Ok(())
    }

    /// `[TTL] [class] type` or `[class] [TTL] type` (RFC 1035 section 5.1).
    fn head(&mut self, cursor: &mut Cursor<'_>) -> Result<Head, Wrong> {
        let (mut ttl, mut class) = (None, None);
        loop {
            let (text, token) = cursor.word("a record type")?;
            if ttl.is_none() && text.first().is_some_and(u8::is_ascii_digit) {
                ttl = Some(read_ttl(cursor.entry, token)?);
            } else if let (None, Some(known)) = (class, Class::parse(text)) {
                class = Some(known);
                self.class = known;
            } else if let Some(rtype) = Rtype::parse(text) {
                return Ok(Head { ttl, rtype });
            } else {
                return Err(cursor.wrong(
                    token,
                    "is not a record type, class or TTL; unknown types are written TYPE123 (RFC 3597 5)",
                ));
            }
        }
    }

    fn directive(&mut self, file: u16, path: &str, entry: &Entry) -> Result<(), Wrong> {
        let first = entry.tokens()[0];
        let mut cursor = Cursor::new(entry, 1, None);
        match entry.text(first).to_ascii_uppercase().as_slice() {
            b"$ORIGIN" => {
                let (_, token) = cursor.word("a domain name")?;
                let origin = self.absolute(entry, token)?;
                self.first_origin.get_or_insert_with(|| origin.clone());
                self.origin = Some(origin);
            }
            b"$TTL" => {
                let (_, token) = cursor.word("a TTL")?;
                self.default_ttl = Some(read_ttl(entry, token)?);
            }
            b"$INCLUDE" => return self.include(path, entry, &mut cursor),
            b"$GENERATE" => return self.generate(file, entry, &mut cursor),
            _ => return Err(cursor.wrong(first, "is not a directive; $ORIGIN, $TTL, $INCLUDE and $GENERATE are")),
        }
        nothing_more(&cursor)
    }

    fn absolute(&self, entry: &Entry, token: Token) -> Result<Name, Wrong> {
        let origin = self.origin.as_ref().map(Name::view);
        Name::parse(entry.text(token), origin).map_err(|why| bad_name(entry, token, why))
    }

    /// `$INCLUDE file [origin]`: the origin and the owner are as before when the file ends.
    fn include(&mut self, path: &str, entry: &Entry, cursor: &mut Cursor<'_>) -> Result<(), Wrong> {
        let (text, token) = cursor.word("a file name")?;
        let mut octets = Vec::new();
        parse::unescape_into(text, token, &mut octets)?;
        let included = String::from_utf8(octets).map_err(|_| cursor.wrong(token, "is not a file name in UTF-8"))?;
        let mut inner_origin = self.origin.clone();
        if let Some(origin) = cursor.peek() {
            cursor.skip();
            inner_origin = Some(self.absolute(entry, origin)?);
        }
        nothing_more(cursor)?;
        let target = self.source.resolve(path, &included);
        let identity = self.source.identity(&target);
        if self.open.contains(&identity) {
            return Err(cursor.wrong(token, "is being read already; a file cannot include itself"));
        }
        if self.open.len() > self.limits.include_depth {
            let why = format!("is included too deep; {} levels are the most", self.limits.include_depth);
            return Err(cursor.wrong(token, &why));
        }
        if self.files >= self.limits.files {
            return Err(cursor.wrong(token, &format!("is one file too many; {} are the most", self.limits.files)));
        }
        let source = self.source;
        let input =
            source.open_included(&target).map_err(|error| cursor.wrong(token, &format!("cannot be read: {error}")))?;
        let outer_origin = std::mem::replace(&mut self.origin, inner_origin);
        let outer_owner = (self.owner.clone(), self.orphaned);
        let outcome = if self.read.contains(&identity) {
            self.read_again(&target, identity, input).map_err(|why| cursor.wrong(token, &why))
        } else {
            self.read_file(&target, identity, input);
            Ok(())
        };
        self.origin = outer_origin;
        (self.owner, self.orphaned) = outer_owner;
        outcome
    }

    /// Reads a file that was read before; why not to its end.
    fn read_again(&mut self, path: &str, identity: String, input: Box<dyn Read + 's>) -> Result<(), String> {
        let mut bounded = Bounded { input, left: self.repeatable.clone(), cut: false };
        self.read_file(path, identity, Box::new(&mut bounded));
        if bounded.cut {
            Err(too_much_text("is read again: with it there is", self.limits.repeated_bytes))
        } else {
            Ok(())
        }
    }

    /// `$GENERATE range owner [TTL] [class] type rdata` (BIND's).
    fn generate(&mut self, file: u16, entry: &Entry, cursor: &mut Cursor<'_>) -> Result<(), Wrong> {
        let (text, token) = cursor.word("a range")?;
        let range = generate::Range::parse(text)
            .ok_or_else(|| cursor.wrong(token, "is not a range; write START-STOP or START-STOP/STEP"))?;
        self.generated = self.generated.saturating_add(range.size());
        if self.generated > self.limits.generated {
            let why = format!("makes more records than the {} that all $GENERATE together may", self.limits.generated);
            return Err(cursor.wrong(token, &why));
        }
        let lhs = cursor.next("an owner")?;
        let mut line = Entry::default();
        for value in range {
            line.clear();
            generate::line(entry, lhs, value, &mut line)?;
            match self.repeatable.get().checked_sub(line.bytes()) {
                Some(left) => self.repeatable.set(left),
                None => return Err(cursor.wrong(token, &too_much_text("makes", self.limits.repeated_bytes))),
            }
            let owner = line.tokens()[0];
            self.set_owner(&line, owner)?;
            self.record(file, &line, 1)?;
            if self.builder.is_flooded() {
                break;
            }
        }
        Ok(())
    }
}

/// What all repetition in a zone may come to; a few lines of text would take any memory.
fn too_much_text(what: &str, most: u64) -> String {
    format!("{what} more text than the {most} octets that all $GENERATE and files read again may come to; write it out")
}

/// A reader that ends where nothing more may be repeated.
struct Bounded<R> {
    input: R,
    left: Rc<Cell<u64>>,
    /// There was more.
    cut: bool,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 && !into.is_empty() {
            self.cut |= self.input.read(&mut [0])? > 0;
            return Ok(0);
        }
        let most = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let bytes = self.input.read(&mut into[..most])?;
        self.left.set(left - bytes as u64);
        Ok(bytes)
    }
}

fn read_ttl(entry: &Entry, token: Token) -> Result<u32, Wrong> {
    let cursor = Cursor::new(entry, 0, None);
    let ttl = time::ttl(entry.text(token))
        .ok_or_else(|| cursor.wrong(token, "is not a TTL; write seconds, or units as in 1h30m, up to 2147483647"))?;
    if ttl > MAX_TTL {
        return Err(cursor.wrong(token, "is a TTL that is too large; 2147483647 is the most (RFC 2181 8)"));
    }
    Ok(ttl)
}

fn nothing_more(cursor: &Cursor<'_>) -> Result<(), Wrong> {
    match cursor.peek() {
        Some(token) => Err(cursor.wrong(token, "is more than the directive takes; remove it")),
        None => Ok(()),
    }
}

fn wrong(token: Token, what: &str) -> Wrong {
    Wrong { line: token.line, column: token.column, what: what.to_owned() }
}

fn bad_name(entry: &Entry, token: Token, why: name::NameError) -> Wrong {
    Cursor::new(entry, 0, None).wrong(token, &format!("is not a domain name: {why}"))
}

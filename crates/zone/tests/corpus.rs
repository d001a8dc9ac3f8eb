//! Every row of `types.txt`: text to octets, octets to text and back, and the same octets as generic data. And where
//! the crate `domain` reads a row too, it reads the same.

use zone::{MemorySource, Name, Rtype, load};

struct Row {
    line: usize,
    rtype: Rtype,
    text: &'static str,
    octets: Vec<u8>,
}

fn rows() -> Vec<Row> {
    let lines = include_str!("types.txt").lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    let rows = lines.map(|(at, line)| {
        let (record, hex) = line.rsplit_once(" =>").unwrap_or_else(|| panic!("types.txt:{}", at + 1));
        let (rtype, text) = record.split_once(' ').unwrap();
        let hex = hex.trim();
        let octets = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        Row { line: at + 1, rtype: Rtype::parse(rtype.as_bytes()).unwrap(), text, octets }
    });
    rows.collect()
}

const HEAD: &str = "$TTL 300\n@ SOA ns1 h 1 2 3 4 5\n@ NS ns1\nns1 A 192.0.2.1\n";

/// The rdata of the record `x.example. RTYPE TEXT`, as the crate reads it.
fn read(rtype: &str, text: &str) -> Result<Vec<u8>, String> {
    let (head, owner) = match rtype {
        "SOA" => ("@ 300 NS ns1.example.net.\n", "@ 300"),
        _ => (HEAD, "x"),
    };
    let source = MemorySource::new().with("z", format!("{head}{owner} {rtype} {text}\n"));
    let zone = load(&source, "z", Some("example".parse().unwrap()));
    let zone = zone.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    let name: Name = if rtype == "SOA" { "example" } else { "x.example" }.parse().unwrap();
    let set = zone.find(name.view()).unwrap().rrset(Rtype::parse(rtype.as_bytes()).unwrap());
    Ok(set.unwrap().rdatas().next().unwrap().to_vec())
}

#[test]
fn text_means_its_octets() {
    for row in rows() {
        let octets = read(&row.rtype.to_string(), row.text);
        assert_eq!(octets.as_deref(), Ok(row.octets.as_slice()), "types.txt:{} {} {}", row.line, row.rtype, row.text);
    }
}

#[test]
fn printed_text_means_the_same_octets() {
    for row in rows() {
        let printed = row.rtype.rdata_text(&row.octets).to_string();
        let octets = read(&row.rtype.to_string(), &printed);
        assert_eq!(octets.as_deref(), Ok(row.octets.as_slice()), "types.txt:{} {} {printed}", row.line, row.rtype);
    }
}

#[test]
fn generic_data_is_checked_like_text() {
    for row in rows() {
        let hex: String = row.octets.iter().map(|octet| format!("{octet:02x}")).collect();
        let (number, text) = (format!("TYPE{}", row.rtype.0), format!("\\# {} {hex}", row.octets.len()));
        let number = if row.rtype == Rtype::SOA { "SOA".to_owned() } else { number };
        assert_eq!(read(&number, &text).as_deref(), Ok(row.octets.as_slice()), "types.txt:{}", row.line);
        // with an octet more or fewer, no type of fixed form reads it
        if [Rtype::A, Rtype::AAAA, Rtype::MX, Rtype::SOA, Rtype::NAPTR, Rtype::LOC].contains(&row.rtype) {
            assert!(read(&number, &format!("\\# {} {hex}00", row.octets.len() + 1)).is_err(), "types.txt:{}", row.line);
            let short = &hex[..hex.len() - 2];
            assert!(read(&number, &format!("\\# {} {short}", row.octets.len() - 1)).is_err(), "types.txt:{}", row.line);
        }
    }
}

#[test]
fn every_type_with_a_mnemonic_that_a_zone_can_hold_is_in_the_corpus() {
    let covered: Vec<Rtype> = rows().iter().map(|row| row.rtype).collect();
    let missing: Vec<Rtype> = (1..=u16::MAX)
        .map(Rtype)
        .filter(|rtype| rtype.mnemonic().is_some() && !rtype.is_meta() && !covered.contains(rtype))
        .collect();
    assert_eq!(missing, []);
}

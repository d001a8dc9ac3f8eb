//! Reads a zone file and says what is wrong with it, or what it holds: `checkzone [-p] FILE [ORIGIN]`.
//! With `-p` it prints every record in canonical order.

use std::fs::File;
use std::io::{self, Read};
use std::process::ExitCode;
use std::time::Instant;

struct Files;

impl zone::Source for Files {
    fn open(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(File::open(path)?))
    }
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let print = arguments.first().is_some_and(|first| first == "-p");
    if print {
        arguments.remove(0);
    }
    let Some(path) = arguments.first() else {
        eprintln!("usage: checkzone [-p] FILE [ORIGIN]");
        return ExitCode::from(2);
    };
    let origin = match arguments.get(1).map(|text| text.parse()).transpose() {
        Ok(origin) => origin,
        Err(why) => {
            eprintln!("{}: not a domain name: {why}", arguments[1]);
            return ExitCode::from(2);
        }
    };
    let begin = Instant::now();
    match zone::load(&Files, path, origin) {
        Ok(zone) => {
            let took = begin.elapsed();
            for warning in zone.warnings() {
                eprintln!("warning: {warning}");
            }
            if print {
                for set in zone.nodes().flat_map(|node| node.rrsets()) {
                    print!("{set}");
                }
            }
            let (names, records) = (zone.len(), zone.record_count());
            eprintln!("{}: {names} names, {records} records, {} octets, {took:.3?}", zone.origin(), zone.bytes());
            ExitCode::SUCCESS
        }
        Err(errors) => {
            for error in errors {
                eprintln!("{error}");
            }
            ExitCode::FAILURE
        }
    }
}

//! The secrets of DNS cookies: from a file that the servers of an anycast address share, else random.
//!
//! The file has one secret a line, 32 hexadecimal digits; cookies are made with the first and taken under any, so that a new
//! secret can be rolled in without a client noticing (RFC 9018 section 5). Empty lines and lines that begin with `#` are
//! skipped. Nobody but its owner and group may read it. No message shows what it holds.

use crate::config::Dns;
use crate::error::{Error, reason};
use crate::sandbox;
use crate::zones;
use base::publish::Publisher;
use dns::cookie::Secrets;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Two are in use while one is rolled in; each costs a hash for a cookie that none of those before it made.
const MOST: usize = 8;
/// Far more than that many need, comments included.
const MOST_BYTES: u64 = 64 << 10;

/// Numbers nobody can guess.
///
/// # Errors
/// The kernel's, when it gives none.
pub(crate) fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What the servers' cookies are made with; None when there are to be none.
///
/// # Errors
/// What is wrong with the file, or no random numbers.
pub(crate) fn publisher(dns: &Dns) -> Result<Option<Arc<Publisher<Secrets>>>, Error> {
    let secrets = match &dns.cookie_secret {
        _ if !dns.cookies => return Ok(None),
        Some(path) => load(path).map_err(Error::input)?,
        None => {
            let secret = random()
                .map_err(|error| Error::environment(format!("/dev/urandom: {}; mount /dev", reason(&error))))?;
            Secrets::new(vec![secret])
        }
    };
    Ok(Some(Arc::new(Publisher::new(Arc::new(secrets)))))
}

/// Reads a file of secrets.
///
/// # Errors
/// One line with the place and the mend.
pub(crate) fn load(path: &str) -> Result<Secrets, String> {
    let unreadable = |error: &io::Error| {
        format!("{path}: cannot be read: {}; check --cookie-secret", sandbox::explain(Path::new(path), error))
    };
    // a FIFO would hold up the start or the reload
    let file = zones::open_file(path).map_err(|error| unreadable(&error))?;
    let facts = file.metadata().map_err(|error| unreadable(&error))?;
    if facts.mode() & 0o027 != 0 {
        let mode = facts.mode() & 0o777;
        return Err(format!("{path}: its mode {mode:o} lets others at the secrets; run `chmod 640 {path}`"));
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).map_err(|error| unreadable(&error))?;
    let mut secrets = Vec::new();
    for (n, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let secret = u128::from_str_radix(line, 16).ok().filter(|_| line.len() == 32 && !line.starts_with('+'));
        let Some(secret) = secret else {
            return Err(format!(
                "{path}:{n}: not a secret, which is 32 hexadecimal digits; make one with `openssl rand -hex 16`"
            ));
        };
        if secrets.contains(&secret.to_be_bytes()) {
            return Err(format!("{path}:{n}: this secret stands there twice; remove one"));
        }
        secrets.push(secret.to_be_bytes());
        if secrets.len() > MOST {
            return Err(format!("{path}:{n}: more than {MOST} secrets; remove the oldest"));
        }
    }
    if secrets.is_empty() {
        return Err(format!("{path}: no secret in it; make one with `openssl rand -hex 16 > {path}`"));
    }
    Ok(Secrets::new(secrets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    const A: &str = "e5e973e5a6b2a43f48e7dc849e37bfcf";
    const B: &str = "445536bcd2513298075a5d379663c962";

    fn read(text: &str, mode: u32) -> Result<Secrets, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let path = path.to_str().unwrap();
        load(path).map_err(|error| error.replace(path, "FILE"))
    }

    #[test]
    fn the_first_is_active_and_the_order_is_kept() {
        let secret = |text| u128::from_str_radix(text, 16).unwrap().to_be_bytes();
        let text = format!("# next month's first\n\n  {}\n{B}\n", A.to_uppercase());
        for mode in [0o600, 0o640, 0o400] {
            assert_eq!(read(&text, mode).unwrap(), Secrets::new(vec![secret(A), secret(B)]));
        }
        assert_ne!(read(&format!("{B}\n{A}"), 0o600).unwrap(), Secrets::new(vec![secret(A), secret(B)]));
    }

    #[test]
    fn what_is_wrong_is_one_line_that_gives_nothing_away() {
        let many: String = (0..9).map(|n| format!("{n:032x}\n")).collect();
        let not = |line| {
            format!("FILE:{line}: not a secret, which is 32 hexadecimal digits; make one with `openssl rand -hex 16`")
        };
        let cases = [
            (format!("{A}\n{}\n", &B[1..]), 0o600, not(2)),
            (format!("{A}0\n"), 0o600, not(1)),
            (format!("+{}\n", &A[1..]), 0o600, not(1)),
            (format!("{}g\n", &A[1..]), 0o600, not(1)),
            (format!("{A}\n\n{A}\n"), 0o600, "FILE:3: this secret stands there twice; remove one".to_owned()),
            (many, 0o600, "FILE:9: more than 8 secrets; remove the oldest".to_owned()),
            (
                "# none\n".to_owned(),
                0o600,
                "FILE: no secret in it; make one with `openssl rand -hex 16 > FILE`".to_owned(),
            ),
            (A.to_owned(), 0o644, "FILE: its mode 644 lets others at the secrets; run `chmod 640 FILE`".to_owned()),
            (A.to_owned(), 0o620, "FILE: its mode 620 lets others at the secrets; run `chmod 640 FILE`".to_owned()),
        ];
        for (text, mode, line) in cases {
            assert_eq!(read(&text, mode).unwrap_err(), line);
        }
        let nowhere = "/nonexistent/secrets";
        let error = format!("{nowhere}: cannot be read: No such file or directory; check --cookie-secret");
        assert_eq!(load(nowhere).unwrap_err(), error);
        let other = |path: &str| format!("{path}: cannot be read: it is no regular file; check --cookie-secret");
        assert_eq!(load("/").unwrap_err(), other("/"));
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo").to_str().unwrap().to_owned();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (done, outcome) = std::sync::mpsc::channel();
        let path = fifo.clone();
        std::thread::spawn(move || done.send(load(&path)));
        let outcome = outcome.recv_timeout(std::time::Duration::from_secs(20)).expect("an end");
        assert_eq!(outcome.unwrap_err(), other(&fifo));
    }
}

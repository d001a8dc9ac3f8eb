//! Status codes that are sent, with their lines.

macro_rules! statuses {
    ($($code:literal $reason:literal $page:literal,)*) => {
        /// The status line with CRLF. The server speaks HTTP/1.1 to every client (RFC 9110 section 6.2).
        pub(crate) fn line(status: u16) -> &'static [u8] {
            match status {
                $($code => concat!("HTTP/1.1 ", $code, " ", $reason, "\r\n").as_bytes(),)*
                // not reached: every status that is sent stands in the table
                _ => b"HTTP/1.1 500 Internal Server Error\r\n",
            }
        }

        /// Code and reason of those that have a page as their content.
        pub(crate) const PAGES: &[(u16, &str)] = {
            const COUNT: usize = 0 $(+ $page as usize)*;
            const ALL: &[(u16, &str, bool)] = &[$(($code, $reason, $page),)*];
            const PAGES: [(u16, &str); COUNT] = {
                let mut pages = [(0, ""); COUNT];
                let (mut from, mut to) = (0, 0);
                while from < ALL.len() {
                    if ALL[from].2 {
                        pages[to] = (ALL[from].0, ALL[from].1);
                        to += 1;
                    }
                    from += 1;
                }
                pages
            };
            &PAGES
        };
    };
}

statuses! {
    200 "OK" false,
    204 "No Content" false,
    206 "Partial Content" false,
    301 "Moved Permanently" true,
    302 "Found" true,
    303 "See Other" true,
    304 "Not Modified" false,
    307 "Temporary Redirect" true,
    308 "Permanent Redirect" true,
    400 "Bad Request" true,
    403 "Forbidden" true,
    404 "Not Found" true,
    405 "Method Not Allowed" true,
    408 "Request Timeout" true,
    412 "Precondition Failed" true,
    413 "Content Too Large" true,
    414 "URI Too Long" true,
    416 "Range Not Satisfiable" true,
    417 "Expectation Failed" true,
    431 "Request Header Fields Too Large" true,
    501 "Not Implemented" true,
    503 "Service Unavailable" true,
    505 "HTTP Version Not Supported" true,
}

/// Place of a status among [`PAGES`].
pub(crate) fn page(status: u16) -> Option<usize> {
    PAGES.binary_search_by_key(&status, |(code, _)| *code).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::Refusal;

    #[test]
    fn every_refusal_has_a_page() {
        for (refusal, _) in Refusal::ALL {
            let at = page(refusal.status()).expect("a page");
            let line = line(PAGES[at].0);
            assert_eq!(line, format!("HTTP/1.1 {} {}\r\n", PAGES[at].0, PAGES[at].1).as_bytes());
        }
        assert!(PAGES.is_sorted_by_key(|(code, _)| *code));
        assert_eq!(page(200), None);
    }
}

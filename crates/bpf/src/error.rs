//! Reading the errors of the loader.

use rustix::io::Errno;
use std::error::Error;
use std::io;

/// The error and its causes, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut said = error.to_string().trim().replace('\n', " | ");
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string().trim().replace('\n', " | ");
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}

/// The errno at the bottom of an error.
pub(crate) fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(code);
        }
        at = error.source();
    }
    None
}

pub(crate) fn is(error: &(dyn Error + 'static), code: Errno) -> bool {
    errno(error) == Some(code.raw_os_error())
}

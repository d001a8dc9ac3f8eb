//! What the fuzz targets do with their input: one function a parser, each with the promises that must hold for any bytes.
//! `make fuzz` drives them with libFuzzer; `tests/corpus.rs` replays the corpus in every ordinary test run.

#![forbid(unsafe_code)]

mod frames;
mod http;
mod items;
mod message;
mod questions;
mod segment;
mod zones;

pub use frames::frames;
pub use http::http_request;
pub use items::kv;
pub use questions::{question, stream};
pub use segment::segment;
pub use zones::zone_file;

/// Cuts the input into pieces: each begins with its length in two octets, and the last may be short.
fn pieces(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first_chunk::<2>()?;
        let (piece, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()));
        data = rest;
        Some(piece)
    })
}

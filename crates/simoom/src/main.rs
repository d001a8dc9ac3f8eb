//! The command `simoom`; everything is in crate `control`.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    control::main(concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("SIMOOM_COMMIT"), ")"))
}

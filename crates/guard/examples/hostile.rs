//! A program for `simoom run` that keeps to nothing: `simoom run --listen ADDR:PORT -- hostile [SEED]`.
//!
//! It takes the connections that it is given and writes anything into the memory that it shares with the server, which goes on
//! serving everybody else; `simoom ctl stats` shows what was refused, by reason.

use guard::client::attach;
use guard::hostile::Hostile;
use guard::jail;
use std::sync::atomic::AtomicBool;

fn main() -> std::io::Result<()> {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let Some(threads) = attach()? else { return Err(std::io::Error::other("started by `simoom run` alone")) };
    jail::inner()?;
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for (n, attached) in threads.into_iter().enumerate() {
            let goes_on = &goes_on;
            scope.spawn(move || Hostile::new(attached, seed + n as u64).map(|mut hostile| hostile.run(goes_on)));
        }
    });
    Ok(())
}

//! Processes of ours: started from the program that runs, whatever has become of its file, and waited for.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// What `ps` and `top` show.
const NAME: &std::ffi::CStr = c"simoom";

/// Our own program, to be started again, called what we were called.
pub(crate) fn ourselves() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(std::env::args_os().next().unwrap_or_else(|| "simoom".into()));
    command
}

/// Gives the process its name: one that was started by [`ourselves`] would be called "exe".
pub(crate) fn take_name() {
    // whoever cannot is called something else
    let _ = rustix::thread::set_name(NAME);
}

/// Waits for one that is about to end, so long at most.
pub(crate) fn wait(child: &mut Child, most: Duration) {
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < most {
        std::thread::sleep(Duration::from_millis(1));
    }
}

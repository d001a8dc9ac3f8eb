//! A service behind shared memory, as one in a process of its own is: here in a thread, so that a test's hand works it.

use app::Service;
use guard::client::{attach_to, run_while};
use guard::stats::Stats;
use guard::{Channel, Grant, Granted, Options, Permit, Place, Remote};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread, which ends with this.
pub struct Application {
    channel: Arc<Channel>,
    goes_on: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _life: UnixStream,
}

impl Drop for Application {
    fn drop(&mut self) {
        self.goes_on.store(false, Ordering::Relaxed);
        self.channel.end();
        for thread in self.threads.drain(..) {
            // what it panicked for has been shown, and the test has failed of it
            let _ = thread.join();
        }
    }
}

/// Runs a service for one thread of an engine, with listeners 0 to 3 and whomever it likes for a peer; what the engine is to run in its
/// place.
pub fn protect<S: Service + Send + 'static>(service: S) -> (Remote, Application) {
    let everybody = [Permit::new([0; 4].into(), 0, None), Permit::new([0u16; 8].into(), 0, None)];
    let grant = Grant::new(64, 0..4).permitting(everybody.to_vec());
    let place = Place::Other { spin: Duration::from_micros(20) };
    let channel = Channel::new(0, place, None, grant).unwrap();
    assert!(channel.open());
    // on a machine that is busy the thread may not run for long
    let long = Duration::from_secs(3600);
    let options = Options { unresponsive: long, patience: long, ..Options::default() };
    let remote = Remote::new(channel.clone(), options, Arc::new(Stats::new("test")));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let granted = Granted::of(theirs.as_fd(), std::slice::from_ref(&channel));
    let attached = attach_to(&granted).unwrap().pop().unwrap();
    let goes_on = Arc::new(AtomicBool::new(true));
    let runs = goes_on.clone();
    let application = std::thread::spawn(move || run_while(&attached, service, &runs).unwrap());
    let bell = channel.attend().unwrap();
    (remote, Application { channel, goes_on, threads: vec![application, bell], _life: ours })
}

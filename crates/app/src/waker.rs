//! How another thread gets an engine's thread to look.

use std::fmt;
use std::sync::Arc;

/// Makes one engine thread begin a cycle soon, in which its service is told [`woken`](crate::Service::woken). May be used from any
/// thread, costs a system call, and does nothing once the thread has ended.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// What `wake` does.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    /// Begins the cycle.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

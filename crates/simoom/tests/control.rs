//! The place of the control socket. A file of its own: it starts servers one after the other, and ports that other tests have just let go stay
//! taken until a process that is being started meanwhile has become the program.

mod common;

use common::{Place, text};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::sync::atomic::{AtomicBool, Ordering};

/// Who the server becomes may own the folder above, and so exchange that of the socket as fast as he can.
#[test]
fn a_control_socket_is_made_and_removed_in_one_folder() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: becoming another user is not tested");
        return;
    }
    let place = Place::new();
    let [run, other] = ["run", "other"].map(|name| place.path(name));
    [&run, &other].iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let listen = format!("127.0.0.1:{}", common::free_port());
    // this is what ends it, behind the socket
    let absent = "192.0.2.99:5353";
    let line = format!("simoom: metrics {absent}: Cannot assign requested address; give an address of this machine\n");
    let control = format!("{run}/control");
    let zone = place.path("example.zone");
    let args = ["dns", &zone, "--user", "nobody", "--listen", &listen, "--control", &control, "--metrics", absent];
    let done = AtomicBool::new(false);
    let ends: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &run, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let ends = (0..40).map(|_| text(&common::run(&args).stderr)).collect();
        done.store(true, Ordering::Relaxed);
        ends
    });
    assert!(ends.iter().all(|said| said.ends_with(&line)), "{ends:#?}");
    let left = [run, other].map(|folder| std::fs::read_dir(folder).unwrap().count());
    assert_eq!(left, [0, 0], "a socket was left");
}

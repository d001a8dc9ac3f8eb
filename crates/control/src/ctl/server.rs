//! The server's end of the control socket: one thread a client, a few clients at once.
//!
//! The socket is mode 0600, so who can connect is decided by its owner and by root. A client may send several requests, one
//! after the other; it is dropped when it says nothing for a while.

use super::{REQUEST_BYTES, Request};
use crate::capture;
use crate::error::{Error, reason};
use crate::links::{self, Entry};
use crate::serve::World;
use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid, chownat, fstat};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Clients at once; a further one is told so.
const CLIENTS: usize = 16;
/// How long a client may say nothing, and how long it may leave an answer unread.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bound socket; its file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// where it stands, if that is for another user
    entry: Option<Entry>,
}

impl Socket {
    /// Binds the socket. What a dead server left at `path` is replaced. With `owner` the socket, and its folder when it is
    /// made here, become that user's.
    ///
    /// # Errors
    /// A running server answers there, something else stands there, or the folder cannot be written.
    pub fn bind(path: &Path, default: bool, owner: Option<(u32, u32)>) -> Result<Socket, Error> {
        let shown = path.display();
        let wrong = |what: &str, error: &io::Error| {
            let line = format!("control socket {shown}: {what}: {}; give another with --control PATH", reason(error));
            // a folder that is not there is nothing that passes
            if error.kind() == io::ErrorKind::NotFound { Error::input(line) } else { Error::environment(line) }
        };
        if let Some(folder) = path.parent().filter(|folder| default && !folder.exists()) {
            fs::create_dir(folder).map_err(|error| wrong("its folder cannot be made", &error))?;
            let given = owner.map_or(Ok(()), |owner| give_folder(folder, owner));
            given.map_err(|error| wrong("its folder cannot be given to the user", &error))?;
        }
        // the folder stays that one whatever the user, whose it may be or who may have one above, makes of its name
        let entry = owner.map(|_| links::folder_by_roots(path)).transpose();
        let entry = entry.map_err(|error| wrong("cannot be made", &error))?;
        let (at, made) = match &entry {
            Some(entry) => (entry.path(), "cannot be made by way of /proc/self/fd"),
            None => (path.to_owned(), "cannot be made"),
        };
        clear(path, &at)?;
        // no moment at which others could connect
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(&at);
        rustix::process::umask(before);
        let listener = bound.map_err(|error| wrong(made, &error))?;
        let socket = Socket { listener, path: path.to_owned(), entry };
        if let Some((owner, entry)) = owner.zip(socket.entry.as_ref()) {
            give(entry, &socket.listener, owner).map_err(|error| wrong("cannot be given to the user", &error))?;
        }
        Ok(socket)
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answers clients until the process ends; the socket's file goes with the value.
    ///
    /// # Errors
    /// The kernel's, when the thread cannot be started.
    pub(crate) fn start(&self, world: Arc<World>) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        std::thread::Builder::new().name("control".into()).spawn(move || accept(&listener, &world))?;
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // it may be gone already, or the folder another user's
        let _ = match &self.entry {
            Some(entry) => entry.remove().map_err(io::Error::from),
            None => fs::remove_file(&self.path),
        };
    }
}

/// Makes a folder that was just made another user's.
fn give_folder(folder: &Path, owner: (u32, u32)) -> io::Result<()> {
    let made = links::by_roots(folder)?.open_as_it_is()?;
    let is = fstat(&made)?;
    let is_ours =
        FileType::from_raw_mode(is.st_mode) == FileType::Directory && is.st_uid == rustix::process::geteuid().as_raw();
    if is_ours { own(&made, owner) } else { Err(io::Error::other("another stands in its place")) }
}

/// Makes the socket that `listener` listens at another user's. From an earlier run the folder may belong to that user, who could put
/// something else in its place and have any file of the system given to him: so what is given is what was seen to lead to the listener.
fn give(entry: &Entry, listener: &UnixListener, owner: (u32, u32)) -> io::Result<()> {
    let (found, another) = (entry.open_as_it_is()?, || io::Error::other("another stands in its place"));
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::Socket {
        return Err(another());
    }
    let stream = UnixStream::connect(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let stream = stream.map_err(|error| match Errno::from_io_error(&error) {
        // nobody listens there, or not for streams
        Some(Errno::CONNREFUSED | Errno::PROTOTYPE) => another(),
        _ => error,
    })?;
    // whose it is was written down when it began to listen
    let is_ours = rustix::net::sockopt::socket_peercred(&stream)?.pid == rustix::process::getpid();
    if !is_ours {
        return Err(another());
    }
    own(&found, owner)?;
    // the one that has just connected
    listener.accept()?;
    Ok(())
}

fn own(of: &OwnedFd, (uid, gid): (u32, u32)) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    Ok(chownat(of, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?)
}

/// Makes room at `at`, which the operator knows as `path`: removes the socket of a dead server and refuses anything else.
fn clear(path: &Path, at: &Path) -> Result<(), Error> {
    let shown = path.display();
    match fs::symlink_metadata(at) {
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::input(format!(
                "control socket {shown}: a file that is not a socket stands there; remove it or give another with --control PATH"
            )));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(at) {
        Ok(stream) => {
            let who = match rustix::net::sockopt::socket_peercred(&stream) {
                Ok(peer) => format!("process {}", peer.pid.as_raw_nonzero()),
                Err(_) => "another process".into(),
            };
            Err(Error::environment(format!(
                "control socket {shown}: a running server ({who}) answers there; stop it or give another with --control PATH"
            )))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!("control socket {shown}: replacing what a dead server left");
            fs::remove_file(at).map_err(|error| {
                Error::environment(format!("control socket {shown}: cannot be removed: {}; remove it", reason(&error)))
            })
        }
        Err(error) => Err(Error::environment(format!(
            "control socket {shown}: {}; give another with --control PATH",
            reason(&error)
        ))),
    }
}

fn accept(listener: &UnixListener, world: &Arc<World>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((mut stream, _)) = listener.accept() else {
            // out of descriptors or memory: not again at once
            std::thread::sleep(Duration::from_millis(200));
            continue;
        };
        let patient = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
        if patient.is_err() {
            continue;
        }
        if clients.load(Ordering::Acquire) >= CLIENTS {
            let _ = say(&mut stream, &failed(&format!("{CLIENTS} clients are connected already; try again later")));
            continue;
        }
        clients.fetch_add(1, Ordering::AcqRel);
        let (world, count) = (world.clone(), clients.clone());
        let started = std::thread::Builder::new().name("control-client".into()).spawn(move || {
            // what goes wrong with a client is the client's to notice
            let _ = converse(stream, &world);
            count.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            clients.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// An answer that says why not.
pub(crate) fn failed(error: &str) -> Value {
    json!({ "ok": false, "error": error })
}

fn say(stream: &mut UnixStream, answer: &Value) -> io::Result<()> {
    let mut line = answer.to_string();
    line.push('\n');
    stream.write_all(line.as_bytes())
}

fn converse(stream: UnixStream, world: &World) -> io::Result<()> {
    let mut answers = stream.try_clone()?;
    let mut requests = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let read = (&mut requests).take(REQUEST_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            say(&mut answers, &failed(&format!("a request is one line of at most {REQUEST_BYTES} bytes")))?;
            return Ok(());
        }
        match serde_json::from_slice(&line) {
            Ok(Request::Capture { filter, count, seconds }) => {
                let time = Duration::from_secs(seconds.into());
                let wanted = capture::Wanted { filter, frames: count.unwrap_or(u64::MAX), time };
                return capture::run(&world.running, &wanted, answers);
            }
            Ok(Request::Stop {}) => {
                // said first: the process may end at once
                say(&mut answers, &json!({ "ok": true }))?;
                // the connection ends with the server, however long that takes
                answers.set_read_timeout(None)?;
                world.stop();
            }
            Ok(request) => say(&mut answers, &world.answer(&request))?,
            Err(error) => say(&mut answers, &failed(&format!("not a request: {error}")))?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, lchown, symlink};

    #[test]
    fn a_dead_servers_socket_is_replaced_and_a_live_ones_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        // std's listener leaves its file behind, as a killed server does
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::bind(&path, false, None).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        let error = Socket::bind(&path, false, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "control socket {}: a running server (process {}) answers there; stop it or give another with --control PATH",
                path.display(),
                std::process::id()
            )
        );
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn what_stands_in_the_sockets_place_is_not_given_away() {
        assert!(rustix::process::geteuid().is_root(), "this needs root, as the laboratory does");
        let folder = tempfile::tempdir().unwrap();
        let (path, whose) = (folder.path().join("control"), |path: &Path| fs::symlink_metadata(path).unwrap().uid());
        let socket = Socket::bind(&path, false, Some((65534, 65534))).unwrap();
        assert_eq!(whose(&path), 65534);
        // who has connected to see that is gone
        socket.listener.set_nonblocking(true).unwrap();
        assert_eq!(socket.listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // a file of root's under the same name, a link to one, and the socket of another server
        let entry = links::folder_by_roots(&path).unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, "").unwrap();
        let another = || give(&entry, &socket.listener, (65534, 65534)).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        fs::hard_link(&secret, &path).unwrap();
        assert_eq!(another(), "another stands in its place");
        fs::remove_file(&path).unwrap();
        symlink(&secret, &path).unwrap();
        assert_eq!(another(), "another stands in its place");
        fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(another(), "another stands in its place");
        assert_eq!((whose(&secret), whose(&path)), (0, 0));
        // at the end it goes where it was, wherever the folder's name leads by then
        let theirs = folder.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        let socket = Socket::bind(&theirs.join("control"), false, Some((65534, 65534))).unwrap();
        fs::rename(&theirs, folder.path().join("moved")).unwrap();
        symlink(folder.path(), &theirs).unwrap();
        drop(socket);
        assert!(path.exists() && !folder.path().join("moved/control").exists());
        // nor is anything done where a link of the user's leads
        let way = folder.path().join("way");
        symlink(folder.path(), &way).unwrap();
        lchown(&way, Some(65534), Some(65534)).unwrap();
        let error = Socket::bind(&way.join("control"), false, Some((65534, 65534))).unwrap_err().to_string();
        assert!(error.contains("is a link that is not root's"), "{error}");
        assert!(path.exists(), "what a dead server left was removed by way of a user's link");
    }

    #[test]
    fn other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        fs::write(&path, "data").unwrap();
        let error = Socket::bind(&path, false, None).unwrap_err();
        assert!(error.to_string().contains("a file that is not a socket stands there"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let error = Socket::bind(&folder.path().join("none/control"), false, None).unwrap_err();
        assert!(error.to_string().ends_with("No such file or directory; give another with --control PATH"), "{error}");
    }
}

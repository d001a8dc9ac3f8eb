//! What the kernel tells of interfaces by its generic netlink family "netdev" (Documentation/netlink/specs/netdev.yaml): what a
//! driver does with XDP, when that changes, and the NAPI instances.

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

// linux/genetlink.h
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;
// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
// linux/netlink.h
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_TYPE_MASK: u16 = 0x3fff;
/// `struct nlmsghdr` and `struct genlmsghdr`
const HEADERS: usize = 16 + 4;

/// What a driver does with XDP (`enum netdev_xdp_act`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Those of an interface of the calling thread's network namespace; None on a kernel that does not tell (before Linux 6.3).
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(ifindex: u32) -> io::Result<Option<Features>> {
        let Some(family) = family()? else { return Ok(None) };
        let id = id(&family)?;
        let found = ask(id, 0, NETDEV_CMD_DEV_GET, 1, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes())?;
        let features = found.first().and_then(|of| attribute(of, NETDEV_A_DEV_XDP_FEATURES)?.first_chunk().copied());
        Ok(features.map(|features| Features(u64::from_ne_bytes(features))))
    }

    /// It runs programs, and sends frames back where they came from.
    pub fn sends_back(self) -> bool {
        self.0 & NETDEV_XDP_ACT_BASIC != 0
    }

    /// It sends what programs hand it. veth does so while somebody takes it: while its peer has a NAPI instance, by a program of
    /// its own in the driver or by receive offload.
    pub fn sends(self) -> bool {
        self.0 & NETDEV_XDP_ACT_NDO_XMIT != 0
    }
}

/// Hears that [`Features`] of an interface of its network namespace have changed.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Begins to listen; None on a kernel that does not tell.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Option<Monitor>> {
        let Some(family) = family()? else { return Ok(None) };
        let group = group(&family, b"mgmt\0").ok_or(io::ErrorKind::Unsupported)?;
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.add_membership(group)?;
        socket.set_non_blocking(true)?;
        Ok(Some(Monitor { socket }))
    }

    /// Readable when there is something to hear.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether something has changed since the last call, of whatever interface; does not wait.
    ///
    /// # Errors
    /// The kernel's.
    pub fn has_changed(&mut self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            let mut buffer = Vec::with_capacity(8 << 10);
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => changed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changed),
                // so much has changed that some of it was lost
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => changed = true,
                Err(error) => return Err(error),
            }
        }
    }
}

/// The ids of the interface's NAPI instances, ascending, which for veth is the order of its receive queues: it adds one instance a
/// queue, and ids are given in turn. The thread of an instance is called `napi/INTERFACE-ID`. Looks in the network namespace of the
/// calling thread.
///
/// # Errors
/// The kernel's; it needs Linux 6.8.
pub fn napi_ids(ifindex: u32) -> io::Result<Vec<u32>> {
    let family = id(&family()?.ok_or(io::ErrorKind::Unsupported)?)?;
    let found = ask(family, NLM_F_DUMP, NETDEV_CMD_NAPI_GET, 1, NETDEV_A_NAPI_IFINDEX, &ifindex.to_ne_bytes())?;
    let id = |message: &Vec<u8>| Some(u32::from_ne_bytes(*attribute(message, NETDEV_A_NAPI_ID)?.first_chunk()?));
    let mut ids: Vec<u32> = found.iter().filter_map(id).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// The attributes of the family; None when the kernel has none.
fn family() -> io::Result<Option<Vec<u8>>> {
    match ask(GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY, 1, CTRL_ATTR_FAMILY_NAME, b"netdev\0") {
        Ok(found) => Ok(found.into_iter().next()),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn id(family: &[u8]) -> io::Result<u16> {
    let id = attribute(family, CTRL_ATTR_FAMILY_ID).and_then(|id| id.first_chunk().copied());
    Ok(u16::from_ne_bytes(id.ok_or(io::ErrorKind::InvalidData)?))
}

/// The number of a multicast group, whose name ends with a zero.
fn group(family: &[u8], name: &[u8]) -> Option<u32> {
    let groups = attributes(attribute(family, CTRL_ATTR_MCAST_GROUPS)?);
    let mut named = groups.filter(|(_, group)| attribute(group, CTRL_ATTR_MCAST_GRP_NAME) == Some(name));
    Some(u32::from_ne_bytes(*attribute(named.next()?.1, CTRL_ATTR_MCAST_GRP_ID)?.first_chunk()?))
}

/// Sends a request with one attribute; gives the attributes of each answer.
fn ask(family: u16, flags: u16, command: u8, version: u8, attribute: u16, value: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&request(family, flags | NLM_F_REQUEST, command, version, attribute, value), 0)?;
    let mut answers = Vec::new();
    loop {
        let mut buffer = Vec::with_capacity(64 << 10);
        socket.recv(&mut buffer, 0)?;
        // a dump ends by a message of its own, another question with its one answer
        if take(&buffer, &mut answers)? || flags & NLM_F_DUMP == 0 {
            return Ok(answers);
        }
    }
}

fn request(family: u16, flags: u16, command: u8, version: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let attribute_bytes = 4 + value.len();
    let len = (HEADERS + attribute_bytes).next_multiple_of(4);
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&(len as u32).to_ne_bytes());
    bytes.extend_from_slice(&family.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    // sequence number and port: one question a socket
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[command, version, 0, 0]);
    bytes.extend_from_slice(&(attribute_bytes as u16).to_ne_bytes());
    bytes.extend_from_slice(&attribute.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(len, 0);
    bytes
}

/// Takes a datagram apart; true when it held the end of a dump.
fn take(buffer: &[u8], answers: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    let mut rest = buffer;
    while rest.len() >= 16 {
        let len = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        if len < 16 || len > rest.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match u16::from_ne_bytes([rest[4], rest[5]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR if len >= 20 => {
                let code = i32::from_ne_bytes([rest[16], rest[17], rest[18], rest[19]]);
                return if code == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(-code)) };
            }
            _ if len >= HEADERS => answers.push(rest[HEADERS..len].to_vec()),
            _ => {}
        }
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
    }
    Ok(false)
}

/// The value of an attribute.
fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Attributes one after another, up to one that is cut off.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (rest.first_chunk()?, rest.get(2..4)?.first_chunk()?);
        let (len, kind) = (usize::from(u16::from_ne_bytes(*len)), u16::from_ne_bytes(*kind) & NLA_TYPE_MASK);
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_laid_out_as_the_kernel_reads_it() {
        let bytes = request(0x10, 1, 3, 1, 2, b"netdev\0");
        assert_eq!(bytes.len(), 32);
        assert_eq!(bytes[..8], [32, 0, 0, 0, 0x10, 0, 1, 0]);
        assert_eq!(bytes[16..24], [3, 1, 0, 0, 11, 0, 2, 0]);
        assert_eq!(&bytes[24..], b"netdev\0\0");
        assert_eq!(attribute(&bytes[20..], 2), Some(&b"netdev\0"[..]));
        assert_eq!(attribute(&bytes[20..], 1), None);
        assert_eq!(attribute(&[9, 0, 1, 0, 5], 1), None, "an attribute longer than what there is");
    }

    #[test]
    fn an_error_and_an_end_are_told_apart() {
        let mut answers = Vec::new();
        let done = [20, 0, 0, 0, 3, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(take(&done, &mut answers).unwrap() && answers.is_empty());
        let mut error = done;
        error[4] = 2;
        error[16..].copy_from_slice(&(-95i32).to_ne_bytes());
        assert_eq!(take(&error, &mut answers).unwrap_err().raw_os_error(), Some(95));
        assert!(!take(&[], &mut answers).unwrap());
        take(&[200, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut answers).unwrap_err();
    }

    #[test]
    fn an_interface_without_napi_has_none() {
        // lo, of index 1 in any namespace
        assert_eq!(napi_ids(1).unwrap(), []);
    }

    #[test]
    fn loopback_has_no_xdp_in_its_driver() {
        let features = Features::of(1).unwrap().unwrap();
        assert!(!features.sends_back() && !features.sends(), "{features:?}");
        assert!(Features::of(0xffff_fff0).is_err(), "an interface that is not there");
    }

    #[test]
    fn groups_are_found_by_name() {
        let nested = |kind: u16, value: &[u8]| {
            let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let one = |name: &[u8], id: u32| [nested(1, name), nested(2, &id.to_ne_bytes())].concat();
        let groups = [nested(1, &one(b"other\0", 3)), nested(2, &one(b"mgmt\0", 7))].concat();
        let family = [nested(1, &[20, 0]), nested(0x8000 | 7, &groups)].concat();
        assert_eq!((id(&family).unwrap(), group(&family, b"mgmt\0"), group(&family, b"mgmt")), (20, Some(7), None));
        assert_eq!(group(&family[..family.len() - 16], b"mgmt\0"), None, "cut off");
    }
}

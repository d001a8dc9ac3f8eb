//! The NAPI instances of an interface, by the kernel's generic netlink family "netdev" (Documentation/netlink/specs/netdev.yaml).

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use std::io;

// linux/genetlink.h
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
// linux/netdev.h
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

/// The ids of the interface's NAPI instances, ascending, which for veth is the order of its receive queues: it adds one instance a
/// queue, and ids are given in turn. The thread of an instance is called `napi/INTERFACE-ID`. Looks in the network namespace of the
/// calling thread; needs Linux 6.8.
pub(crate) fn ids(ifindex: u32) -> io::Result<Vec<u32>> {
    let family = ask(GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY, 1, CTRL_ATTR_FAMILY_NAME, b"netdev\0")?;
    let family = family.first().and_then(|message| attribute(message, CTRL_ATTR_FAMILY_ID)?.first_chunk().copied());
    let family = u16::from_ne_bytes(family.ok_or(io::ErrorKind::Unsupported)?);
    let wanted = ifindex.to_ne_bytes();
    let found = ask(family, NLM_F_DUMP, NETDEV_CMD_NAPI_GET, 1, NETDEV_A_NAPI_IFINDEX, &wanted)?;
    let id = |message: &Vec<u8>| Some(u32::from_ne_bytes(*attribute(message, NETDEV_A_NAPI_ID)?.first_chunk()?));
    let mut ids: Vec<u32> = found.iter().filter_map(id).collect();
    ids.sort_unstable();
    Ok(ids)
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
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while attributes.len() >= 4 {
        let len = usize::from(u16::from_ne_bytes([attributes[0], attributes[1]]));
        let kind = u16::from_ne_bytes([attributes[2], attributes[3]]) & NLA_TYPE_MASK;
        let value = attributes.get(4..len)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    None
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
        assert_eq!(ids(1).unwrap(), []);
    }
}

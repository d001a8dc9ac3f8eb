//! The datagram half: slots that hold a question and take the answer.

use crate::Addresses;

/// The two ECN bits of the IP header (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// the sender does not use ECN
    #[default]
    NotEct = 0,
    /// ECT(1)
    Ect1 = 1,
    /// ECT(0)
    Ect0 = 2,
    /// congestion experienced
    Ce = 3,
}

impl Ecn {
    /// From the low two bits of the traffic class; the others are ignored.
    #[inline]
    pub const fn from_bits(bits: u8) -> Ecn {
        match bits & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

/// One datagram of a burst. The buffer begins with the question, and the answer is written over it: it is the received
/// frame on the dataplane, the receive buffer on kernel sockets.
#[derive(Debug)]
pub struct Datagram<'a> {
    buffer: &'a mut [u8],
    question_bytes: u16,
    reply_bytes: Option<u16>,
    /// the congestion bits it came with
    pub ecn: Ecn,
    /// where it came to and from
    pub addresses: Addresses,
}

impl<'a> Datagram<'a> {
    /// A slot whose buffer holds a question of `question_bytes`; the buffer's length is the largest answer that can be
    /// sent. Engines make these.
    ///
    /// # Panics
    /// When the question is longer than the buffer.
    #[inline]
    pub fn new(buffer: &'a mut [u8], question_bytes: usize, ecn: Ecn, addresses: Addresses) -> Self {
        assert!(question_bytes <= buffer.len(), "a question of {question_bytes} bytes in {}", buffer.len());
        let room = buffer.len().min(usize::from(u16::MAX));
        Datagram {
            buffer: &mut buffer[..room],
            question_bytes: question_bytes as u16,
            reply_bytes: None,
            ecn,
            addresses,
        }
    }

    /// The question.
    #[inline]
    pub fn question(&self) -> &[u8] {
        &self.buffer[..usize::from(self.question_bytes)]
    }

    /// The whole buffer: the question, then bytes of no meaning up to the largest answer.
    #[inline]
    pub fn buffer(&mut self) -> &mut [u8] {
        self.buffer
    }

    /// Bytes of the largest answer.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// The first `bytes` of the buffer go back to the peer.
    ///
    /// # Panics
    /// When that is more than the buffer has.
    #[inline]
    pub fn reply(&mut self, bytes: usize) {
        assert!(bytes <= self.buffer.len(), "an answer of {bytes} bytes in {}", self.buffer.len());
        self.reply_bytes = Some(bytes as u16);
    }

    /// The answer's bytes, or None when there is none.
    #[inline]
    pub fn reply_bytes(&self) -> Option<usize> {
        self.reply_bytes.map(usize::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn addresses() -> Addresses {
        let any: SocketAddr = "192.0.2.1:53".parse().unwrap();
        Addresses { local: any, peer: any }
    }

    #[test]
    fn an_answer_replaces_the_question() {
        let mut buffer = *b"question and room";
        let mut slot = Datagram::new(&mut buffer, 8, Ecn::Ect0, addresses());
        assert_eq!((slot.question(), slot.capacity(), slot.reply_bytes()), (&b"question"[..], 17, None));
        slot.buffer()[..3].copy_from_slice(b"yes");
        slot.reply(3);
        assert_eq!(slot.reply_bytes(), Some(3));
        assert_eq!(&buffer[..4], b"yess");
    }

    #[test]
    #[should_panic(expected = "an answer of 5 bytes in 4")]
    fn an_answer_never_exceeds_the_buffer() {
        Datagram::new(&mut [0; 4], 1, Ecn::NotEct, addresses()).reply(5);
    }

    #[test]
    fn ecn_bits_round_trip() {
        for bits in 0..=3 {
            assert_eq!(Ecn::from_bits(bits | 0xfc) as u8, bits);
        }
    }
}

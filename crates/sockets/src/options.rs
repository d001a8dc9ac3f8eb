//! What the socket of a stream is set to before it listens or connects. Connections have all of it from their listener, at no call each.
//!
//! How long a peer that is gone or takes nothing is waited for is the kernel's to know. It is as on our own stack (`stack::tcp`) as far as
//! Linux has that: TCP_USER_TIMEOUT (tcp(7)) ends a connection whose window stays closed, and bounds two more things with it. What is sent
//! and not acknowledged is given up after the same time, where our stack sends it ten times, over some minutes. And of keepalive's probes
//! there is one, whatever TCP_KEEPCNT says: with a time-out that is shorter than the silence before it the kernel gives the connection
//! up when the first interval is over. So that is as long as all the probes of our stack take together; whatever the peer sends
//! meanwhile saves it.

use crate::config::Streams;
use socket2::{Socket, TcpKeepalive};
use std::io;
use std::time::Duration;

/// The most seconds that the kernel takes for TCP_KEEPIDLE and TCP_KEEPINTVL.
const MOST_SECONDS: u64 = 32_767;

/// Sets them. They may be set on a socket that is bound or listens, too.
pub(crate) fn of_streams(socket: &Socket, limits: &Streams) -> io::Result<()> {
    // urgent data stays in the stream (RFC 6093 section 6)
    socket.set_out_of_band_inline(true)?;
    // answers are written whole, so waiting for more to join them only delays
    socket.set_tcp_nodelay(true)?;
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().clamp(1, MOST_SECONDS));
    let asks = TcpKeepalive::new().with_time(seconds(limits.keepalive));
    socket.set_tcp_keepalive(&asks.with_interval(seconds(limits.keepalive_answer)))?;
    // 0 would be no bound
    socket.set_tcp_user_timeout(Some(limits.stalled.max(Duration::from_millis(1))))
}

/// Holds a connection to what it is to have by default.
#[cfg(test)]
pub(crate) fn assert_set(connection: &Socket) {
    assert!(connection.out_of_band_inline().unwrap() && connection.tcp_nodelay().unwrap());
    assert!(connection.keepalive().unwrap());
    let (asks, waits) = (connection.tcp_keepalive_time().unwrap(), connection.tcp_keepalive_interval().unwrap());
    let stalled = connection.tcp_user_timeout().unwrap().unwrap();
    assert_eq!([asks, waits, stalled].map(|time| time.as_secs()), [7200, 675, 120]);
}

#[cfg(test)]
mod tests {
    use crate::bind::{Inherited, group};
    use crate::config::{Config, Endpoint, Transport};
    use app::Listener;
    use socket2::Socket;
    use std::net::{SocketAddr, TcpStream};

    fn config(address: SocketAddr) -> Config {
        let endpoint =
            Endpoint { listener: Listener(0), address, transport: Transport::Tcp, window_bytes: None, backlog: None };
        Config { endpoints: vec![endpoint], ..Config::default() }
    }

    /// Whether a connection to the listener is accepted with the options.
    fn check(listener: &Socket) {
        let _client = TcpStream::connect(listener.local_addr().unwrap().as_socket().unwrap()).unwrap();
        // it may not be told yet where the listener does not block
        listener.set_nonblocking(false).unwrap();
        super::assert_set(&listener.accept().unwrap().0);
    }

    #[test]
    fn who_is_accepted_has_them_from_the_listener() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let config = config(any.parse().unwrap());
            let first = group(&config, &config.endpoints[0], &mut Inherited::new(Vec::new(), &config)).unwrap();
            check(&first[0]);
        }
    }

    #[test]
    fn a_listener_that_comes_from_another_process_is_set_as_well() {
        let made = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let config = config(made.local_addr().unwrap());
        let mut inherited = Inherited::new(vec![made.into()], &config);
        check(&group(&config, &config.endpoints[0], &mut inherited).unwrap()[0]);
    }

    #[test]
    fn refusing_connections_until_the_start_changes_nothing_of_it() {
        // a port that is free, by an address that no other test has
        let free = std::net::TcpListener::bind("127.0.0.81:0").unwrap().local_addr().unwrap();
        let config = Config { refuse_until_started: vec![free], ..config(free) };
        let refuses = group(&config, &config.endpoints[0], &mut Inherited::new(Vec::new(), &config)).unwrap();
        refuses[0].listen(1).unwrap();
        check(&refuses[0]);
    }
}

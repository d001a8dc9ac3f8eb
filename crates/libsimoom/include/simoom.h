/* libsimoom: services in unprivileged processes, run by `simoom run -- PROGRAM`.
 *
 * A program fills in a struct simoom_service and calls simoom_run, which returns when the server has ended. Everything happens in
 * events; in an event calls may be made for any connection. Nothing that an event lends is valid after it. When a thread has taken no
 * event for 10 ms though there are some (they are taken 16 at a time), the server drops datagrams for it, and what comes of its connections
 * waits, new ones too; after a second it resets them, also those that were asked for, and refuses new ones until the thread goes on. Both
 * times are the operator's to set (--app-slow-after, --app-reset-after).
 *
 * Link with -llibsimoom -lpthread -ldl -lm (static) or -llibsimoom (shared).
 *
 * Calls are answered at once, from what this side knows. Whom the program may connect to, and send datagrams to that answer nothing, is
 * what the server's operator permits: `simoom run --connect 192.0.2.0/24:443 ...`; nobody by default.
 *
 * The memory that is shared with the server is described in crates/guard/src/layout.rs; this interface hides it. Version 2: a program
 * that was built against another one finds no simoom_run. */
#ifndef SIMOOM_H
#define SIMOOM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMOOM_VERSION 2

/* The most of each. */
#define SIMOOM_WINDOW_BYTES 65536   /* that a connection delivers before some is given back */
#define SIMOOM_SEND_BYTES 131072    /* that a connection takes before its peer has taken some: simoom_room of one that is new */
#define SIMOOM_DATAGRAM_BYTES 32768 /* of a datagram, question or answer; longer questions are dropped by the server */
#define SIMOOM_ALARMS 1024          /* alarms that are set, of a thread */
#define SIMOOM_ASKING 1024          /* connections that are asked for and not told of, of a thread */
#define SIMOOM_QUESTIONS 1024       /* questions that `datagram` left unanswered and simoom_send_to may answer: the last ones of a thread */

/* What calls are made on; valid during the event that it was passed to. */
struct simoom_calls;

/* A connection. It is void once `dead` was told: then every call for it fails. */
struct simoom_connection {
	uint32_t index;
	uint32_t generation;
};

/* Makes a thread of the service begin a cycle; good for ever, and does nothing once simoom_run has returned. */
struct simoom_waker;

/* An address: IPv6, or IPv4 mapped into it (::ffff:192.0.2.1), and a port in the machine's byte order. It has no scope: on
 * kernel sockets a peer with a link-local address can be answered, and neither connected to nor sent to unasked. */
struct simoom_address {
	uint8_t ip[16];
	uint16_t port;
};

/* Why a connection has ended, or will not be. */
enum simoom_reason {
	SIMOOM_CLOSED = 0,       /* both sides have finished */
	SIMOOM_RESET = 1,        /* the peer reset it, the path failed, or the server has ended */
	SIMOOM_ABORTED = 2,      /* this side reset it */
	SIMOOM_TIMED_OUT = 3,    /* no progress for too long */
	SIMOOM_NO_RESOURCES = 4, /* the server ran out of what it needs */
	SIMOOM_REFUSED = 5,      /* it was asked for, and nobody listens there */
	SIMOOM_UNREACHABLE = 6,  /* it was asked for, and there is no way */
	SIMOOM_FORBIDDEN = 7,    /* it was asked for, and the operator does not permit it */
	SIMOOM_NO_ADDRESS = 8,   /* it was asked for, from an address that is not the server's */
	SIMOOM_IN_USE = 9,       /* the same: the port is taken, or all are */
	SIMOOM_ELSEWHERE = 10,   /* the same: the answers to this port would come to another thread */
	SIMOOM_UNSUPPORTED = 11, /* the same: the server's engine has no such call */
};

/* What calls return below zero. */
enum simoom_error {
	SIMOOM_E_CONNECTION = -1, /* no such connection */
	SIMOOM_E_STATE = -2,      /* not in a state for this call; simoom_run: the thread runs a service already, or has run one */
	SIMOOM_E_ARGUMENT = -3,   /* more given back than was delivered, a datagram that is too long, a null pointer */
	SIMOOM_E_SYSTEM = -4,     /* not started by `simoom run`, no such thread, or what the standard error says */
	SIMOOM_E_ADDRESS = -5,    /* no such address to connect or send to, or no such listener */
	SIMOOM_E_FORBIDDEN = -6,  /* the operator does not permit it */
	SIMOOM_E_RESOURCES = -7,  /* too many connections are asked for, alarms set, or calls under way */
};

/* Events. A null pointer is an event that is not wanted; without `knock` every connection is refused. `user` is what simoom_run was
 * given, `cookie` what simoom_accept was. Times are ns since the server's start. */
struct simoom_service {
	/* A connection is there; answer with simoom_accept, or it is refused. `listener` counts the server's listeners from 0, those of its
	 * other services and programs included; no call tells which ones are the program's, and where they are: `local` does. */
	void (*knock)(void *user, struct simoom_calls *calls, uint64_t now, uint16_t listener, struct simoom_connection connection,
		      const struct simoom_address *local, const struct simoom_address *peer);
	/* Bytes have arrived; they count against the peer's window until simoom_recv_done. Without this event they are given back. */
	void (*recv)(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie,
		     const uint8_t *bytes, size_t length);
	/* The peer has finished; writing goes on. Without this event the connection is closed then. */
	void (*eof)(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie);
	/* `length` bytes more were taken by the peer; `room` may be sent now. */
	void (*sent)(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie,
		     size_t length, size_t room);
	/* The connection's timer, never early. */
	void (*timer)(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie);
	/* The connection is gone: the last event of one that was accepted, or asked for and there. */
	void (*dead)(void *user, uint64_t now, struct simoom_connection connection, uint64_t cookie, enum simoom_reason reason);
	/* A datagram: the answer of at most `room` bytes is written over the question; returns its length, or below 0 for no answer. What it
	 * asks for beyond that is called for in `woken`, which follows. */
	int64_t (*datagram)(void *user, uint64_t now, uint16_t listener, const struct simoom_address *local,
			    const struct simoom_address *peer, uint8_t *bytes, size_t length, size_t room);
	/* What simoom_connect asked for with `cookie`: `outcome` is 0 and the connection is there, or it is an enum simoom_reason and
	 * there is none. Once for each call that returned 0, and no `dead` follows where there is none. */
	void (*connected)(void *user, struct simoom_calls *calls, uint64_t now, uint64_t cookie, struct simoom_connection connection,
			  int outcome);
	/* The alarm set for `cookie`, never early. */
	void (*alarm)(void *user, struct simoom_calls *calls, uint64_t now, uint64_t cookie);
	/* The events that came together are over: the place to send what was gathered. */
	void (*flush)(void *user, struct simoom_calls *calls, uint64_t now);
	/* Once, before every other event: what other threads of the program wake this one by. */
	void (*begin)(void *user, const struct simoom_waker *waker);
	/* Behind the events that came together, before their `flush`, and after simoom_wake: the place to take what other threads have left,
	 * and to make the calls that a `datagram` asks for, which has nothing to make them with. */
	void (*woken)(void *user, struct simoom_calls *calls, uint64_t now);
};

/* Runs the service on thread number `thread` of the grant until the server ends: 0, or SIMOOM_E_SYSTEM, or SIMOOM_E_ARGUMENT where
 * `service` is null. Each thread of the grant wants a thread of the program that calls this, once: SIMOOM_E_STATE from then on. No file
 * can be opened any more and no program executed once the first has called it. */
#define simoom_run simoom_run_2
int simoom_run(const struct simoom_service *service, void *user, unsigned thread);

/* Threads that were granted; 0 for a program that `simoom run` has not started, and where what it has granted cannot be had, because it is
 * of another version for instance: then the standard error says why. */
unsigned simoom_threads(void);

/* 0, or an error. */
int simoom_accept(struct simoom_calls *calls, struct simoom_connection connection, uint64_t cookie);
int simoom_recv_done(struct simoom_calls *calls, struct simoom_connection connection, size_t length);
int simoom_shutdown(struct simoom_calls *calls, struct simoom_connection connection);
int simoom_close(struct simoom_calls *calls, struct simoom_connection connection);
int simoom_abort(struct simoom_calls *calls, struct simoom_connection connection);
/* UINT64_MAX clears it. */
int simoom_timer_set(struct simoom_calls *calls, struct simoom_connection connection, uint64_t at);

/* Asks for a connection to `peer`; `local` is where from, null (or all zero) for an address and a port of the server's choice. With an
 * address of the peer's family and port 0 the port is the server's choice, with :: (::ffff:0.0.0.0) and a port the address. 0 and, in
 * `connection` (unless that is null), a handle that is good for simoom_abort alone until `connected` is told; or an error. */
int simoom_connect(struct simoom_calls *calls, const struct simoom_address *peer, const struct simoom_address *local, uint64_t cookie,
		   struct simoom_connection *connection);

/* Sends a datagram from a listener's address and port: the answer to a question that `datagram` left unanswered, once, or to whom the
 * operator permits. `local` is what `datagram` was told, or :: (::ffff:0.0.0.0) with the listener's port. Like every datagram it may be
 * lost. An answer that is refused, by SIMOOM_E_RESOURCES or as longer than the question's `room` by SIMOOM_E_ARGUMENT, may be tried again. */
int simoom_send_to(struct simoom_calls *calls, uint16_t listener, const struct simoom_address *local, const struct simoom_address *peer,
		   const void *bytes, size_t length);

/* Has `alarm` told at a time, SIMOOM_ALARMS cookies at once; setting one again replaces its time, UINT64_MAX takes it back. */
int simoom_alarm_set(struct simoom_calls *calls, uint64_t cookie, uint64_t at);

/* Makes the service's thread begin a cycle, with `woken`. From any thread. */
void simoom_wake(const struct simoom_waker *waker);

/* Queues a copy; how many bytes were taken, all or fewer (the rest after `sent`), or an error. */
int64_t simoom_send(struct simoom_calls *calls, struct simoom_connection connection, const void *bytes, size_t length);

/* Bytes that simoom_send would take now. */
size_t simoom_room(const struct simoom_calls *calls, struct simoom_connection connection);

#ifdef __cplusplus
}
#endif

#endif

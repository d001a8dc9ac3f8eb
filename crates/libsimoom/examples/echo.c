/* Echo over TCP and UDP: what comes goes back.
 *
 *   cargo build --release -p libsimoom
 *   gcc -O2 -Icrates/libsimoom/include -o echo crates/libsimoom/examples/echo.c target/release/liblibsimoom.a -lpthread -ldl -lm
 *   simoom run --listen 127.0.0.1:7007 -- ./echo
 *
 * A client that does not read has its window closed: what was not sent is not given back. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simoom.h"


struct client {
	struct client *next; /* among the free */
	size_t from, to;     /* what waits in `bytes` */
	int finished, closed;
	uint8_t bytes[SIMOOM_WINDOW_BYTES];
};

struct server {
	const struct simoom_service *service;
	unsigned thread;
	struct client *free;
};

static void push(struct simoom_calls *calls, struct simoom_connection connection, struct client *client)
{
	if (client->to > client->from) {
		int64_t taken = simoom_send(calls, connection, client->bytes + client->from, client->to - client->from);
		if (taken > 0) {
			client->from += taken;
			simoom_recv_done(calls, connection, taken);
		}
	}
	if (client->from == client->to) {
		client->from = client->to = 0;
		if (client->finished && !client->closed) {
			client->closed = 1;
			simoom_close(calls, connection);
		}
	}
}

static void knock(void *user, struct simoom_calls *calls, uint64_t now, uint16_t listener, struct simoom_connection connection,
		  const struct simoom_address *local, const struct simoom_address *peer)
{
	struct server *server = user;
	struct client *client = server->free;

	(void)now, (void)listener, (void)local, (void)peer;
	if (client)
		server->free = client->next;
	else
		client = malloc(sizeof *client);
	if (!client)
		return; /* not answered is refused */
	memset(client, 0, offsetof(struct client, bytes));
	simoom_accept(calls, connection, (uintptr_t)client);
}

static void on_recv(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie,
		    const uint8_t *bytes, size_t length)
{
	struct client *client = (struct client *)(uintptr_t)cookie;

	(void)user, (void)now;
	if (client->from) {
		memmove(client->bytes, client->bytes + client->from, client->to - client->from);
		client->to -= client->from;
		client->from = 0;
	}
	if (length > SIMOOM_WINDOW_BYTES - client->to) { /* more than the window */
		simoom_abort(calls, connection);
		return;
	}
	memcpy(client->bytes + client->to, bytes, length);
	client->to += length;
	push(calls, connection, client);
}

static void on_eof(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie)
{
	struct client *client = (struct client *)(uintptr_t)cookie;

	(void)user, (void)now;
	client->finished = 1;
	push(calls, connection, client);
}

static void on_sent(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie,
		    size_t length, size_t room)
{
	(void)user, (void)now, (void)length, (void)room;
	push(calls, connection, (struct client *)(uintptr_t)cookie);
}

static void on_dead(void *user, uint64_t now, struct simoom_connection connection, uint64_t cookie, enum simoom_reason reason)
{
	struct server *server = user;
	struct client *client = (struct client *)(uintptr_t)cookie;

	(void)now, (void)connection, (void)reason;
	client->next = server->free;
	server->free = client;
}

static int64_t on_datagram(void *user, uint64_t now, uint16_t listener, const struct simoom_address *local,
			   const struct simoom_address *peer, uint8_t *bytes, size_t length, size_t room)
{
	(void)user, (void)now, (void)listener, (void)bytes, (void)room;
	/* no loops with other servers, nor with itself */
	return peer->port < 1024 || peer->port == local->port ? -1 : (int64_t)length;
}

static void *serve(void *argument)
{
	struct server *server = argument;

	if (simoom_run(server->service, server, server->thread)) {
		fprintf(stderr, "echo: the server's memory cannot be had\n");
		exit(1); /* all threads or none: nobody would answer whom this one was given */
	}
	return NULL;
}

int main(void)
{
	static const struct simoom_service service = {
		.knock = knock,
		.recv = on_recv,
		.eof = on_eof,
		.sent = on_sent,
		.dead = on_dead,
		.datagram = on_datagram,
	};
	unsigned threads = simoom_threads();
	struct server *servers = calloc(threads, sizeof *servers);
	pthread_t *others = calloc(threads, sizeof *others);

	if (!threads || !servers || !others) {
		fprintf(stderr, "echo: start it by `simoom run --listen ADDR:PORT -- %s`\n", "echo");
		return 1;
	}
	for (unsigned n = 0; n < threads; n++) {
		servers[n].service = &service;
		servers[n].thread = n;
		if (n && pthread_create(&others[n], NULL, serve, &servers[n]))
			return 1;
	}
	serve(&servers[0]);
	return 0;
}

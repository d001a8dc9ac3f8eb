/* A TCP proxy: what comes is carried to another address, and back.
 *
 *   cargo build --release -p libsimoom
 *   gcc -O2 -Icrates/libsimoom/include -o proxy crates/libsimoom/examples/proxy.c target/release/liblibsimoom.a -lpthread -ldl -lm
 *   simoom run --listen 127.0.0.1:8080 --connect 127.0.0.1:80 -- ./proxy 127.0.0.1 80
 *
 * Whom it may connect to is what --connect says. Bytes that find no room on one side stay here and are not given back on the other, whose
 * peer's window closes; the end of each direction is passed on by itself; a side that is reset takes the other along, in `flush`, since a
 * death has nothing to make calls with. It counts what it has carried, by an alarm a second, for who looks at its standard error. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simoom.h"

#define SECOND 1000000000u

/* One of the two connections: 0 came in, 1 was asked for. */
struct side {
	struct simoom_connection connection;
	int asked, open;
	int finished;    /* its peer has finished */
	int shut;        /* so have we */
	size_t from, to; /* what came from it and the other has not taken, in `bytes` */
	uint8_t bytes[SIMOOM_WINDOW_BYTES];
};

struct pair {
	struct pair *next; /* among the free, or the broken */
	int broken;
	struct side sides[2];
};

struct server {
	const struct simoom_service *service;
	struct simoom_address to;
	unsigned thread;
	struct pair *free, *broken;
	uint64_t carried, said;
	int ticking;
};

static uint64_t cookie_of(struct pair *pair, int n)
{
	return (uint64_t)(uintptr_t)pair | (uint64_t)n;
}

static struct pair *pair_of(uint64_t cookie, int *n)
{
	*n = cookie & 1;
	return (struct pair *)(uintptr_t)(cookie & ~(uint64_t)1);
}

/* Carries what came from side n to the other, and its end. */
static void carry(struct server *server, struct simoom_calls *calls, struct pair *pair, int n)
{
	struct side *from = &pair->sides[n], *to = &pair->sides[1 - n];

	if (!to->open)
		return;
	if (from->to > from->from) {
		int64_t taken = simoom_send(calls, to->connection, from->bytes + from->from, from->to - from->from);
		if (taken > 0) {
			from->from += taken;
			server->carried += taken;
			if (from->open)
				simoom_recv_done(calls, from->connection, taken);
		}
	}
	if (from->from < from->to)
		return;
	from->from = from->to = 0;
	if (from->finished && !to->shut) {
		to->shut = 1;
		simoom_shutdown(calls, to->connection);
	}
}

/* Neither side is there, or will be. */
static void let_go(struct server *server, struct pair *pair)
{
	if (pair->broken || pair->sides[0].open || pair->sides[1].open || pair->sides[1].asked)
		return;
	pair->next = server->free;
	server->free = pair;
}

static void knock(void *user, struct simoom_calls *calls, uint64_t now, uint16_t listener, struct simoom_connection connection,
		  const struct simoom_address *local, const struct simoom_address *peer)
{
	struct server *server = user;
	struct pair *pair = server->free;

	(void)listener, (void)local, (void)peer;
	if (pair)
		server->free = pair->next;
	else
		pair = malloc(sizeof *pair);
	if (!pair)
		return; /* not answered is refused */
	pair->broken = 0;
	for (int n = 0; n < 2; n++)
		memset(&pair->sides[n], 0, offsetof(struct side, bytes));
	pair->sides[0].connection = connection;
	if (simoom_connect(calls, &server->to, NULL, cookie_of(pair, 1), &pair->sides[1].connection)) {
		let_go(server, pair);
		return; /* the same: there is nobody to carry it to */
	}
	pair->sides[1].asked = 1;
	pair->sides[0].open = !simoom_accept(calls, connection, cookie_of(pair, 0));
	if (!server->ticking)
		server->ticking = !simoom_alarm_set(calls, 0, now + SECOND);
}

static void on_connected(void *user, struct simoom_calls *calls, uint64_t now, uint64_t cookie, struct simoom_connection connection,
			 int outcome)
{
	struct server *server = user;
	int n;
	struct pair *pair = pair_of(cookie, &n);

	(void)now;
	pair->sides[1].asked = 0;
	pair->sides[1].open = outcome == 0;
	if (outcome == 0) {
		pair->sides[1].connection = connection;
		if (pair->sides[0].open || pair->sides[0].finished)
			carry(server, calls, pair, 0);
		else
			simoom_abort(calls, connection);
		return;
	}
	if (pair->sides[0].open)
		simoom_abort(calls, pair->sides[0].connection);
	let_go(server, pair);
}

static void on_recv(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie,
		    const uint8_t *bytes, size_t length)
{
	struct server *server = user;
	int n;
	struct pair *pair = pair_of(cookie, &n);
	struct side *side = &pair->sides[n];

	(void)now;
	if (side->from) {
		memmove(side->bytes, side->bytes + side->from, side->to - side->from);
		side->to -= side->from;
		side->from = 0;
	}
	if (length > SIMOOM_WINDOW_BYTES - side->to) { /* more than the window */
		simoom_abort(calls, connection);
		return;
	}
	memcpy(side->bytes + side->to, bytes, length);
	side->to += length;
	carry(server, calls, pair, n);
}

static void on_eof(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie)
{
	int n;
	struct pair *pair = pair_of(cookie, &n);

	(void)now, (void)connection;
	pair->sides[n].finished = 1;
	carry(user, calls, pair, n);
}

static void on_sent(void *user, struct simoom_calls *calls, uint64_t now, struct simoom_connection connection, uint64_t cookie,
		    size_t length, size_t room)
{
	int n;
	struct pair *pair = pair_of(cookie, &n);

	(void)now, (void)connection, (void)length, (void)room;
	carry(user, calls, pair, 1 - n);
}

static void on_dead(void *user, uint64_t now, struct simoom_connection connection, uint64_t cookie, enum simoom_reason reason)
{
	struct server *server = user;
	int n;
	struct pair *pair = pair_of(cookie, &n);

	(void)now, (void)connection;
	pair->sides[n].open = 0;
	if (reason != SIMOOM_CLOSED && !pair->broken && (pair->sides[1 - n].open || pair->sides[1 - n].asked)) {
		pair->broken = 1;
		pair->next = server->broken;
		server->broken = pair;
	}
	let_go(server, pair);
}

static void on_flush(void *user, struct simoom_calls *calls, uint64_t now)
{
	struct server *server = user;

	(void)now;
	while (server->broken) {
		struct pair *pair = server->broken;

		server->broken = pair->next;
		pair->broken = 0;
		for (int n = 0; n < 2; n++)
			if (pair->sides[n].open || pair->sides[n].asked)
				simoom_abort(calls, pair->sides[n].connection);
		let_go(server, pair);
	}
}

static void on_alarm(void *user, struct simoom_calls *calls, uint64_t now, uint64_t cookie)
{
	struct server *server = user;

	if (server->carried != server->said)
		fprintf(stderr, "proxy: %llu bytes carried\n", (unsigned long long)server->carried);
	server->said = server->carried;
	simoom_alarm_set(calls, cookie, now + SECOND);
}

static void *serve(void *argument)
{
	struct server *server = argument;

	if (simoom_run(server->service, server, server->thread)) {
		fprintf(stderr, "proxy: the server's memory cannot be had\n");
		exit(1); /* all threads or none: nobody would answer whom this one was given */
	}
	return NULL;
}

/* An address as the header has it; 0 for what is none. */
static int read_address(const char *ip, const char *port, struct simoom_address *address)
{
	char *end;
	unsigned long number = strtoul(port, &end, 10);

	memset(address, 0, sizeof *address);
	address->port = (uint16_t)number;
	if (*end || !number || number > 65535)
		return 0;
	if (inet_pton(AF_INET6, ip, address->ip) == 1)
		return 1;
	memset(address->ip + 10, 0xff, 2);
	return inet_pton(AF_INET, ip, address->ip + 12) == 1;
}

int main(int argc, char **argv)
{
	static const struct simoom_service service = {
		.knock = knock,
		.recv = on_recv,
		.eof = on_eof,
		.sent = on_sent,
		.dead = on_dead,
		.connected = on_connected,
		.alarm = on_alarm,
		.flush = on_flush,
	};
	unsigned threads = simoom_threads();
	struct server *servers = calloc(threads ? threads : 1, sizeof *servers);
	pthread_t *others = calloc(threads ? threads : 1, sizeof *others);

	if (argc != 3 || !threads || !servers || !others || !read_address(argv[1], argv[2], &servers[0].to)) {
		fprintf(stderr, "proxy: start it by `simoom run --listen ADDR:PORT --connect ADDR:PORT -- proxy ADDR PORT`\n");
		return 1;
	}
	for (unsigned n = 0; n < threads; n++) {
		servers[n].service = &service;
		servers[n].to = servers[0].to;
		servers[n].thread = n;
		if (n && pthread_create(&others[n], NULL, serve, &servers[n]))
			return 1;
	}
	serve(&servers[0]);
	return 0;
}

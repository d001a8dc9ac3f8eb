// Makes a server slower by a fixed time a message: loaded before memcached (LD_PRELOAD), it lets SLOWER_NS nanoseconds of processor
// time pass before each sendmsg(2).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

static ssize_t (*real)(int, const struct msghdr *, int);
static long slower_ns;

__attribute__((constructor)) static void begin(void)
{
	const char *text = getenv("SLOWER_NS");
	slower_ns = text ? atol(text) : 0;
	real = (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
}

static long now_ns(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000L + at.tv_nsec;
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags)
{
	for (long until = now_ns() + slower_ns; now_ns() < until;)
		;
	return real(socket, message, flags);
}

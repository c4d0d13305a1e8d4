/* One relayed connection: a socket inside the sandbox on one end, a channel to the host on the other. */
#ifndef DUTYFREE_RELAY_H
#define DUTYFREE_RELAY_H

#include <stdbool.h>
#include <stdint.h>

/* How many connections that the sandbox opened are relayed at once: they must not eat the host's channels and ours. */
enum { RELAY_ACCEPT_LIMIT = 512 };

/* Opens the channel `id` for a socket, which it takes over. 0 or an errno (the socket is then closed). */
int relay_open(uint32_t id, int fd, bool connecting, bool accepted, uint64_t window);
/* Of relay_open's accepted ones, how many are still there. */
int relay_accepted(void);

#endif

/* Whose account a sandbox's kernel objects are charged to.
 *
 * The kernel counts inotify queues, processes, pending signals, message queues and namespaces per user, and charges
 * what is used inside a user namespace to that namespace's maker as well, all the way up. Made by root, a hundred
 * sandboxes share one account, with root itself: 128 inotify queues by default. So each is made in the name of the id
 * that its root has outside, which nobody else has. */
#define _GNU_SOURCE
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "spawner.h"

static bool keeps_capabilities(void) { /* across a change of the effective id: the clone needs them for its cgroup */
    static int kept = -1;
    if (kept < 0)
        kept = prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) == 0;
    return kept == 1;
}

bool charge_to(
    uid_t uid) { /* a new user namespace starts with secure bits of its own, so nothing of this gets inside */
    return !powers.idmap || !keeps_capabilities() || seteuid(uid) == 0;
}

bool charge_to_us(void) {
    return !powers.idmap || seteuid(0) == 0;
}

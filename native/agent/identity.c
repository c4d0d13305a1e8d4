/* Owns whose rights a file request has: the agent's own, or a named user's for the length of that request.
 *
 * The effective ids change and not those of the file system alone (setfsuid), which gVisor does not know. Leaving uid 0
 * also puts the capabilities aside that would override permissions; coming back takes them up again, because the real
 * and saved ids stay 0. What a request has opened stays open for its later frames, with the rights it was opened by. */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "path.h"

enum { USER_LIMIT = 255 };

static bool named; /* the request names its user: what it makes is that user's, and not the default's */
static bool acting;
static gid_t own_groups[GROUP_LIMIT];
static int own_group_count;
static uid_t own_uid;
static gid_t own_gid;

/* An image may have more groups than the kernel grants us here; without the right to drop ours nothing is attempted. */
static bool change(const struct identity *who) {
    gid_t groups[GROUP_LIMIT];
    int count = user_groups(who, groups);
    own_uid = geteuid();
    own_gid = getegid();
    own_group_count = getgroups(GROUP_LIMIT, own_groups);
    if (own_group_count < 0 || setgroups((size_t)count, groups) != 0)
        return false;
    acting = true;
    bool changed = setresgid((gid_t)-1, who->gid, (gid_t)-1) == 0 && setresuid((uid_t)-1, who->uid, (uid_t)-1) == 0;
    int saved = errno;
    agent_guard();
    errno = saved;
    return changed;
}

void act_as_self(void) {
    named = false;
    if (!acting)
        return;
    acting = false;
    if (setresuid((uid_t)-1, own_uid, (uid_t)-1) != 0 || setresgid((gid_t)-1, own_gid, (gid_t)-1) != 0 ||
        setgroups((size_t)own_group_count, own_groups) != 0)
        agent_end(); /* an agent with somebody else's rights serves nobody */
    agent_guard();
}

bool act_as(uint32_t id, struct slice user) {
    char name[USER_LIMIT + 1];
    struct identity who;
    if (!user.size)
        return true;
    if (user.size > USER_LIMIT || memchr(user.data, 0, user.size)) {
        end_error(id, EINVAL, "user", "not a user's name");
        return false;
    }
    memcpy(name, user.data, user.size);
    name[user.size] = 0;
    if (!resolve_user(name, &who)) {
        end_error(id, ENOENT, "user", name);
        return false;
    }
    named = true;
    if (who.uid == geteuid() && who.gid == getegid())
        return true;
    if (change(&who))
        return true;
    int errnum = errno;
    act_as_self();
    end_error(id, errnum, "user", name);
    return false;
}

bool acts_as_named(void) {
    return named;
}

struct slice take_user(struct reader *reader) {
    return reader->bad || reader->at == reader->end ? (struct slice){(const uint8_t *)"", 0} : take_bytes(reader);
}

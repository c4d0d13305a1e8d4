/* Paths in requests, and whom new files belong to. Shared by the file and tar rooms. */
#ifndef DUTYFREE_PATH_H
#define DUTYFREE_PATH_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent.h"

/* Copies a request's path. If it is not absolute, holds a NUL or is too long, ends the channel and says false. */
bool path_take(uint32_t id, struct slice text, const char *field, char out[PATH_MAX]);

/* Ends the channel with "path: reason"; a NULL reason is errnum's own text. */
void path_error(uint32_t id, const char *field, int errnum, const char *path, const char *reason);

/* The user that may end a file request's payload; empty where none does. */
struct slice take_user(struct reader *reader);
/* From here to `act_as_self` files are reached with that user's rights; empty: with the agent's own. If there is no
 * such user, or the agent may not become it, ends the channel and says false. */
bool act_as(uint32_t id, struct slice user);
void act_as_self(void); /* after every request, whatever became of it */
bool acts_as_named(void);

struct owner {
    bool change; /* false: what we make is the default user's already */
    uid_t uid;
    gid_t gid;
};

/* The default user. If there is none of that name, ends the channel and says false. */
bool owner_default(uint32_t id, struct owner *out);

/* Makes the directories above the last component; false with errno. */
bool path_make_parents(const char *path, const struct owner *owner);

/* One directory, with its parents if they are missing; fine if it is there. 1: made, 0: was there, -1: errno. */
int path_make_directory(const char *path, mode_t mode, const struct owner *owner);

/* Whether an open file is of procfs, sysfs or cgroups, whose sizes say nothing. */
bool path_is_pseudo(int fd);

/* Permission bits that no usual umask (022, 002, 0) lets through at creation: those need a chmod. */
enum { PATH_MASKED_BITS = 07022 };

#endif

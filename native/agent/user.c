/* Users by the sandbox's own /etc/passwd and /etc/group. The program is static, so there is no NSS to ask. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

enum { NAME_LIMIT = 64, HOME_LIMIT = 256 };

struct entry { /* one line of passwd or group */
    char name[NAME_LIMIT], home[HOME_LIMIT];
    uint32_t uid, gid;
};

static struct entry answer;
static bool default_known;
static struct entry default_entry;

static bool parse_id(const char *text, uint32_t *id) {
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    unsigned long long value = strtoull(text, &end, 10);
    *id = (uint32_t)value;
    return !*end && value < UINT32_MAX; /* the highest id means "no change" to the kernel */
}

/* Splits a line at its colons; false if there are fewer fields. */
static bool split(char *line, char **fields, int count) {
    line[strcspn(line, "\n")] = 0;
    for (int i = 0; i < count; i++) {
        fields[i] = strsep(&line, ":");
        if (!fields[i])
            return false;
    }
    return true;
}

/* Finds by name, or by id when name is NULL. */
static bool find_passwd(const char *name, uint32_t uid, struct entry *out) {
    FILE *file = fopen("/etc/passwd", "re");
    char line[1024], *fields[6];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        struct entry entry = {0};
        if (!split(line, fields, 6) || !parse_id(fields[2], &entry.uid) || !parse_id(fields[3], &entry.gid))
            continue;
        found = name ? !strcmp(fields[0], name) : entry.uid == uid;
        if (!found)
            continue;
        snprintf(entry.name, sizeof entry.name, "%s", fields[0]);
        snprintf(entry.home, sizeof entry.home, "%s", fields[5]);
        *out = entry;
    }
    if (file)
        fclose(file);
    return found;
}

static bool find_group(const char *name, uint32_t *gid) {
    FILE *file = fopen("/etc/group", "re");
    char line[4096], *fields[3];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        found = split(line, fields, 3) && !strcmp(fields[0], name) && parse_id(fields[2], gid);
    if (file)
        fclose(file);
    return found;
}

static bool find_user(const char *text, struct entry *out) {
    uint32_t uid;
    if (find_passwd(text, 0, out))
        return true;
    if (!strcmp(text, "root"))
        text = "0"; /* an image without a passwd file */
    if (!parse_id(text, &uid))
        return false;
    if (!find_passwd(NULL, uid, out))
        *out = (struct entry){.uid = uid, .gid = uid ? uid : 0};
    return true;
}

static bool resolve(const char *text, struct entry *out) {
    char user[NAME_LIMIT];
    const char *colon = strchr(text, ':');
    size_t size = colon ? (size_t)(colon - text) : strlen(text);
    if (size >= sizeof user)
        return false;
    memcpy(user, text, size);
    user[size] = 0;
    if (!find_user(user, out))
        return false;
    return !colon || find_group(colon + 1, &out->gid) || parse_id(colon + 1, &out->gid);
}

static bool resolve_default(struct entry *out) {
    if (!default_known) {
        if (defaults.user && *defaults.user) {
            if (!resolve(defaults.user, &default_entry))
                return false;
        } else {
            default_entry = (struct entry){.uid = geteuid()};
            find_passwd(NULL, default_entry.uid, &default_entry);
            default_entry.gid = getegid();
        }
        default_known = true;
    }
    *out = default_entry;
    return true;
}

void user_forget(void) {
    default_known = false;
}

bool resolve_user(const char *text, struct identity *out) {
    if (!(*text ? resolve(text, &answer) : resolve_default(&answer)))
        return false;
    out->uid = answer.uid;
    out->gid = answer.gid;
    out->name = *answer.name ? answer.name : "root";
    out->home = *answer.home ? answer.home : "/root";
    return true;
}

static bool lists_member(char *members, const char *name) {
    for (char *member; (member = strsep(&members, ","));)
        if (!strcmp(member, name))
            return true;
    return false;
}

int user_groups(const struct identity *who, gid_t *groups) {
    FILE *file = fopen("/etc/group", "re");
    char line[4096], *fields[4];
    int count = 0;
    groups[count++] = who->gid;
    while (file && count < GROUP_LIMIT && fgets(line, sizeof line, file)) {
        uint32_t gid;
        if (split(line, fields, 4) && parse_id(fields[2], &gid) && gid != who->gid &&
            lists_member(fields[3], who->name))
            groups[count++] = gid;
    }
    if (file)
        fclose(file);
    return count;
}

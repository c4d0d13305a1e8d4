/* The environment of a command: the agent's own five, then CONFIG's, then the request's; later ones win. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { OWN = 6, TEXT = 512 };

static char path_entry[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/* Text is UTF-8. Not LANG: every program would load a dozen locale files that say the same as "C" (0.2 ms for bash). */
static char lang_entry[] = "LC_CTYPE=C.UTF-8";
/* A bash that does not find it reads the user database at every start (0.2 ms). */
static char bash_entry[] = "SHELL=/bin/bash", sh_entry[] = "SHELL=/bin/sh";
static char term_entry[] = "TERM=xterm-256color";

static size_t count_of(char **list) {
    size_t count = 0;
    while (list && list[count])
        count++;
    return count;
}

static uint32_t hash_name(const char *entry, size_t size) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (uint8_t)entry[i]) * 16777619u;
    return hash;
}

struct table { /* names seen, so that a large environment costs no more than its size */
    uint32_t *slots, mask;
    char **env;
    uint32_t count;
};

static void put(struct table *table, char *entry) {
    size_t size = strcspn(entry, "=");
    uint32_t at = hash_name(entry, size) & table->mask;
    for (; table->slots[at]; at = (at + 1) & table->mask) {
        char **known = &table->env[table->slots[at] - 1];
        if (!strncmp(*known, entry, size) && ((*known)[size] == '=' || !(*known)[size])) {
            *known = entry;
            return;
        }
    }
    table->env[table->count++] = entry;
    table->slots[at] = table->count;
}

char **env_build(const struct identity *who, bool terminal, char **extra) {
    size_t most = OWN + count_of(defaults.env) + count_of(extra), size = 16;
    while (size < 2 * most)
        size *= 2;
    size_t pointers = (most + 1) * sizeof(char *);
    char *memory = malloc(pointers + 2 * TEXT + size * sizeof(uint32_t));
    if (!memory)
        return NULL;
    char *home = memory + pointers, *user = home + TEXT;
    struct table table = {.env = (char **)memory, .slots = (uint32_t *)(user + TEXT), .mask = (uint32_t)size - 1};
    memset(table.slots, 0, size * sizeof(uint32_t));
    snprintf(home, TEXT, "HOME=%s", who->home);
    snprintf(user, TEXT, "USER=%s", who->name);
    put(&table, path_entry);
    put(&table, home);
    put(&table, user);
    put(&table, lang_entry);
    bool is_bash;
    shell_path(&is_bash);
    put(&table, is_bash ? bash_entry : sh_entry);
    if (terminal)
        put(&table, term_entry);
    for (char **entry = defaults.env; entry && *entry; entry++)
        put(&table, *entry);
    for (char **entry = extra; entry && *entry; entry++)
        put(&table, *entry);
    table.env[table.count] = NULL;
    return table.env;
}

const char *env_get(char **env, const char *name) {
    size_t size = strlen(name);
    for (; *env; env++)
        if (!strncmp(*env, name, size) && (*env)[size] == '=')
            return *env + size + 1;
    return NULL;
}

/* What a sandbox is made of, as seen from outside: its processes, namespaces, mounts, limits, ipc objects, and what
 * lies where it can write. One line each, the same for every fresh sandbox of a kind, so that two can be compared.
 * Nothing here asks the sandbox. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

struct page {
    char text[48 << 10];
    size_t used;
    bool full;
};

__attribute__((format(printf, 2, 3))) static void say(struct page *page, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t room = sizeof page->text - page->used;
    int size = vsnprintf(page->text + page->used, room, format, arguments);
    va_end(arguments);
    if (size < 0 || (size_t)size >= room)
        page->full = true;
    else
        page->used += (size_t)size;
}

static FILE *open_about(const struct sandbox *sandbox, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", sandbox->pid, name);
    return fopen(path, "re");
}

static const char *say_namespaces(struct page *page, const struct sandbox *sandbox) {
    static const char *const kinds[] = {"user", "mnt", "pid", "ipc", "uts", "cgroup", "net"};
    char path[64];
    struct stat its, ours;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(path, sizeof path, "/proc/%d/ns/%s", sandbox->pid, kinds[i]);
        if (stat(path, &its) != 0)
            return "look at the namespaces";
        snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[i]);
        if (stat(path, &ours) != 0)
            return "look at our own namespaces";
        say(page, "namespace %s %s\n", kinds[i], its.st_ino == ours.st_ino ? "the host's" : "its own");
    }
    return NULL;
}

static const char *say_processes(struct page *page, const struct sandbox *sandbox) {
    char name[48], limits[256];
    int count = 0;
    snprintf(name, sizeof name, "task/%d/children", sandbox->pid);
    FILE *children = open_about(sandbox, name);
    if (!children)
        return "look at the processes";
    for (int child; fscanf(children, "%d", &child) == 1;)
        count++;
    fclose(children);
    cgroup_describe(&sandbox->slot->cgroup, limits, sizeof limits);
    say(page, "children %d\ncgroup%s\n", count, limits);
    return NULL;
}

static const char *say_status(struct page *page, const struct sandbox *sandbox) {
    static const char *const shown[] = {"Umask", "Threads", "Cap", "NoNewPrivs", "Seccomp", "Groups"};
    char line[256];
    FILE *status = open_about(sandbox, "status");
    if (!status)
        return "look at the agent";
    while (fgets(line, sizeof line, status))
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
            if (strncmp(line, shown[i], strlen(shown[i])) == 0)
                say(page, "agent %s", line);
    fclose(status);
    FILE *limits = open_about(sandbox, "limits");
    if (!limits)
        return "look at the agent's limits";
    while (fgets(line, sizeof line, limits))
        say(page, "%s", line);
    fclose(limits);
    return NULL;
}

/* Without what differs between two sandboxes of a kind: numbers of mounts and devices, and mapped ids. */
static const char *say_mounts(struct page *page, const struct sandbox *sandbox) {
    char line[4096];
    FILE *mounts = open_about(sandbox, "mountinfo");
    if (!mounts)
        return "look at the mounts";
    while (fgets(line, sizeof line, mounts)) {
        int rest = 0;
        if (sscanf(line, "%*d %*d %*s %n", &rest) != 0 || rest == 0)
            continue;
        say(page, "mount %s", line + rest);
    }
    fclose(mounts);
    return NULL;
}

static int entries_of(int parent, const char *name) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), count = 0;
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    if (!listing) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    while (readdir(listing))
        count++;
    closedir(listing);
    return count - 2; /* . and .. */
}

/* A fresh sandbox has written nothing but, in an image that lacks them, the directories that /proc, /dev and /sys are
 * mounted on. */
static const char *say_scratch(struct page *page, const struct sandbox *sandbox) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", sandbox->pid, UPPER_FD);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    if (!listing) {
        if (fd >= 0)
            close(fd);
        return "look at what the sandbox has written";
    }
    struct stat st;
    if (fstat(fd, &st) == 0)
        say(page, "written . %o %u %u\n", st.st_mode, st.st_uid - sandbox->slot->first_id,
            st.st_gid - sandbox->slot->first_id);
    for (struct dirent *entry; (entry = readdir(listing));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            say(page, "written %s %d\n", entry->d_name, entries_of(fd, entry->d_name));
    closedir(listing);
    snprintf(path, sizeof path, "/proc/%d/root/dev/shm", sandbox->pid);
    say(page, "shm %d\n", entries_of(AT_FDCWD, path));
    return NULL;
}

static int lines_of(const char *path) {
    FILE *file = fopen(path, "re");
    int count = 0;
    for (int letter; file && (letter = fgetc(file)) != EOF;)
        count += letter == '\n';
    if (file)
        fclose(file);
    return file ? count - 1 : -1; /* without the head */
}

static bool enter(const char *path, int kind) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool entered = fd >= 0 && setns(fd, kind) == 0;
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    return entered;
}

static const char *say_names(struct page *page, const struct sandbox *sandbox, const int *own) {
    char path[64], name[65] = "";
    snprintf(path, sizeof path, "/proc/%d/ns/ipc", sandbox->pid);
    if (!enter(path, CLONE_NEWIPC))
        return "enter the ipc namespace";
    say(page, "ipc shm %d sem %d msg %d\n", lines_of("/proc/sysvipc/shm"), lines_of("/proc/sysvipc/sem"),
        lines_of("/proc/sysvipc/msg"));
    snprintf(path, sizeof path, "/proc/%d/ns/uts", sandbox->pid);
    bool named = enter(path, CLONE_NEWUTS) && gethostname(name, sizeof name) == 0;
    if (setns(own[0], CLONE_NEWIPC) != 0 || setns(own[1], CLONE_NEWUTS) != 0)
        _exit(70); /* we would serve from another's namespaces: stop, children die with us */
    say(page, "hostname %s\n", name);
    return named ? NULL : "read the host name";
}

const char *inspect(const struct sandbox *sandbox, int fd) {
    static struct page page;
    page.used = 0;
    page.full = false;
    say(&page, "pid %d first-id %u\n", sandbox->pid, sandbox->slot->first_id);
    int own[] = {open("/proc/self/ns/ipc", O_RDONLY | O_CLOEXEC), open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC)};
    const char *step = own[0] < 0 || own[1] < 0 ? "open our own namespaces" : NULL;
    if (!step && !(step = say_namespaces(&page, sandbox)) && !(step = say_processes(&page, sandbox)) &&
        !(step = say_status(&page, sandbox)) && !(step = say_mounts(&page, sandbox)) &&
        !(step = say_scratch(&page, sandbox)))
        step = say_names(&page, sandbox, own);
    int saved = errno;
    for (int i = 0; i < 2; i++)
        if (own[i] >= 0)
            close(own[i]);
    errno = saved;
    if (!step && page.full) {
        errno = EFBIG;
        step = "write the manifest";
    }
    if (!step && pwrite(fd, page.text, page.used, 0) != (ssize_t)page.used)
        step = "write the manifest";
    return step;
}

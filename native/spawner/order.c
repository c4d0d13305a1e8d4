/* Orders to a blank: first its root, then its start. A blank that waits may be given the root that is expected, so that
 * an order like the last ones finds it mounted: what is left to do then is to be told the stream. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "spawner.h"

/* ---- what is expected ---- */

static struct create_request last, likely;
static uint32_t likely_number; /* of the root in `likely`; 0: nothing is expected */
static uint32_t roots;         /* numbers given so far */

static bool same_root(const struct create_request *a, const struct create_request *b) {
    const size_t from = offsetof(struct create_request, layer_count);
    return a->disk_bytes == b->disk_bytes && a->files == b->files && a->flags == b->flags &&
           memcmp((const char *)a + from, (const char *)b + from, sizeof *a - from) == 0;
}

void expect(const struct create_request *request) {
    if (!request || request->flags != CREATE_SETTLED) {
        last = (struct create_request){0};
        if (!request)
            likely_number = 0;
        return;
    }
    if (likely_number && same_root(request, &likely))
        return;
    if (same_root(request, &last)) { /* twice in a row: one that alternates with another is not worth a guess */
        likely = *request;
        likely_number = ++roots;
    }
    last = *request;
}

const struct create_request *expected_request(void) {
    return likely_number ? &likely : NULL;
}

uint32_t expected_number(const struct create_request *request) {
    return likely_number && same_root(request, &likely) ? likely_number : 0;
}

/* ---- orders ---- */

/* Opens what the blank needs, in the order struct order promises. */
static const char *gather(const struct create_request *request, const struct sandbox *blank, int disk_image,
                          struct order *order, int *fds, int *count) {
    const char *step = NULL;
    if (request->flags & CREATE_DISK) {
        int disk = disk_mount(disk_image, blank->userns_fd, &step);
        if (disk < 0)
            return step;
        order->disk = true;
        fds[(*count)++] = disk;
    }
    for (uint32_t i = 0; i < request->layer_count + request->bind_count; i++) {
        uint32_t number =
            i < request->layer_count ? request->layers[i] : request->binds[i - request->layer_count].layer;
        int tree = ground_clone_layer(number, blank->userns_fd);
        if (tree < 0)
            return "clone a layer";
        fds[(*count)++] = tree;
    }
    for (uint32_t i = 0; i < request->bind_count; i++)
        memcpy(order->targets[i], request->binds[i].target, TARGET_SIZE);
    return NULL;
}

const char *order_root(const struct create_request *request, struct sandbox *blank, int disk_image) {
    struct order order = {.disk_bytes = request->disk_bytes,
                          .files = request->files,
                          .layer_count = request->layer_count,
                          .bind_count = request->bind_count};
    int fds[MAX_FDS], count = 0;
    const char *step = gather(request, blank, disk_image, &order, fds, &count);
    if (!step && !send_with_fds(blank->socket_fd, &order, sizeof order, fds, count))
        step = "order a root";
    int saved = errno;
    while (count > 0)
        close(fds[--count]); /* the blank has its own copies */
    errno = saved;
    return step;
}

/* Of each process, so that all of one sandbox can have no more than half of what the machine has; still as many as
 * programs count on. */
static uint32_t open_files(uint32_t pids) {
    enum { LEAST = 1024, MOST = 4096 };
    static uint64_t machine;
    if (machine == 0)
        machine = read_number("/proc/sys/fs/file-max", 0, UINT64_MAX);
    uint64_t share = pids ? machine / 2 / pids : LEAST;
    return share < LEAST ? LEAST : share > MOST ? MOST : (uint32_t)share;
}

const char *order_start(const struct create_request *request, struct sandbox *blank, int stream) {
    struct limits limits = {request->memory_bytes, request->cpu_quota_us, request->pids};
    struct start start = {.pids = request->pids, .open_files = open_files(request->pids), .oom = blank->oom_fd >= 0};
    if (!cgroup_limit(&blank->slot->cgroup, &limits))
        return "set limits";
    blank->oom_kills = cgroup_oom_kills(blank->oom_fd);
    int fds[] = {stream, blank->oom_fd};
    if (!send_with_fds(blank->socket_fd, &start, sizeof start, fds, 1 + start.oom))
        return "start the sandbox";
    blank_close_prepared(blank);
    return NULL;
}

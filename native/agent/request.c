/* Which frame goes where: requests to their rooms, the rest to open channels, nonsense to the end of the connection. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "path.h"

struct defaults defaults;

static request_fn *const requests[256] = {
    [WIRE_EXEC] = request_exec,     [WIRE_SHELL] = request_shell,     [WIRE_SHELL_RUN] = request_shell_run,
    [WIRE_READ] = request_read,     [WIRE_WRITE] = request_write,     [WIRE_STAT] = request_stat,
    [WIRE_LIST] = request_list,     [WIRE_MKDIR] = request_mkdir,     [WIRE_REMOVE] = request_remove,
    [WIRE_RENAME] = request_rename, [WIRE_TAR_IN] = request_tar_in,   [WIRE_TAR_OUT] = request_tar_out,
    [WIRE_LISTEN] = request_listen, [WIRE_CONNECT] = request_connect,
};

static void put_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

void end_ok(uint32_t id, const void *payload, size_t size) {
    send_frame(id, WIRE_END, 0, payload, size, NULL, 0);
    struct channel *channel = channel_find(id);
    if (channel)
        channel_close(channel);
}

static void send_error(uint32_t id, int errnum, const char *what, const char *detail) {
    uint8_t head[512];
    size_t what_size = strnlen(what, 400), detail_size = strnlen(detail, 4096);
    put_u32(head, (uint32_t)errnum);
    put_u32(head + 4, (uint32_t)what_size);
    memcpy(head + 8, what, what_size);
    put_u32(head + 8 + what_size, (uint32_t)detail_size);
    send_frame(id, WIRE_ERROR, 0, head, 12 + what_size, detail, detail_size);
}

void end_error(uint32_t id, int errnum, const char *what, const char *detail) {
    send_error(id, errnum, what, detail ? detail : "");
    struct channel *channel = channel_find(id);
    if (channel)
        channel_close(channel);
}

_Noreturn void protocol_error(const char *what) {
    send_error(0, EPROTO, what, "");
    stream_flush();
    agent_end();
}

static void config(uint32_t id, const uint8_t *data, size_t size) {
    if (id)
        protocol_error("config channel");
    struct reader reader = reader_of(data, size);
    struct defaults fresh = {.idle_ns = take_u64(&reader)};
    fresh.cwd = take_string(&reader, 4096);
    fresh.user = take_string(&reader, 256);
    fresh.env = take_list(&reader, WIRE_MAX_REQUEST);
    if (!reader_done(&reader))
        protocol_error("config");
    free(defaults.cwd);
    free(defaults.user);
    free(defaults.env);
    defaults = fresh;
    user_forget();
    channel_idle_changed();
}

static void window(struct channel *channel, const uint8_t *data, size_t size) {
    struct reader reader = reader_of(data, size);
    uint64_t credit = take_u64(&reader);
    if (!reader_done(&reader))
        protocol_error("window");
    channel->window = credit > UINT64_MAX - channel->window ? UINT64_MAX : channel->window + credit;
    if (channel->ops->pull)
        channel->ops->pull(channel);
}

static bool is_continuation(uint8_t type) {
    return (type >= WIRE_STDIN && type <= WIRE_WINDOW) || type == WIRE_DATA;
}

static void check_fresh(uint32_t id, const struct channel *channel) {
    if (channel)
        protocol_error("channel in use");
    if (!id || id & WIRE_AGENT_CHANNEL)
        protocol_error("channel number");
}

static void answer(request_fn *request, uint32_t id, uint8_t flags, const uint8_t *data, size_t size) {
    request(id, flags, data, size);
    act_as_self();
}

void frame_arrived(uint32_t id, uint8_t type, uint8_t flags, const uint8_t *data, size_t size) {
    if (type == WIRE_CONFIG) {
        config(id, data, size);
        return;
    }
    struct channel *channel = channel_find(id);
    if (is_continuation(type)) {
        if (channel && type == WIRE_WINDOW)
            window(channel, data, size);
        else if (channel)
            channel->ops->frame(channel, type, flags, data, size);
        return; /* no channel: it has just ended, and the frame crossed its end */
    }
    if (type == WIRE_PING) {
        check_fresh(id, channel);
        if (size > WIRE_MAX_PAYLOAD)
            protocol_error("ping size");
        end_ok(id, data, size);
    } else if (requests[type]) {
        check_fresh(id, channel);
        if (channel_count() >= CHANNEL_LIMIT)
            end_error(id, EMFILE, "channel", "too many open channels");
        else
            answer(requests[type], id, flags, data, size);
    } else {
        protocol_error("frame type");
    }
}

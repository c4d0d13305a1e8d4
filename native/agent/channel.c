/* The table of open channels, and the clock that ends an agent nobody talks to. */
#include "core.h"

enum { BUCKETS = 256 };

static struct channel *buckets[BUCKETS], *first;
static struct channel *visiting_next; /* where channel_each goes on; moved along if that one is closed */
static size_t count;
static uint32_t fresh;
static uint64_t idle_since_ns;

static struct channel **bucket_of(uint32_t id) {
    return &buckets[(id ^ id >> 8) % BUCKETS];
}

static void idle_fired(struct timer *timer);
static struct timer idle = {.fire = idle_fired};

/* When nobody will have talked for long enough; 0: never, or beyond the end of time. */
static uint64_t idle_end(void) {
    uint64_t at = idle_since_ns + defaults.idle_ns;
    return at > idle_since_ns ? at : 0;
}

static void idle_fired(struct timer *timer) {
    uint64_t at = idle_end();
    if (count || !at)
        return;
    if (now_ns() >= at)
        agent_end();
    timer_set(timer, at);
}

void channel_idle_changed(void) {
    if (!defaults.idle_ns || count)
        return;
    idle_since_ns = now_ns();
    uint64_t at = idle_end();
    /* A timer that is already set fires early, sees that it is early, and sets itself again: cheaper than moving it for
     * every command. */
    if (at && (!idle.at_ns || idle.at_ns > at))
        timer_set(&idle, at);
}

size_t channel_count(void) {
    return count;
}

void channel_open(struct channel *channel, uint32_t id, const struct channel_ops *ops) {
    struct channel **bucket = bucket_of(id);
    channel->id = id;
    channel->ops = ops;
    channel->next_in_bucket = *bucket;
    *bucket = channel;
    channel->previous = NULL;
    channel->next = first;
    if (first)
        first->previous = channel;
    first = channel;
    count++;
}

struct channel *channel_find(uint32_t id) {
    struct channel *channel = *bucket_of(id);
    while (channel && channel->id != id)
        channel = channel->next_in_bucket;
    return channel;
}

void channel_close(struct channel *channel) {
    struct channel **link = bucket_of(channel->id);
    while (*link != channel)
        link = &(*link)->next_in_bucket;
    *link = channel->next_in_bucket;
    if (channel->previous)
        channel->previous->next = channel->next;
    else
        first = channel->next;
    if (channel->next)
        channel->next->previous = channel->previous;
    if (visiting_next == channel)
        visiting_next = channel->next;
    count--;
    channel->ops->close(channel);
    channel_idle_changed();
}

uint32_t channel_fresh_id(void) {
    do
        fresh = WIRE_AGENT_CHANNEL | (fresh + 1);
    while (channel_find(fresh));
    return fresh;
}

void channel_each(void (*visit)(struct channel *channel, void *context), void *context) {
    for (struct channel *channel = first; channel; channel = visiting_next) {
        visiting_next = channel->next;
        visit(channel, context);
    }
    visiting_next = NULL;
}

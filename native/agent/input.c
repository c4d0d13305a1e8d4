/* A command's standard input: what the host sent and the command has not taken yet, and the credit for more. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core.h"

enum { GRANT_STEP = 64 << 10 };

static void grant(struct input *input) {
    bool idle = input->at == input->size;
    if (!input->streamed || input->ended || !input->taken || (input->taken < GRANT_STEP && !idle))
        return;
    uint8_t payload[8];
    for (int i = 0; i < 8; i++)
        payload[i] = (uint8_t)((uint64_t)input->taken >> 8 * i);
    send_frame(input->channel, WIRE_WINDOW, 0, payload, sizeof payload, NULL, 0);
    input->credit += (int64_t)input->taken;
    input->taken = 0;
}

static void push(struct input *input) {
    while (input->source.fd >= 0 && input->at < input->size) {
        ssize_t put = write(input->source.fd, input->data + input->at, input->size - input->at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno == EAGAIN)
            break;
        if (put < 0) /* nobody reads any more */
            source_close(&input->source);
        else
            input->at += (size_t)put, input->taken += (size_t)put;
    }
    if (input->source.fd < 0) { /* taken by nobody, but the host may go on */
        input->taken += input->size - input->at;
        input->at = input->size;
    }
    if (input->at == input->size)
        input->at = input->size = 0;
    if (input->ended && !input->size)
        source_close(&input->source);
    source_watch(&input->source, input->size ? EPOLLOUT : 0);
    grant(input);
}

static void input_ready(struct source *source, uint32_t events) {
    push(source->owner);
}

void input_open(struct input *input, uint32_t channel, int fd, bool terminal, bool streamed) {
    *input = (struct input){.channel = channel, .terminal = terminal, .streamed = streamed, .last = '\n'};
    input->source = (struct source){.fd = fd, .ready = input_ready, .owner = input};
    input->credit = WIRE_INITIAL_CREDIT;
}

static void append(struct input *input, const uint8_t *data, size_t size) {
    if (input->at && input->size + size > input->capacity) {
        memmove(input->data, input->data + input->at, input->size - input->at);
        input->size -= input->at;
        input->at = 0;
    }
    if (input->size + size > input->capacity) {
        uint8_t *grown = realloc(input->data, input->size + size);
        if (!grown)
            agent_end();
        input->data = grown;
        input->capacity = input->size + size;
    }
    memcpy(input->data + input->size, data, size);
    input->size += size;
}

void input_add(struct input *input, const uint8_t *data, size_t size, bool last) {
    if (input->ended)
        return;
    input->credit -= (int64_t)size;
    if (size)
        append(input, data, size), input->last = data[size - 1];
    if (last && input->terminal) /* a terminal knows no end but this character, at the start of a line or twice */
        append(input, (const uint8_t *)"\004\004", input->last == '\n' ? 1 : 2);
    input->ended = last;
    push(input);
}

void input_close(struct input *input) {
    source_close(&input->source);
    free(input->data);
    input->data = NULL;
}

/* The wire protocol's numbers; the text is docs/reference/wire-protocol.md. */
#ifndef DUTYFREE_WIRE_H
#define DUTYFREE_WIRE_H

#include <stdint.h>

enum {
    WIRE_MAGIC = 0x41465344,
    WIRE_VERSION = 1,
    WIRE_HEADER = 12,
    WIRE_MAX_PAYLOAD = 1 << 20, /* of a frame to the host */
    WIRE_MAX_REQUEST = 4 << 20, /* of a frame from the host: more than a kernel takes as arguments and environment */
    WIRE_INITIAL_CREDIT = 256 << 10, /* what the agent grants for STDIN and relayed DATA */
    WIRE_AGENT_CHANNEL = 0x80000000u,
};

enum wire_type {
    WIRE_HELLO = 0x01,
    WIRE_CONFIG = 0x02,
    WIRE_PING = 0x03,
    WIRE_EXEC = 0x10,
    WIRE_SHELL = 0x11,
    WIRE_SHELL_RUN = 0x12,
    WIRE_STDIN = 0x13,
    WIRE_SIGNAL = 0x14,
    WIRE_RESIZE = 0x15,
    WIRE_CANCEL = 0x16,
    WIRE_WINDOW = 0x17,
    WIRE_STARTED = 0x20,
    WIRE_STDOUT = 0x21,
    WIRE_STDERR = 0x22,
    WIRE_EXIT = 0x23,
    WIRE_READ = 0x30,
    WIRE_WRITE = 0x31,
    WIRE_STAT = 0x32,
    WIRE_LIST = 0x33,
    WIRE_MKDIR = 0x34,
    WIRE_REMOVE = 0x35,
    WIRE_RENAME = 0x36,
    WIRE_TAR_IN = 0x37,
    WIRE_TAR_OUT = 0x38,
    WIRE_LISTEN = 0x40,
    WIRE_ACCEPT = 0x41,
    WIRE_CONNECT = 0x42,
    WIRE_OPENED = 0x43,
    WIRE_DATA = 0x50,
    WIRE_END = 0x51,
    WIRE_ERROR = 0x52,
};

enum { WIRE_FLAG_END = 1, WIRE_FLAG_GAP = 1 };

enum wire_option {
    WIRE_OPT_SCRIPT = 1 << 0,
    WIRE_OPT_MERGE = 1 << 1,
    WIRE_OPT_TERMINAL = 1 << 2,
    WIRE_OPT_BACKGROUND = 1 << 3,
    WIRE_OPT_STDIN_OPEN = 1 << 4,
    WIRE_OPT_OUTPUT_FATAL = 1 << 5,
    WIRE_OPT_WANT_STARTED = 1 << 6,
    WIRE_OPT_STREAM = 1 << 7,
};

enum wire_ending {
    WIRE_ENDED_EXIT,
    WIRE_ENDED_SIGNAL,
    WIRE_ENDED_TIMEOUT,
    WIRE_ENDED_OOM,
    WIRE_ENDED_OUTPUT_LIMIT,
    WIRE_ENDED_CANCELLED,
};

#endif

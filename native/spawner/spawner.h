/* The spawner's rooms and what passes between them.
 *
 *   main.c     the loop: orders from the owner, deaths of children, the stock of blanks
 *   control.c  the socket to the owner: requests in, events out
 *   ground.c   the small mount namespace that every sandbox starts from; layers
 *   slot.c     what outlives one sandbox: an id range and its cgroups
 *   cgroup.c   limits on v1, v2 or nothing
 *   order.c    what a blank is told: its root, perhaps ahead of need, and its start
 *   blank.c    a cloned child with all its namespaces, waiting for an order; becomes a sandbox
 *   birth.c    the blank's last steps: its root, its privileges dropped, then the agent
 *   charge.c   whose account the kernel objects of a sandbox are charged to
 *   filter.c   the seccomp filter
 *   disk.c     disk-backed scratch space
 *   watch.c    kernel memory that no limit counts
 *   state.h    the rooms of snapshots and resets
 *
 * A clone copies the descriptor table and its child closes the copies, so a live sandbox keeps none open here.
 *
 * One process, one thread, started once by the owner (a Python process) and tied to its life. It holds privileges so
 * that nothing it creates has to: what runs untrusted code has none outside its own user namespace. */
#ifndef DUTYFREE_SPAWNER_H
#define DUTYFREE_SPAWNER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    MAX_LAYERS = 60,                      /* of one image */
    MAX_BINDS = 8,                        /* of one image */
    MAX_KNOWN = 1024,                     /* layers registered by the owner */
    MAX_SANDBOXES = 4096,                 /* id ranges there are */
    MAX_FDS = MAX_LAYERS + MAX_BINDS + 2, /* in one packet: and a disk, or a stream and its counter */
    TARGET_SIZE = 64,
    RANGE_SIZE = 65536,
};

/* ---- control.c ---------------------------------------------------------------------------------------------------
 * One packet each way on a SOCK_SEQPACKET socket; host byte order, the owner is on the same machine. */

enum request_type {
    REQUEST_LAYER = 1, /* struct layer_request and a path: make a directory known under a number */
    REQUEST_CREATE,    /* struct create_request; one descriptor: the agent's end of the stream (and the disk image) */
    REQUEST_DESTROY,   /* struct request_head: kill; answered by EVENT_GONE */
    REQUEST_STOCK,     /* struct layer_request: keep this many blanks ready */
    REQUEST_SNAPSHOT,  /* struct snapshot_request (state.h) and a path */
    REQUEST_ABANDON,   /* struct request_head: end that snapshot; it is answered all the same */
    REQUEST_FORGET,    /* struct layer_request: give up a layer's number */
    REQUEST_INSPECT,   /* struct request_head; one descriptor: a file for the manifest of the sandbox */
};

struct request_head {
    uint32_t type, tag;
};

struct layer_request {
    struct request_head head;
    uint32_t number;
    uint32_t host; /* a directory of the host, to be shown as it is; then the path, NUL-terminated */
};

enum create_flag {
    CREATE_HOST_NETWORK = 1,
    CREATE_DISK = 2,
    CREATE_SETTLED = 4, /* its layers never change: blanks may hold its root before it is asked for again */
};

struct create_request {
    struct request_head head;
    uint64_t memory_bytes; /* 0: no limit, here and below */
    uint64_t cpu_quota_us; /* per 100 ms */
    uint64_t disk_bytes, files;
    uint64_t lifetime_ns;
    uint32_t pids, flags;
    uint32_t layer_count, bind_count;
    uint32_t layers[MAX_LAYERS]; /* uppermost first */
    struct {
        uint32_t layer;
        char target[TARGET_SIZE];
    } binds[MAX_BINDS];
};

enum event_type {
    EVENT_READY = 1, /* the spawner is up; `detail` says how (see report_ready) */
    EVENT_LAYER,     /* answer to REQUEST_LAYER; error 0 or errno, detail the step */
    EVENT_FAILED,    /* the sandbox `tag` could not be made; it is gone */
    EVENT_GONE,      /* the sandbox `tag` is dead and everything it owned is freed */
    EVENT_SAVED,     /* answer to REQUEST_SNAPSHOT; error and step, or "entries;bytes" */
    EVENT_INSPECTED, /* answer to REQUEST_INSPECT; error and step */
};

enum gone_reason { GONE_DIED, GONE_DESTROYED, GONE_LIFETIME, GONE_OOM };

struct event {
    uint32_t type, tag;
    int32_t error;   /* errno, or the wait status for EVENT_GONE */
    uint32_t reason; /* enum gone_reason */
    char detail[112];
};

extern int control_fd;
void send_event(uint32_t type, uint32_t tag, int error, uint32_t reason, const char *detail);
/* Events wait for room in the owner's socket; send them when there is. */
bool events_wait(void);
void send_backlog(void);
/* Receives one packet; 0 at the owner's end of life. Descriptors received go to fds[0..*fd_count). */
ssize_t receive_request(void *buffer, size_t size, int *fds, int *fd_count, int max_fds);
/* A packet with descriptors, between the spawner and a blank. */
bool send_with_fds(int socket_fd, const void *data, size_t size, const int *fds, int fd_count);
ssize_t receive_with_fds(int socket_fd, void *data, size_t size, int *fds, int *fd_count, int max_fds);

/* ---- ground.c ---- */

struct host_powers {
    bool idmap;      /* we may map ids freely: root of the initial user namespace */
    uid_t owner_uid; /* who started us */
    gid_t owner_gid;
};
extern struct host_powers powers;

/* Enters our own namespaces and builds the ground. NULL, or the step that failed (errno is set). */
const char *ground_prepare(void);
/* Makes a host directory known as layer `number`. NULL or the failed step. */
const char *ground_add_layer(uint32_t number, const char *path, bool host);
/* A detached, read-only clone of a layer, its owners shifted into the id range of `userns_fd`. -1 with errno. */
int ground_clone_layer(uint32_t number, int userns_fd);
/* What is known of each layer, by its number. */
extern enum layer_state { LAYER_UNKNOWN, LAYER_OWN, LAYER_HOST } layer_known[MAX_KNOWN];
/* Step out to where the host's paths are visible, and back. */
bool ground_enter_host(void);
bool ground_leave_host(void);

/* ---- cgroup.c ---- */

enum cgroup_kind { CGROUP_NONE, CGROUP_V1, CGROUP_V2 };
extern enum cgroup_kind cgroup_kind;
extern char cgroup_lost[96]; /* what cannot be limited, and why; for `doctor` */

struct limits {
    uint64_t memory_bytes, cpu_quota_us;
    uint32_t pids;
};

struct cgroup {
    uint32_t number;    /* its directory's name */
    struct limits last; /* as written, so that an unchanged limit costs nothing */
};

/* Finds a hierarchy we may use and removes what dead owners left in it. `kind`: "auto", "v1", "v2" or "none". */
void cgroup_prepare(const char *kind);
bool cgroup_make(struct cgroup *cgroup, uint32_t number);
bool cgroup_limit(struct cgroup *cgroup, const struct limits *limits);
/* v1 joins after the clone; on v2 clone3 takes the directory. */
bool cgroup_join(const struct cgroup *cgroup, pid_t pid);
int cgroup_open(const struct cgroup *cgroup);
/* Where out-of-memory kills are counted; -1 where they are not. */
int cgroup_open_oom(const struct cgroup *cgroup);
uint64_t cgroup_oom_kills(int oom_fd);
/* Where the cgroup is frozen and thawed; -1 where it cannot be. */
int cgroup_open_freezer(const struct cgroup *cgroup);
bool cgroup_is_frozen(const struct cgroup *cgroup, int freezer_fd);
/* What is set now, as one line of text. */
void cgroup_describe(const struct cgroup *cgroup, char *text, size_t size);
/* Charged for kernel objects and sockets; 0 where that is not counted. */
uint64_t cgroup_kernel_bytes(const struct cgroup *cgroup);
uint64_t cgroup_socket_bytes(const struct cgroup *cgroup); /* of these, for queues of TCP and UDP */
void cgroup_remove_all(void);

/* ---- charge.c ---- */

/* From here to charge_to_us, user namespaces that are made belong to `uid`. False with errno. */
bool charge_to(uid_t uid);
bool charge_to_us(void);

/* ---- slot.c ---- */

struct slot {
    uint32_t number;
    uint32_t first_id; /* host id of the sandbox's root */
    bool in_use;
    struct cgroup cgroup;
};

/* Opens the file in which owners claim id ranges; by the host's paths. */
void slot_prepare(void);
/* A free slot, made if need be; NULL with errno (EUSERS: no id range is left). */
struct slot *slot_take(void);
void slot_put(struct slot *slot);

/* ---- order.c ---- */

struct order { /* the root a blank shall have; descriptors: [disk], layers…, binds… */
    uint64_t disk_bytes, files;
    uint32_t layer_count, bind_count;
    bool disk;
    char targets[MAX_BINDS][TARGET_SIZE];
};

struct start { /* the rest; descriptors: stream, [oom] */
    uint32_t pids;
    uint32_t open_files; /* of each process */
    bool oom;
};

struct sandbox;
/* NULL or the failed step, with errno; the blank is then of no use. */
const char *order_root(const struct create_request *request, struct sandbox *blank, int disk_image);
const char *order_start(const struct create_request *request, struct sandbox *blank, int stream);

/* Learn from an order what the next will be like; NULL: what was expected does not work. */
void expect(const struct create_request *request);
/* What is expected, or NULL; and the number of the root in `request` if it is the expected one, else 0. */
const struct create_request *expected_request(void);
uint32_t expected_number(const struct create_request *request);

/* ---- blank.c ---- */

/* In every sandbox's first process: where it says that commands run (watch_busy_fd, watch.c), and the directory that
 * takes what the sandbox writes. Close-on-exec, and out of reach
 * for code inside, which may not look at that process; the spawner reaches it through /proc. */
enum { BUSY_FD = 14, UPPER_FD = 15 };
/* In the child: makes it so. */
bool keep_upper(const char *path);

enum life { EMPTY, BLANK, LIVE, DYING };

struct sandbox { /* a child, from its clone to its end */
    enum life life;
    pid_t pid;
    int socket_fd; /* orders to the child, and its word if it fails; -1 once it is born */
    int userns_fd; /* whose id map shifts the owners of what is mounted for it; while it is a blank */
    int oom_fd;    /* counts out-of-memory kills; while it is a blank; -1 where they are not counted */
    struct slot *slot;
    bool host_network;
    uint32_t root; /* which expected root it was given while it waits; 0: none */
    uint32_t tag;  /* the owner's name for it, once it is ordered */
    enum gone_reason reason;
    uint64_t ends_ns, oom_kills;
    uint64_t relieved_ns; /* when watch.c last had its processes killed */
    int64_t charged;      /* kernel memory, when watch.c last looked */
};

/* Clones a child into fresh namespaces. NULL or the failed step, with nothing left but perhaps a DYING child. */
const char *blank_make(struct sandbox *blank, bool host_network);
/* Kills the child; its end is collected by the loop. */
void blank_kill(struct sandbox *sandbox);
/* What an ordered sandbox no longer needs open here. */
void blank_close_prepared(struct sandbox *blank);

/* How the last sandbox was ordered: blanks size their scratch space so, and need no remount if the next is the same. */
struct scratch {
    uint64_t bytes, files;
};
extern struct scratch scratch_expected;
/* tmpfs options for that much; the stage's own directories come on top. */
void scratch_options(const struct scratch *scratch, char *options, size_t size);

/* What a child sends back if it fails, before it exits. */
struct failure {
    int32_t error;
    char step[108];
};

/* ---- watch.c ---- */

extern int watch_busy_fd;

/* ---- birth.c, filter.c, disk.c ---- */

/* In the child: builds the root as ordered, gives up every privilege. NULL or the failed step. */
const char *birth_root(const struct order *order, const int *fds);
/* What can be given up before the order is known, and what only after. */
const char *birth_promise(void);
const char *birth_drop_privileges(void);
const char *birth_limit(uint32_t pids);
void filter_prepare(void);        /* builds the program; once, before the first clone */
const char *filter_install(void); /* in the blank */
const char *filter_seal(void);    /* at birth, last */
/* Mounts an ext4 image file; a detached mount with shifted owners, or -1 with errno and *step. */
int disk_mount(int image_fd, int userns_fd, const char **step);

/* ---- main.c ---- */

extern char *spawner_arguments; /* of this program, one after the other, as /proc/PID/cmdline shows them */
extern size_t spawner_arguments_size;

/* ---- small tools ---- */

/* Writes a whole small string to a file below dir_fd (AT_FDCWD allowed). */
bool write_file(int dir_fd, const char *name, const char *text);
/* The number in that column of a file's first line; columns count from 0. */
uint64_t read_number(const char *path, int column, uint64_t otherwise);
uint64_t monotonic_ns(void);

#endif

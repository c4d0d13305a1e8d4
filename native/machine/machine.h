/* The first process of a virtual machine of ours: dutyfree-machine. Makes a root out of disks, then does what the host
 * says on the control port, one line at a time. It refuses nothing: the host owns the machine. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define NEW_ROOT "/root"

/* disk.c: what the machine is made of. */
void devices_open(void);
void root_mount(void);
bool upper_bound(const char *options);

/* port.c: the virtio ports, by the names that the host gave them. */
int port_open(const char *name);
bool port_line(int fd, char *line, size_t size);
void port_say(int fd, const char *text);

/* fresh.c: what a copy of a machine must not share with its original. */
bool fresh_seed(const char *hex);
bool fresh_clock(const char *ns);

/* group.c: the control group in which everything but ourselves runs. */
bool group_limit(const char *file, const char *value);
bool group_enter(void);
bool group_show(void);

/* net.c */
bool net_loopback(void);
bool net_ethernet(void);
bool net_listens(const char *port);

_Noreturn void machine_fail(const char *step);
bool write_text(const char *path, const char *text);

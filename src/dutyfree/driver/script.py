"""The scripts by which files are reached: for any `sh` with coreutils (busybox's too), exit code 100 + errno on failure."""

from __future__ import annotations

import errno
import os

FIRST_CODE = 100
"""Exit codes above it are errno values; what programs use for themselves is below."""

_ABSENT, _DENIED, _EXISTS, _NOT_DIRECTORY, _DIRECTORY, _INVALID, _FULL = (
    FIRST_CODE + number
    for number in (errno.ENOENT, errno.EACCES, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENOTEMPTY)
)

_FILE = f"""
[ -e "$1" ] || exit {_ABSENT}
[ -d "$1" ] && exit {_DIRECTORY}
[ -f "$1" ] || exit {_INVALID}
[ -r "$1" ] || exit {_DENIED}
"""

READ = f"""{_FILE}
if [ -n "$3" ]; then tail -c "+$2" -- "$1" | head -c "$3"
elif [ "$2" = 1 ]; then exec cat -- "$1"
else exec tail -c "+$2" -- "$1"; fi
"""
"""path, first byte (from 1), length or empty."""

_PARENT = """
case "$1" in /*/*) mkdir -p -- "${1%/*}" || exit 1;; esac
"""

WRITE = f"""{_PARENT}
[ -d "$1" ] && exit {_DIRECTORY}
if [ -e "$1" ]; then [ -f "$1" ] || exit {_INVALID}; [ -w "$1" ] || exit {_DENIED}; new=; else new=1; fi
if [ "$3" = append ]; then cat >>"$1" || exit 1; else cat >"$1" || exit 1; new=1; fi
[ -z "$new" ] || exec chmod "$2" -- "$1"
"""
"""path, mode, replace or append; the content is the input."""

STAT = f"""
[ -e "$1" ] || [ -L "$1" ] || exit {_ABSENT}
if [ "$2" = follow ]; then [ -e "$1" ] || exit {_ABSENT}; exec stat -L -c '%f %u %g %s %Y' -- "$1"; fi
exec stat -c '%f %u %g %s %Y' -- "$1"
"""

LIST = f"""
[ -e "$1" ] || exit {_ABSENT}
[ -d "$1" ] || exit {_NOT_DIRECTORY}
cd -- "$1" || exit {_DENIED}
find . -mindepth 1 -maxdepth 1 -printf '%y %m %U %G %s %T@ %f\\0' 2>/dev/null && exit 0
for f in * .*; do
    case "$f" in .|..) continue;; esac
    [ -e "$f" ] || [ -L "$f" ] || continue
    printf '%s %s\\0' "$(stat -c '%f %a %u %g %s %Y' -- "$f")" "$f"
done
"""
"""Records end in NUL: type letter (or raw mode in hex), mode, uid, gid, size, time, name."""

MKDIR = f"""
[ -d "$1" ] && exit 0
[ -e "$1" ] && exit {_EXISTS}
exec mkdir -p -m "$2" -- "$1"
"""

REMOVE = f"""
[ -e "$1" ] || [ -L "$1" ] || exit {_ABSENT}
if [ -d "$1" ] && [ ! -L "$1" ]; then
    [ "$2" = recursive ] && exec rm -rf -- "$1"
    rmdir -- "$1" 2>/dev/null && exit 0
    [ -n "$(ls -A -- "$1")" ] && exit {_FULL}
    exit {_DENIED}
fi
exec rm -f -- "$1"
"""

RENAME = f"""
[ -e "$1" ] || [ -L "$1" ] || exit {_ABSENT}
[ -d "$2" ] && [ ! -d "$1" ] && exit {_DIRECTORY}
[ -d "${{2%/*}}/" ] || exit {_ABSENT}
exec mv -f -T -- "$1" "$2"
"""

UNTAR = """
mkdir -p -- "$1" && exec tar -x -o -p -f - -C "$1"
"""

TAR = f"""
cd -- "$1" || exit {_ABSENT}
find . \\( -type f -o -type d -o -type l \\) -print0 |
    exec tar -c -f - --format=pax --hard-dereference --no-recursion --null -T -
"""
"""A pax stream of files, directories and links only."""


def failure(code: int, said: bytes, path: str) -> OSError:
    """Translate a script's exit code into the error that callers expect."""
    number = code - FIRST_CODE
    if number in errno.errorcode:
        return OSError(number, os.strerror(number), path)
    words = said.decode(errors="replace").strip()
    for known in (
        errno.ENOTDIR,
        errno.EACCES,
        errno.EROFS,
        errno.ENOSPC,
        errno.EPERM,
        errno.ENAMETOOLONG,
        errno.EEXIST,
    ):
        if os.strerror(known) in words:
            return OSError(known, os.strerror(known), path)
    return OSError(errno.EIO, words.splitlines()[-1] if words else f"exit code {code}", path)

"""The one place where errors become what a person sees: `dutyfree: what; what next`, and an exit code.

0   done                      3   the substrate is not available here, or has no capacity now
1   done, and the answer is no (a check failed, a probe escaped)
2   misuse: the command line, the spec, an ability the substrate does not offer
4   the machinery failed      130 interrupted

`dutyfree run` says 125 in place of 2, 3 and 4, as docker does: all other codes are the command's own.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable

from dutyfree.core.errors import DutyfreeError, Misuse, Saturated, Unavailable, Unsupported
from dutyfree.core.text import printable

MISUSE = 2
UNAVAILABLE = 3
MACHINERY = 4
NOT_STARTED = 125
INTERRUPTED = 130


def guard(work: Callable[[], int], failure: int | None = None) -> int:
    """Run a subcommand; errors end as one line on stderr, and with `failure` or the exit code of their class.

    `DUTYFREE_DEBUG=1` shows the traceback as well.
    """
    try:
        _standard_streams()
        try:
            return work()
        finally:
            _flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (`| head`).
        _abandon_output()
        return 0
    except (DutyfreeError, OSError) as error:
        if os.environ.get("DUTYFREE_DEBUG") == "1":
            traceback.print_exc()
        print(f"dutyfree: {describe(error)}", file=sys.stderr)
        _abandon_output()
        return exit_code(error) if failure is None else failure


def _standard_streams() -> None:
    """Make the three streams safe to use: characters that the locale lacks become `?`, a closed stream is refused."""
    closed = [fd for fd, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)) if stream is None]
    for fd in closed:
        # Else the next file that is opened gets the number, and our output.
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    if 1 in closed:
        raise Misuse("is closed; send it to /dev/null if it is not wanted", field="standard output")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _flush() -> None:
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"the output cannot be written: {error.strerror}") from error


def _abandon_output() -> None:
    """Drop what cannot be written: Python would complain once more when it flushes at exit."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe(error: DutyfreeError | OSError) -> str:
    """Say on one line what went wrong and what to do next."""
    line = printable(" ".join(_words(error).split()))
    hint = _next_step(error)
    return f"{line}; {hint}" if hint else line


def exit_code(error: DutyfreeError | OSError) -> int:
    """The exit code of a class of errors; see the module's table."""
    if isinstance(error, Misuse | Unsupported):
        return MISUSE
    if isinstance(error, Unavailable | Saturated):
        return UNAVAILABLE
    if isinstance(error, DutyfreeError):
        return MACHINERY
    return MISUSE if isinstance(error, FileNotFoundError | FileExistsError | PermissionError) else MACHINERY


def _words(error: DutyfreeError | OSError) -> str:
    """The message; an `OSError` without its number, which says nothing to people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _next_step(error: DutyfreeError | OSError) -> str | None:
    if isinstance(error, Unavailable):
        return None if error.enable else "see: dutyfree doctor"
    if isinstance(error, Saturated):
        return f"try again in {error.retry_after_s:g} s"
    if isinstance(error, Unsupported):
        return "see what is offered: dutyfree doctor"
    if isinstance(error, Misuse):
        return None
    if isinstance(error, DutyfreeError):
        return "see: dutyfree doctor, or set DUTYFREE_DEBUG=1 for the traceback"
    return None

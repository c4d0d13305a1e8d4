"""Descriptors of this process: take as many as it may have, and say `Saturated` when they are used up."""

from __future__ import annotations

import errno
import resource
from contextlib import suppress

from dutyfree.core.errors import Saturated

MOST = 1 << 20
"""More than this the kernel refuses as it comes (`fs.nr_open`), and nobody needs."""


def raise_limit() -> None:
    """Raise the soft limit to the hard one. Sandboxes have limits of their own, which stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a smaller nr_open, or a policy over the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def told(error: OSError, driver: str | None = None, sandbox: str | None = None) -> Saturated | OSError:
    """`Saturated` in place of an error that says that no descriptors are left; any other error as it is."""
    if error.errno == errno.EMFILE:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        what = f"this process may have {hard} descriptors and uses them all: raise `ulimit -Hn` or destroy sandboxes"
    elif error.errno == errno.ENFILE:
        what = "the machine has no descriptors left: raise the sysctl fs.file-max or end what uses them"
    else:
        return error
    return Saturated(what, driver=driver, sandbox=sandbox)

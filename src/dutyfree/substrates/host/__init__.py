"""`host`: plain subprocesses on this machine. No isolation whatsoever: the reference that the others are measured by.

It has no root of its own, so absolute paths are the machine's own, and everything runs as the user who runs Python.
Each sandbox is a temporary directory, the home and first working directory of its commands.
"""

from dutyfree.substrates.host.driver import driver

__all__ = ["driver"]

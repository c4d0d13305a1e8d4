"""`ssh`: any Linux machine one can ssh to. Our agent is copied over once, and each sandbox is one stream to it."""

from dutyfree.substrates.ssh.driver import driver

__all__ = ["driver"]

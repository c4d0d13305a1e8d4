"""`gvisor`: OCI bundles on runsc: a second kernel, in user space, between the code and the machine."""

from dutyfree.substrates.gvisor.driver import driver

__all__ = ["driver"]

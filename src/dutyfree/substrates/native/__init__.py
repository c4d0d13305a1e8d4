"""The native substrate: sandboxes from the kernel's own namespaces, in milliseconds."""

from dutyfree.substrates.native.driver import driver

__all__ = ["driver"]

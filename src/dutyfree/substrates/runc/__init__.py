"""`runc`: OCI bundles straight on runc, without an engine: the floor of containers."""

from dutyfree.substrates.runc.driver import driver

__all__ = ["driver"]

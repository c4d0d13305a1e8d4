"""`opensandbox`: sandboxes of an OpenSandbox server, by its own SDK."""

from dutyfree.substrates.opensandbox.driver import driver

__all__ = ["driver"]

"""`e2b`: the vendor's microVMs, by its own SDK."""

from dutyfree.substrates.e2b.driver import driver

__all__ = ["driver"]

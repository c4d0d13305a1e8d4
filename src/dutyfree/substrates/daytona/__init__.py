"""`daytona`: sandboxes of Daytona, by the vendor's own SDK."""

from dutyfree.substrates.daytona.driver import driver

__all__ = ["driver"]

"""`modal`: containers at Modal, by the vendor's own SDK."""

from dutyfree.substrates.modal.driver import driver

__all__ = ["driver"]

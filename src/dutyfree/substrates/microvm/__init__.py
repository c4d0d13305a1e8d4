"""`microvm`: clones of a booted virtual machine, with copy-on-write memory; running ones can be forked."""

from dutyfree.substrates.microvm.driver import driver

__all__ = ["driver"]

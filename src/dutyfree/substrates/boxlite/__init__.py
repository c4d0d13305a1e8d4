"""`boxlite`: microVMs of the library of that name, which brings its own machine monitor (libkrun)."""

from dutyfree.substrates.boxlite.driver import driver

__all__ = ["driver"]

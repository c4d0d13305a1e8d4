"""`docker`: containers of a Docker engine, by its HTTP API on a unix socket."""

from dutyfree.substrates.docker.driver import driver

__all__ = ["driver"]

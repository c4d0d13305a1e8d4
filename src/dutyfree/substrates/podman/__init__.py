"""`podman`: containers of podman, by its Docker-compatible API on a unix socket."""

from dutyfree.substrates.podman.driver import driver

__all__ = ["driver"]

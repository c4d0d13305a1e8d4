"""`kubernetes`: pods of any cluster, by its API."""

from dutyfree.substrates.kubernetes.driver import driver

__all__ = ["driver"]

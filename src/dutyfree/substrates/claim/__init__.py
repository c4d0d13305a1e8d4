"""`kubernetes-claim`: pods that agent-sandbox's controller hands out, cold or from a warm pool of its own."""

from dutyfree.substrates.claim.driver import driver

__all__ = ["driver"]

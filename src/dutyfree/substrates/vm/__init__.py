"""`vm`: a whole virtual machine for each sandbox, booted cold: the archetype of a cloud VM per rollout."""

from dutyfree.substrates.vm.driver import driver

__all__ = ["driver"]

"""`ec2`: one cloud machine per sandbox, started by the vendor's API, reached by ssh, terminated at the end."""

from dutyfree.substrates.ec2.driver import driver

__all__ = ["driver"]

"""`noop`: runs nothing and answers at once. Measuring it shows what the instrument itself costs.

Every command ends with exit code 0 and no output. Files are kept in memory, so that what is written can be read.
"""

from dutyfree.substrates.noop.driver import driver

__all__ = ["driver"]

"""The logger `dutyfree`, for `logging`: silent unless the program that uses it wants to hear.

INFO: connections, stages that are built, sandboxes that are replaced or given up. DEBUG: the beginning and the end of
each sandbox. Actions are not logged: their times are in their outcomes.
"""

import logging

LOG = logging.getLogger("dutyfree")
LOG.addHandler(logging.NullHandler())

"""Start states off the critical path: stages that are built once, and pools of sandboxes that wait at them.

    pool = await dutyfree.warm.open_pool("native", targets=[(spec, 8)])

Works over any substrate by its contract alone. Importing this imports no driver.
"""

from dutyfree.warm.chain import Chain
from dutyfree.warm.declaration import load
from dutyfree.warm.driver import driver, open_pool
from dutyfree.warm.lease import Lease
from dutyfree.warm.metrics import Metrics
from dutyfree.warm.pool import Pool
from dutyfree.warm.settings import Settings

__all__ = ["Chain", "Lease", "Metrics", "Pool", "Settings", "driver", "load", "open_pool"]

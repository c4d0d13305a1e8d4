"""The hosted archetype: sandboxes of a vendor, by the vendor's own SDK; an API call per action, over the internet.

What drivers for vendors share. A vendor's own module holds a `Vendor` and its `Machine`s, and is the only one that
imports its SDK; its `driver.py` holds a `HostedDriver`. Nothing here knows any vendor.
"""

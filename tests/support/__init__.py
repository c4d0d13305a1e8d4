"""Daemons, clusters, machines and servers that tests start. Nothing of this is in the wheel.

Tests and `python -m` from `tests/` import it as `support`.
"""

"""The meter: workloads, trials, records, statistics, projection.

It measures anything that satisfies the `Substrate` contract and is told nothing else about it: no driver, pool or
registry is imported here, and nothing prints. `report` and `cli` build on it.
"""

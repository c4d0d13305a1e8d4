"""State off the critical path: stages, pools, and the choice of the nearest state, over any substrate."""

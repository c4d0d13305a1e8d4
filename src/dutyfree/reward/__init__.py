"""Rewards that the code under test did not write itself."""

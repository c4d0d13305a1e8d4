"""Drivers: one module or folder each, found by `registry` through entry points. Imports none of them."""

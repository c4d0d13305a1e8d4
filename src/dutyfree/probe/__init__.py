"""The containment catalogue: what untrusted code may try inside a sandbox, and what it did to the host and to siblings.

Knows substrates only by the contract. Numbers are stable names: a probe keeps its number for ever.
"""

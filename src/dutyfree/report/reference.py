"""Numbers of the published study, to print beside those measured here.

From "The Rollout Infrastructure Tax in Coding-Agent Reinforcement Learning" (arXiv 2607.01415). Other machines, other
substrates: the numbers are for orientation, not for comparison one to one.
"""

from __future__ import annotations

SOURCE = "arXiv 2607.01415"

COLD_START_SPREAD = 110.0
"""Fastest to slowest substrate, up to."""

VM_OVER_HOSTED_T2 = 1.9
"""Cloud VM over hosted sandbox, cold start on T2."""

SLOWEST_150_S = 42.5
FASTEST_150_S = 23.4
SLOWEST_HOURS = 11_811.0
FASTEST_HOURS = 6_495.0
"""Worker-hours per million trajectories of 150 steps."""

SPREAD_150 = 1.8
ORDER = "hosted sandbox < single container < Kubernetes < cloud VM"

COMPANION_50_S = {"hosted sandbox": 12.9, "Kubernetes": 20.1, "EC2": 30.5, "Fargate": 161.5}
"""A companion table by the same authors: a bug fix in 50 actions."""

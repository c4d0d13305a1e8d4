"""The workloads, as data and code: the three tiers of the study, and replay of trajectories recorded elsewhere.

- tier0: minimal commands: start-up and command launch alone
- tier1: code inspection in a repository that is already there
- tier2: clone, inspect, patch, test, reset
- loop: a small reinforcement-learning run
- live: many sandboxes that idle while a model thinks
- trace: a recorded trajectory
- material: what the tiers need on this machine: fetched once, cached, verified
- gitserver: the network end of tier2's clone
"""

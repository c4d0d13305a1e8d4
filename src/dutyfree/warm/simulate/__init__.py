"""The scheduler at a scale that one machine does not have: rollouts on nodes, event by event, by policy."""

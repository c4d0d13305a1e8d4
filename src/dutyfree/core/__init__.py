"""The words that all other packages share: specs, contract, outcomes, errors, timelines. Imports nothing of ours."""

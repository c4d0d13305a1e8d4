"""What everything else speaks: specs, the contract, outcomes, errors, timelines. Imports nothing of ours."""

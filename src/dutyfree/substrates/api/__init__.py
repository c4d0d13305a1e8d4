"""The `api` dispatch: the sandbox contract over a substrate's own exec call, a fresh one for each action.

What people do today, and so what it is measured by: nothing of ours runs inside. Files go by small scripts for the
sandbox's own `sh`. A driver gives an `Execute`; what an exec call cannot promise is named in `API_NOTES`.
"""

"""Attempts that run inside the sandbox: functions that take JSON and give JSON. Standard library only.

The code here is uploaded and never runs on the host, except against a substrate that isolates nothing.
"""

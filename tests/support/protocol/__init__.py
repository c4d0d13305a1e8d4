"""Servers that speak vendors' wire formats, for tests of drivers with the vendors' own SDKs as clients.

    with served("support.protocol.e2b", directory) as server: …     its url and its key

They show that a driver makes the right calls and leaves nothing behind. They are no measurement of a vendor: what
executes commands is a `native` sandbox of this machine. Each runs as a process of its own, so that its affairs are not
those of a test. `place` holds what any such server needs; the wire formats are a module each. Needs aiohttp.
"""

"""Embedded microVMs: peers whose own package brings a machine monitor that runs inside our process's reach, on KVM.

What drivers for them share, over the room of hosted vendors: such a library is a `Vendor` too, whose machines are on this
one. Nothing here knows any library. Where KVM is not usable they refuse, with what the probe saw; nobody scores that.
"""

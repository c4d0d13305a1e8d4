"""The public kit: everything that is the same in all drivers. A driver's author reads this room and no other."""

"""What a forked child inherits refuses every call; nothing is asked of a driver's classes for that."""

import os
from dataclasses import dataclass

from dutyfree.core import home


@dataclass
class Thing(home.Belonging):
    """Has no hash, as it says when two are equal."""

    calls: int = 0

    def act(self):
        self.calls += 1

    def close(self):
        self.calls += 100


def in_child(thing, name):
    reader, writer = os.pipe()
    if not os.fork():
        try:
            said = getattr(thing, name)()
        except home.Misuse as error:
            said = error.message
        os.write(writer, str(said).encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 1000).decode()
    os.close(reader)
    os.wait()
    return said


def test_an_object_without_a_hash_is_sealed_in_a_forked_child():
    thing = Thing()
    thing.act()
    assert in_child(thing, "act") == home.INHERITED
    assert in_child(thing, "close") == "None"
    thing.act()
    thing.close()
    assert thing.calls == 102


def test_what_is_gone_is_not_remembered():
    before = len(home._owned)
    thing = Thing()
    assert len(home._owned) == before + 1
    del thing
    assert len(home._owned) == before

"""What makes no sense is `Misuse` that names the argument, and nothing is sent."""

import math

import pytest

from dutyfree.core.contract import TerminalSize
from dutyfree.core.errors import Misuse

WRONG_RUNS = [
    ("command", [], {}),
    ("command", [""], {}),
    ("command", ["a", 1], {}),
    ("command", ["a\0b"], {}),
    ("command", "a\0b", {}),
    ("command", b"true", {}),
    ("command", None, {}),
    ("command", 7, {}),
    ("command", {"true"}, {}),
    ("command", "\ud800", {}),
    ("command", ["true", "x" * (4 << 20)], {}),
    ("command", ["true"] + ["xxxxxxx"] * 400_000, {}),
    ("env", "true", {"env": {"A": "x" * (4 << 20)}}),
    ("env", "true", {"env": {"A=": "x"}}),
    ("env", "true", {"env": {"": "x"}}),
    ("env", "true", {"env": {"A": 1}}),
    ("env", "true", {"env": {"A": "\0"}}),
    ("env", "true", {"env": [("A", "b")]}),
    ("env", "true", {"env": []}),
    ("cwd", "true", {"cwd": "relative"}),
    ("cwd", "true", {"cwd": ""}),
    ("cwd", "true", {"cwd": "/a\0"}),
    ("cwd", "true", {"cwd": "/" + "a" * 4096}),
    ("cwd", "true", {"cwd": "/" + "ä" * 3000}),
    ("user", "true", {"user": ""}),
    ("user", "true", {"user": "u" * 300}),
    ("stdin", "true", {"stdin": 5}),
    ("stdin", "true", {"stdin": None}),
    ("timeout_s", "true", {"timeout_s": 0}),
    ("timeout_s", "true", {"timeout_s": -1}),
    ("timeout_s", "true", {"timeout_s": math.nan}),
    ("timeout_s", "true", {"timeout_s": math.inf}),
    ("timeout_s", "true", {"timeout_s": 1e12}),
    ("timeout_s", "true", {"timeout_s": "1"}),
    ("timeout_s", "true", {"timeout_s": True}),
    ("output_limit_bytes", "true", {"output_limit_bytes": -1}),
    ("output_limit_bytes", "true", {"output_limit_bytes": 1 << 60}),
    ("output_limit_bytes", "true", {"output_limit_bytes": 1.5}),
]


@pytest.mark.parametrize(("field", "command", "more"), WRONG_RUNS)
async def test_a_run_that_makes_no_sense_is_refused(peer_box, field, command, more):
    async with peer_box() as (box, _):
        with pytest.raises(Misuse) as caught:
            await box.run(command, **more)
        assert caught.value.field == field
        assert not box.link.channels


WRONG_CALLS = [
    ("path", lambda box: box.read("relative")),
    ("path", lambda box: box.read(None)),
    ("offset", lambda box: box.read("/f", offset=-1)),
    ("length", lambda box: box.read("/f", length=-1)),
    ("length", lambda box: box.read("/f", length=1 << 40)),
    ("path", lambda box: box.write("x", b"")),
    ("data", lambda box: box.write("/x", 5)),
    ("mode", lambda box: box.write("/x", b"", mode=0o10000)),
    ("path", lambda box: box.stat("/" + "a" * 5000)),
    ("limit", lambda box: box.list("/", limit=-1)),
    ("mode", lambda box: box.mkdir("/d", mode=-1)),
    ("path", lambda box: box.remove("")),
    ("source", lambda box: box.rename("a", "/b")),
    ("target", lambda box: box.rename("/a", "b")),
    ("remote", lambda box: box.upload("/etc", "x")),
    ("local", lambda box: box.upload("", "/x")),
    ("local", lambda box: box.upload(7, "/x")),
    ("local", lambda box: box.upload("/dev/null", "/x")),
    ("local", lambda box: box.download("/x", "/etc")),
    ("limit_bytes", lambda box: box.download("/x", "/nowhere", limit_bytes=-1)),
    ("port", lambda box: box.expose(0)),
    ("port", lambda box: box.expose(65536)),
    ("port", lambda box: box.provide(-1, "/s")),
    ("address", lambda box: box.provide(80, "")),
    ("address", lambda box: box.provide(80, ("h", 0))),
    ("address", lambda box: box.provide(80, ["h", 1])),
    ("terminal.rows", lambda box: box.start("x", terminal=TerminalSize(rows=0))),
    ("terminal", lambda box: box.start("x", terminal=(24, 80))),
    ("stdin", lambda box: box.start("x", stdin=5)),
    ("cwd", lambda box: box.shell(cwd="x")),
]


@pytest.mark.parametrize(("field", "call"), WRONG_CALLS)
async def test_a_call_that_makes_no_sense_is_refused(peer_box, field, call):
    async with peer_box() as (box, _):
        with pytest.raises(Misuse) as caught:
            await call(box)
        assert caught.value.field == field
        assert not box.link.channels

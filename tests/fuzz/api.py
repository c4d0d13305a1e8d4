"""Arguments of every call, of any type and size: a value, or an error of ours that names what is wrong. Nothing else comes out."""

import asyncio
import sys

import atheris

with atheris.instrument_imports(include=["dutyfree"]):
    from client import ABILITIES, HELLO, Mouth

    import dutyfree
    from dutyfree.core.spec import Spec
    from dutyfree.core.timeline import Timeline
    from dutyfree.guest.link import Link
    from dutyfree.guest.sandbox import AgentSandbox
    from dutyfree.image.collect import parse_size
    from dutyfree.image.store import check_snapshot
    from dutyfree.reward.select import AllowList
    from dutyfree.substrates.registry import find
    from dutyfree.warm.settings import Settings, parse

LOOP = asyncio.new_event_loop()
NUMBERS = (0, -1, 1, 2, 64, 4095, 4096, 1 << 31, 1 << 63, 1 << 64, 1 << 4000, -(1 << 4000), True)
FLOATS = (0.0, -1.0, 0.5, 1e-9, 1e300, float("nan"), float("inf"), float("-inf"))
WORDS = (
    "",
    "/",
    "/a",
    "a",
    "a\0b",
    "\ud800",
    "\udce4",
    "/" + "x" * 5000,
    "none",
    "host",
    "disk",
    "memory",
    "../..",
    "=",
    "root",
    "warm:native",
    "native?stock=x",
    "*.example.com:443",
    "[::1]:80",
    "http://x",
    "0" * 40,
)


def value(data, depth=0):
    """Anything a caller might pass by mistake."""
    kind = data.ConsumeIntInRange(0, 11)
    if kind == 0:
        return None
    if kind <= 2:
        return NUMBERS[data.ConsumeIntInRange(0, len(NUMBERS) - 1)]
    if kind == 3:
        return FLOATS[data.ConsumeIntInRange(0, len(FLOATS) - 1)]
    if kind <= 6:
        return WORDS[data.ConsumeIntInRange(0, len(WORDS) - 1)]
    if kind == 7:
        return data.ConsumeUnicode(20)
    if kind == 8:
        return data.ConsumeBytes(8)
    if depth == 2:
        return object()
    if kind == 9:
        return [value(data, depth + 1) for _ in range(data.ConsumeIntInRange(0, 3))]
    if kind == 10:
        return {key(data): value(data, depth + 1) for _ in range(data.ConsumeIntInRange(0, 3))}
    return dutyfree.TerminalSize(rows=value(data, 2), columns=value(data, 2))


def key(data):
    found = value(data, 2)
    return found if not isinstance(found, (list, dict)) else "key"


VALUES = {
    dutyfree.Limits: ("cpus", "memory_bytes", "pids", "disk_bytes", "files"),
    dutyfree.Spec: (
        "image",
        "limits",
        "network",
        "env",
        "cwd",
        "user",
        "lifetime_s",
        "idle_s",
        "isolation",
        "storage",
        "stages",
    ),
    dutyfree.Egress: ("allow",),
    dutyfree.Files: ("files", "mode", "name"),
    dutyfree.Repository: ("url", "commit", "path", "depth", "fetch", "network", "timeout_s", "name"),
    dutyfree.Commands: ("commands", "env", "cwd", "user", "network", "timeout_s", "name"),
    Settings: ("sandboxes", "memory_bytes", "sandbox_bytes", "idle", "creations", "refill", "queue", "wait_s"),
}
NEEDED = {
    dutyfree.Egress: ("allow",),
    dutyfree.Files: ("files",),
    dutyfree.Repository: ("url", "commit"),
    dutyfree.Commands: ("commands",),
}
CALLS = {
    "run": ("command", "timeout_s", "cwd", "env", "stdin", "user", "output_limit_bytes"),
    "start": ("command", "timeout_s", "cwd", "env", "stdin", "user", "terminal"),
    "shell": ("cwd", "env", "user"),
    "read": ("path", "offset", "length"),
    "write": ("path", "data", "mode"),
    "stat": ("path",),
    "list": ("path", "limit"),
    "mkdir": ("path", "mode"),
    "remove": ("path",),
    "rename": ("source", "target"),
    "expose": ("port",),
    "provide": ("port", "address"),
}
REQUIRED = ("command", "path", "data", "source", "target", "port", "address")
TEXTS = (
    find,
    lambda text: parse_size(text, "size"),
    check_snapshot,
    lambda text: parse({text: text}),
    lambda text: AllowList([text]),
)


def some(data, names, needed):
    return {name: value(data) for name in names if name in needed or data.ConsumeIntInRange(0, 3) == 0}


def build(data):
    kind = list(VALUES)[data.ConsumeIntInRange(0, len(VALUES) - 1)]
    made = kind(**some(data, VALUES[kind], NEEDED.get(kind, ())))
    hash(made) if kind is dutyfree.Limits else None
    if isinstance(made, dutyfree.Files):
        assert all(isinstance(path, str) for path in made.files)


async def call(data):
    mouth = Mouth()
    link = Link.attach(mouth, sandbox="fuzzed")
    mouth.say(HELLO)
    box = AgentSandbox(
        id="fuzzed", spec=Spec(), capabilities=ABILITIES, timeline=Timeline(), link=link, release=_nothing
    )
    name = list(CALLS)[data.ConsumeIntInRange(0, len(CALLS) - 1)]
    work = asyncio.ensure_future(getattr(box, name)(**some(data, CALLS[name], REQUIRED)))
    try:
        for _ in range(3):
            await asyncio.sleep(0)
        mouth.end()
        await work
    finally:
        await box.destroy()


async def _nothing():
    pass


def one_input(raw):
    data = atheris.FuzzedDataProvider(raw)
    mode = data.ConsumeIntInRange(0, 4)
    try:
        if mode <= 1:
            build(data)
        elif mode <= 3:
            LOOP.run_until_complete(call(data))
        else:
            TEXTS[data.ConsumeIntInRange(0, len(TEXTS) - 1)](data.ConsumeUnicode(60))
    except dutyfree.DutyfreeError:
        pass
    except OSError:
        if mode not in (2, 3):
            raise


if __name__ == "__main__":
    asyncio.set_event_loop(LOOP)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()

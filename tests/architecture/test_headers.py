"""The numbers and layouts that Python repeats are those of the C headers, as a compiler sees them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dutyfree.core import outcome
from dutyfree.guest import reply, wire
from dutyfree.substrates.native import spawner

NATIVE = Path(__file__).parents[2] / "native"
WIRE = NATIVE / "common" / "wire.h"
SPAWNER = NATIVE / "spawner" / "spawner.h"
C_ONLY = {"WIRE_H", "WIRE_FLAG_GAP"}
"""A guard against a second inclusion, and a flag that `reply` reads as a bit of its own."""

STRUCTS = {
    "request_head": spawner._HEAD,
    "layer_request": spawner._NUMBERED,
    "snapshot_request": spawner._COPY,
    "event": spawner._EVENT,
}
CONSTANTS = {
    "MAX_LAYERS": "MAX_LAYERS",
    "MAX_BINDS": "_MAX_BINDS",
    "MAX_KNOWN": "_MAX_KNOWN",
    "TARGET_SIZE": "_TARGET_SIZE",
    "CREATE_HOST_NETWORK": "_FLAG_HOST_NETWORK",
    "CREATE_DISK": "_FLAG_DISK",
    "CREATE_SETTLED": "_FLAG_SETTLED",
    "GONE_DESTROYED": "_DESTROYED",
}


def values_of(header: Path, expressions: list[str], place: Path) -> dict[str, int]:
    """Compile a program that prints each expression."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler; enable: apt-get install -y gcc libc6-dev")
    lines = "".join(f'    printf("%lld\\n", (long long)({one}));\n' for one in expressions)
    named = [header.name, *(["state.h"] if header == SPAWNER else [])]
    includes = "".join(f'#include "{name}"\n' for name in named)
    text = f"#define _GNU_SOURCE\n#include <stddef.h>\n#include <stdio.h>\n{includes}int main(void) {{\n{lines}    return 0;\n}}\n"
    source, program = place / "ask.c", place / "ask"
    source.write_text(text)
    subprocess.run(["cc", f"-I{header.parent}", str(source), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return dict(zip(expressions, map(int, said.split()), strict=True))


def names_in(path: Path, pattern: str) -> list[str]:
    return list(dict.fromkeys(re.findall(rf"\b({pattern})\b(?=\s*(?:=|,|\n|/|}}))", path.read_text())))


def python_name(name: str) -> str:
    return name.removeprefix("WIRE_").removeprefix("OPT_")


def test_every_number_of_the_wire_is_the_same_in_python(tmp_path: Path):
    names = [name for name in names_in(WIRE, r"WIRE_[A-Z0-9_]+") if name not in C_ONLY and "_ENDED_" not in name]
    assert len(names) > 40
    found = values_of(WIRE, names, tmp_path)
    known = {name: getattr(wire, {"WIRE_HEADER": "HEADER_SIZE"}.get(name, python_name(name)), None) for name in names}
    assert known == found
    assert wire.HEADER.size == found["WIRE_HEADER"]


def test_every_ending_of_the_wire_has_its_place_in_python(tmp_path: Path):
    names = names_in(WIRE, r"WIRE_ENDED_[A-Z_]+")
    found = values_of(WIRE, names, tmp_path)
    spelled = {name.removeprefix("WIRE_ENDED_").lower().replace("_", "-"): number for name, number in found.items()}
    assert spelled == {ending: number for number, ending in enumerate(reply._ENDINGS)}
    assert set(reply._ENDINGS) == set(outcome.Ending.__args__)


def test_the_packets_of_the_spawner_have_the_layout_of_its_header(tmp_path: Path):
    sizes = [f"sizeof(struct {name})" for name in STRUCTS]
    body = "sizeof(struct create_request) - sizeof(struct request_head)"
    fields = [f"offsetof(struct create_request, {name})" for name in ("pids", "layer_count", "layers", "binds")]
    events = [f"offsetof(struct event, {name})" for name in ("tag", "error", "reason", "detail")]
    found = values_of(SPAWNER, [*sizes, body, *fields, *events, *CONSTANTS], tmp_path)
    assert {name: found[size] for name, size in zip(STRUCTS, sizes, strict=True)} == {
        name: packed.size for name, packed in STRUCTS.items()
    }
    # The body is packed without padding: its end may be the padding of the C struct.
    assert 0 <= found[body] - spawner._CREATE_BODY.size < 8
    assert [found[one] for one in fields] == [
        8 + 5 * 8,
        8 + 5 * 8 + 8,
        8 + 5 * 8 + 16,
        8 + 5 * 8 + 16 + 4 * spawner.MAX_LAYERS,
    ]
    assert [found[one] for one in events] == [4, 8, 12, 16]
    assert {name: getattr(spawner, ours) for name, ours in CONSTANTS.items()} == {
        name: found[name] for name in CONSTANTS
    }


def test_the_requests_and_events_of_the_spawner_have_its_numbers(tmp_path: Path):
    names = names_in(SPAWNER, r"REQUEST_[A-Z]+") + names_in(SPAWNER, r"EVENT_[A-Z]+")
    found = values_of(SPAWNER, names, tmp_path)
    ours = {name: getattr(spawner, "_" + name.removeprefix("REQUEST_"), None) for name in names}
    assert ours == found

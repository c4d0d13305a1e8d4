"""Records: written as they happen, read back whole, with everything that is wrong reported and the rest kept."""

import gzip
import json
from dataclasses import replace

import pytest
from runs import measure
from synthetic import Delays

from dutyfree.core.errors import Misuse
from dutyfree.meter.campaign import Choices
from dutyfree.meter.record import BadRecord, parse
from dutyfree.meter.store import PACKED, RECORDS, RecordWriter, load, read_manifest, read_records, write_manifest

CHOICES = Choices(steps=(0, 10), trials=3, warmup=1, deadline_s=30)


@pytest.fixture
def directory(tmp_path):
    measure(tmp_path / "run", {"host": Delays()}, CHOICES)
    return tmp_path / "run"


def test_a_record_survives_its_line(directory):
    records, problems = read_records(directory)
    assert not problems
    assert len(records) == 7
    assert all(parse(record.to_json()) == record for record in records)


def test_a_broken_line_is_reported_and_the_rest_kept(directory):
    path = directory / RECORDS
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"ok":true', '"ok":"yes"')
    lines[4] = "\x00garbage"
    path.write_text("\n".join(lines) + "\n")
    records, problems = read_records(directory)
    assert len(records) == 5
    assert [problem.line for problem in problems] == [3, 5]
    assert "ok is 'yes'" in str(problems[0])


def test_a_half_written_last_line_is_reported_as_such(directory):
    path = directory / RECORDS
    path.write_bytes(path.read_bytes()[:-40])
    records, problems = read_records(directory)
    assert len(records) == 6
    assert "half-written" in str(problems[0])


def test_a_packed_run_reads_like_an_open_one_and_is_not_written_to(directory):
    records, _ = read_records(directory)
    (directory / PACKED).write_bytes(gzip.compress((directory / RECORDS).read_bytes()))
    (directory / RECORDS).unlink()
    assert read_records(directory) == (records, [])
    with pytest.raises(Misuse, match="gunzip"):
        RecordWriter(directory)


def test_a_packed_run_that_is_torn_says_so(directory):
    (directory / PACKED).write_bytes(gzip.compress((directory / RECORDS).read_bytes())[:-20])
    (directory / RECORDS).unlink()
    with pytest.raises(Misuse, match="cannot be unpacked"):
        read_records(directory)


def test_bytes_that_are_no_text_are_reported(directory):
    with (directory / RECORDS).open("ab") as file:
        file.write(b"\xff\xfe\n")
    records, problems = read_records(directory)
    assert (len(records), len(problems)) == (7, 1)


def test_appending_after_a_torn_line_starts_a_new_one(directory):
    path = directory / RECORDS
    records, _ = read_records(directory)
    path.write_bytes(path.read_bytes()[:-40])
    with RecordWriter(directory) as writer:
        writer.append([replace(records[-1], id="another")])
    found, problems = read_records(directory)
    assert [record.id for record in found] == [*(record.id for record in records[:-1]), "another"]
    assert len(problems) == 1


def test_a_trial_recorded_twice_counts_once(directory):
    path = directory / RECORDS
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    records, problems = read_records(directory)
    assert len(records) == 7
    assert "recorded twice" in str(problems[0])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('{"schema": 99}', "schema 99"),
        ('{"schema": 1}', "lacks"),
    ],
)
def test_what_is_not_a_record_says_why(line, reason):
    with pytest.raises(BadRecord, match=reason):
        parse(line)


def test_runs_of_unlike_hosts_are_not_merged(directory, tmp_path):
    other = tmp_path / "other"
    measure(other, {"host": Delays()}, CHOICES)
    manifest = read_manifest(other)
    manifest["host"] |= {"id": "feedfacefeedface", "kernel": "another"}
    write_manifest(other, manifest)
    with pytest.raises(Misuse, match=r"unlike hosts.*kernel"):
        load([directory, other])


def test_runs_of_the_same_host_are_merged(directory, tmp_path):
    other = tmp_path / "other"
    measure(other, {"quick": Delays(create=1)}, CHOICES)
    assert {record.substrate for record in load([directory, other]).records} == {"host", "quick"}


def test_records_of_another_host_inside_a_run_are_refused(directory):
    records, _ = read_records(directory)
    with RecordWriter(directory) as writer:
        writer.append([replace(records[0], id="smuggled", host="feedfacefeedface")])
    with pytest.raises(Misuse, match="another host"):
        load([directory])


def test_a_directory_without_a_manifest_says_how_to_get_one(tmp_path):
    with pytest.raises(Misuse, match="dutyfree measure -o"):
        load([tmp_path])


def test_records_load_into_a_data_frame_in_one_line(directory):
    rows = [json.loads(line) for line in (directory / RECORDS).read_text().splitlines()]
    assert len({tuple(row) for row in rows}) == 1, "every line has the same columns in the same order"
    assert not any(isinstance(value, dict) for row in rows for value in row.values())

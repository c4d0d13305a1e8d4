"""Reports that hostile code wrote: bounded, without entities in any encoding, and each test passed wherever it is named."""

import pytest

from dutyfree.reward.report import REPORT_BYTES, judge_report

HEAD = '<?xml version="1.0" encoding="{}"?>'
CASE = '<t><testcase classname="c" name="one"/></t>'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_reports_are_read_in_the_encoding_they_name(encoding):
    assert judge_report((HEAD.format(encoding) + CASE).encode(encoding), ["one", "c.one"]) == ""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "iso-8859-1"])
def test_document_types_are_refused_in_every_encoding(encoding):
    text = HEAD.format("utf-16" if "16" in encoding else encoding) + '<!DOCTYPE t [<!ENTITY a "x">]>' + CASE
    assert judge_report(text.encode(encoding), ["one"]) == "its report defines entities"


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (b"<a>" * 100, "has more elements, or deeper ones, than a test runner writes"),
        (b"<t>" + b"<a/>" * 600_000 + b"</t>", "has more elements, or deeper ones, than a test runner writes"),
        (b"<t " + b" ".join(b'a%d="1"' % n for n in range(50_000)) + b"/>", "has a tag of more than 262144 bytes"),
        (b" " * (REPORT_BYTES + 1), f"has more than {REPORT_BYTES} bytes"),
        (b'<?xml version="1.0" encoding="none"?><t/>', "cannot be read: unknown encoding: none"),
        (b'<?xml version="1.0" encoding="rot13"?><t/>', "cannot be read: 'rot13' is not a text encoding"),
        (b"", "cannot be read: no element found"),
    ],
)
def test_reports_that_no_test_runner_writes_are_refused(report, reason):
    assert judge_report(report, ["one"]).startswith(f"its report {reason}")


@pytest.mark.parametrize(
    ("inside", "passed"),
    [
        ("", True),
        ("<properties/><system-out>text</system-out><system-err/>", True),
        ("<failure/>", False),
        ("<error/>", False),
        ("<skipped/>", False),
        ("<rerunFailure/>", False),
        ("<testcase name='two'/><failure/>", False),
    ],
)
def test_a_test_passed_if_nothing_else_is_said_of_it(inside, passed):
    report = f'<t><testcase name="one">{inside}</testcase></t>'.encode()
    assert (judge_report(report, ["one"]) == "") is passed


@pytest.mark.parametrize("order", [("", "<failure/>"), ("<error/>", "")])
def test_a_test_that_is_told_twice_passed_both_times_or_not_at_all(order):
    cases = "".join(f'<testcase name="one">{inside}</testcase>' for inside in order)
    assert judge_report(f"<t>{cases}</t>".encode(), ["one"]) == "not passed: one"

"""A credential gets into the SDK and nowhere else."""

import asyncio
import logging
import pickle
import traceback

import pytest

from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, Unavailable
from dutyfree.substrates.e2b.driver import driver
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.hosted.credential import Credential

SECRET = "e2b_0123456789abcdef"


class VendorError(Exception):
    """What an SDK raises, with everything it knows in it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"401: the key {key} is not valid", {"headers": {"X-API-KEY": key}})


async def refuses() -> None:
    raise VendorError(SECRET) from OSError(f"header {SECRET}")


def crossing() -> DutyfreeError:
    boundary = Boundary((VendorError,), lambda _, words: DriverError(words), [Credential("KEY", SECRET)])
    with pytest.raises(DriverError) as caught:
        asyncio.run(boundary.cross(refuses()))
    return caught.value


def test_an_error_that_quotes_the_secret_is_raised_without_it():
    error = crossing()
    assert "$KEY is not valid" in str(error)
    shown = "".join(traceback.format_exception(error))
    for text in (str(error), repr(error), shown, repr(error.args), repr(vars(error)), repr(pickle.dumps(error.args))):
        assert SECRET not in text


def test_nothing_of_the_vendors_error_is_carried_along():
    error = crossing()
    assert error.__cause__ is None
    assert error.__context__ is None
    values = [value for frame, _ in traceback.walk_tb(error.__traceback__) for value in frame.f_locals.values()]
    assert not any(isinstance(value, VendorError) for value in values)


def test_an_error_that_is_not_the_vendors_passes():
    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(Boundary((VendorError,), lambda _, words: DriverError(words)).cross(fails()))


def test_a_credential_shows_its_variable_and_not_its_value(caplog: pytest.LogCaptureFixture):
    credential = Credential("KEY", SECRET)
    logging.getLogger("test").warning("with %s, %r, %s", credential, credential, {"key": credential})
    assert SECRET not in caplog.text
    assert SECRET not in f"{credential} {credential!r}"
    assert not hasattr(credential, "__dict__")


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_credential_is_unavailable_with_the_command(monkeypatch: pytest.MonkeyPatch, value: str | None):
    pytest.importorskip("e2b", reason="the e2b SDK is not installed; enable: pip install 'dutyfree[e2b]'")
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("E2B_API_KEY", value)
    with pytest.raises(Unavailable, match="E2B_API_KEY is not set") as caught:
        asyncio.run(driver.connect({}))
    assert caught.value.enable == "export E2B_API_KEY=…"
    found = driver.probe()
    assert (found.available, found.reason, found.enable) == (False, "E2B_API_KEY is not set", "export E2B_API_KEY=…")


def test_a_missing_sdk_is_unavailable_with_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("E2B_API_KEY", SECRET)
    monkeypatch.setattr("dutyfree.substrates.hosted.driver.find_spec", lambda _: None)
    with pytest.raises(Unavailable, match="the e2b SDK is not installed") as caught:
        asyncio.run(driver.connect({}))
    assert caught.value.enable == "pip install 'dutyfree[e2b]'"
    assert driver.probe().enable == "pip install 'dutyfree[e2b]'"


def test_what_doctor_says_has_no_secret_in_it(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("e2b", reason="the e2b SDK is not installed; enable: pip install 'dutyfree[e2b]'")
    monkeypatch.setenv("E2B_API_KEY", SECRET)
    found = driver.probe()
    assert found.available
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("options", "field"),
    [({"api_key": SECRET}, "api_key"), ({"ttl": "soon"}, "ttl"), ({"ttl": "1"}, "ttl"), ({"ttl": "nan"}, "ttl")],
)
def test_options_are_checked_and_a_credential_is_none(options: dict[str, str], field: str):
    with pytest.raises(Misuse) as caught:
        asyncio.run(driver.connect(options))
    assert caught.value.field == field
    assert SECRET not in str(caught.value)

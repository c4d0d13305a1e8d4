"""What the driver knows without a server: where it would look, what it would ask, what errors mean."""

import asyncio
from pathlib import Path

import pytest

from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, Saturated, Unavailable
from dutyfree.core.spec import Limits
from dutyfree.substrates.opensandbox import address, driver

pytest.importorskip("opensandbox", reason="the SDK is not installed; enable: pip install 'dutyfree[opensandbox]'")

from opensandbox.exceptions import (
    InvalidArgumentException,
    SandboxApiException,
    SandboxConnectionException,
    SandboxError,
    SandboxException,
    SandboxRateLimitException,
    SandboxReadyTimeoutException,
)

from dutyfree.substrates.opensandbox.vendor import _classify, _resource

SECRET = "k3y-0123456789abcdef"


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for variable in (address.PLACE, address.KEY):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(address, "OUR_SERVER", tmp_path / "environment")
    return tmp_path / "environment"


def connected(**options: str) -> None:
    asyncio.run(driver.connect(options))


def test_without_a_server_it_is_unavailable_and_says_what_brings_one_up():
    found = driver.probe()
    assert (found.available, found.enable) == (False, "make opensandbox")
    assert "OPEN_SANDBOX_DOMAIN is not set" in found.reason
    assert found.capabilities is not None
    with pytest.raises(Unavailable, match="make opensandbox"):
        connected()


def test_the_environments_server_comes_before_our_own(monkeypatch: pytest.MonkeyPatch, no_server: Path):
    no_server.write_text(f"{address.PLACE}=127.0.0.1:1\n{address.KEY}={SECRET}\n")
    ours = address.Address.find()
    assert ours.domain == "127.0.0.1:1"
    assert ours.key is not None
    assert ours.key.reveal() == SECRET
    monkeypatch.setenv(address.PLACE, "https://sandboxes.example")
    other = address.Address.find()
    assert (other.domain, other.url, other.key) == ("https://sandboxes.example", "https://sandboxes.example", None)


def test_a_key_shows_nowhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(address.PLACE, "127.0.0.1:1")
    monkeypatch.setenv(address.KEY, SECRET)
    with pytest.raises(Unavailable) as caught:
        connected()
    assert SECRET not in f"{address.Address.find()!r} {driver.probe()!r} {caught.value}"


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(address.PLACE, "127.0.0.1:1")
    assert "127.0.0.1:1 does not answer" in driver.probe().reason
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 does not answer"):
        connected()


@pytest.mark.parametrize("options", [{"key": SECRET}, {"proxy": "maybe"}, {"ttl": "1"}, {"ttl": "soon"}], ids=repr)
def test_an_option_that_makes_no_sense_is_misuse(options: dict[str, str]):
    with pytest.raises(Misuse, match=next(iter(options))):
        connected(**options)


def test_limits_are_told_in_the_servers_words():
    assert _resource(Limits()) == {"cpu": "1", "memory": "2Gi"}
    assert _resource(Limits(cpus=0.25, memory_bytes=64 << 20)) == {"cpu": "250m", "memory": "67108864"}


def answer(status: int, code: str = "ANY") -> SandboxApiException:
    return SandboxApiException("said", status_code=status, error=SandboxError(code, "said"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer(500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED"), Misuse),
        (answer(400), Misuse),
        (answer(401), Unavailable),
        (answer(404), SandboxLost),
        (answer(500), DriverError),
        (SandboxRateLimitException("slowly", status_code=429), Saturated),
        (SandboxConnectionException("refused"), Unavailable),
        (SandboxReadyTimeoutException("too long"), DriverError),
        (InvalidArgumentException("no"), Misuse),
        (SandboxException("else"), DriverError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_every_error_of_the_sdk_is_one_of_ours(error: Exception, kind: type[DutyfreeError]):
    ours = _classify(error, "words")
    assert type(ours) is kind
    assert ours.driver == "opensandbox"

"""Images whose makers want our memory, our disk or our terminal."""

import gzip
import hashlib
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.image import OCI, Layout, config, digest, layer, member, packed

from dutyfree.cli.main import main
from dutyfree.core.errors import DutyfreeError, Misuse, Unavailable
from dutyfree.image.oci.document import MAX_DOCUMENT_BYTES, this_platform
from dutyfree.image.oci.intake import import_image, import_path
from dutyfree.image.oci.reference import parse_reference
from dutyfree.image.oci.registry import Registry
from dutyfree.image.resolve import resolve
from dutyfree.image.store import Store

BASE = layer(member("etc/"), member("etc/a", b"1"))
LARGE = 1 << 40


class Hostile(ThreadingHTTPServer):
    """A registry that answers by a table: path to (status, headers, body); a body that is None never ends."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.table = {}
        self.sent = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        status, headers, body = self.server.table[self.path.partition("?")[0]]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(LARGE if body is None else len(body)))
        self.end_headers()
        try:
            if body is not None:
                self.wfile.write(body)
            while body is None and self.server.sent < 1 << 29:
                self.wfile.write(bytes(1 << 20))
                self.server.sent += 1 << 20
        except OSError:
            pass
        self.close_connection = True


@pytest.fixture
def hostile():
    server = Hostile()
    yield server
    server.shutdown()
    server.server_close()


def pull(store: Store, hostile: Hostile, **options):
    with Registry(parse_reference(f"{hostile.host}/x:1"), store, **options) as registry:
        return import_image(store, registry.find(this_platform()))


BOMB = gzip.compress(bytes(MAX_DOCUMENT_BYTES * 2), 9)


@pytest.mark.parametrize(("headers", "body"), [({}, None), ({"Content-Encoding": "gzip"}, BOMB)])
@pytest.mark.parametrize("where", ["/token", "/v2/x/manifests/1"])
def test_a_document_that_does_not_end_is_not_read_to_its_end(store: Store, hostile: Hostile, where, headers, body):
    challenge = {"WWW-Authenticate": f'Bearer realm="http://{hostile.host}/token"'}
    hostile.table = {"/v2/x/manifests/1": (401, challenge, b""), where: (200, headers, body)}
    with pytest.raises(Misuse):
        pull(store, hostile)
    assert hostile.sent < MAX_DOCUMENT_BYTES * 8


def test_the_way_to_a_redirection_is_not_read(store: Store, hostile: Hostile):
    hostile.table = {"/v2/x/manifests/1": (302, {"Location": "/gone"}, None), "/gone": (404, {}, b"")}
    with pytest.raises(Misuse, match="has no"):
        pull(store, hostile)
    assert hostile.sent < MAX_DOCUMENT_BYTES * 8


def test_redirections_end(store: Store, hostile: Hostile):
    hostile.table = {"/v2/x/manifests/1": (302, {"Location": "/v2/x/manifests/1"}, b"")}
    with pytest.raises(Misuse, match="redirects"):
        pull(store, hostile)


def test_a_layer_larger_than_the_cap_is_not_fetched(store: Store, hostile: Hostile):
    text = config([BASE])
    blob = {"mediaType": f"{OCI}.layer.v1.tar", "digest": digest(BASE), "size": LARGE}
    about = {"mediaType": f"{OCI}.config.v1+json", "digest": digest(text), "size": len(text)}
    manifest = json.dumps({"schemaVersion": 2, "config": about, "layers": [blob]}).encode()
    hostile.table = {
        "/v2/x/manifests/1": (200, {}, manifest),
        f"/v2/x/blobs/{digest(text)}": (200, {}, text),
        f"/v2/x/blobs/{digest(BASE)}": (200, {}, None),
    }
    with pytest.raises(Misuse, match="over the cap"):
        pull(store, hostile, max_bytes=10 << 20)
    assert hostile.sent == 0


def test_what_a_registry_says_does_not_reach_the_terminal(store: Store, hostile: Hostile):
    hostile.table = {"/v2/x/manifests/1": (200, {}, b'{"manifests": [{"size": 1, "digest": "\\u001b[2J"}]}')}
    with pytest.raises(DutyfreeError) as caught:
        pull(store, hostile)
    assert "\x1b" not in str(caught.value)
    assert not isinstance(caught.value, Unavailable)


def deep() -> bytes:
    """Thousands of extended headers in a row, for one member."""
    head = tarfile.TarInfo("x")
    head.type, head.size = b"x", 12
    extended = head.tobuf(tarfile.USTAR_FORMAT) + b"12 path=abc\n".ljust(512, b"\0")
    return extended * 5000 + tarfile.TarInfo("etc").tobuf() + bytes(1024)


def test_many_extended_headers_are_a_refusal(store: Store, tmp_path: Path):
    made = Layout(tmp_path / "layout")
    path = made.add(made.manifest([deep()])).path
    with pytest.raises(Misuse, match="not a readable"):
        import_path(store, path)
    (tmp_path / "rootfs.tar").write_bytes(deep())
    with pytest.raises(Misuse, match="not a readable"):
        resolve(str(tmp_path / "rootfs.tar"), store)
    tar = packed(path, tmp_path / "image.tar").read_bytes()
    (tmp_path / "image.tar").write_bytes(deep()[:-1024] + tar)
    with pytest.raises(Misuse, match="no readable archive"):
        import_path(store, tmp_path / "image.tar")


def test_what_follows_a_tars_end_is_bounded(store: Store, tmp_path: Path):
    made = Layout(tmp_path / "layout")
    long = BASE + bytes(72 << 20)
    assert hashlib.sha256(long).hexdigest()
    path = made.add(made.manifest([long])).path
    with pytest.raises(Misuse, match="after its end"):
        import_path(store, path)


def test_names_in_a_layout_reach_the_terminal_without_what_it_would_obey(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))
    made = Layout(tmp_path / "layout")
    manifest = made.manifest([BASE])
    made.add(manifest, name="a\x1b]0;owned\x07\x1b[2J").add(manifest, name="b")
    assert main(["image", "import", str(made.path), "--name", "x"]) == 2
    said = capsys.readouterr().err
    assert "a?]0;owned??[2J, b" in said
    assert "\x1b" not in said

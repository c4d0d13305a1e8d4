"""Pulling from a real registry: logins, tokens, platforms, connections that break, bytes that are wrong."""

import http.client
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.daemons import Missing
from support.image import OCI, Layout, layer, member
from support.registry import push, registry

from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.image.oci.credential import Credential
from dutyfree.image.oci.document import this_platform
from dutyfree.image.oci.intake import import_image
from dutyfree.image.oci.reference import parse_reference
from dutyfree.image.oci.registry import Registry
from dutyfree.image.store import Manifest, Store
from dutyfree.image.view import View

LOGIN = ("me", "secret")
BASE = layer(member("etc/"), member("etc/a", b"1"), member("big", os.urandom(3_000_000)))
TOP = layer(member("etc/b", b"2"), member("etc/.wh.a", b""))


@pytest.fixture(scope="module")
def host():
    try:
        with registry() as address:
            yield address
    except Missing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def locked():
    try:
        with registry(login=LOGIN) as address:
            yield address
    except Missing as error:
        pytest.skip(str(error))


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    made = Layout(tmp_path / "layout")
    return made.add(made.manifest([BASE, TOP], said={"Env": ["A=1"]})).path


def pull(store: Store, text: str, *, credential: Credential | None = None, platform: str | None = None) -> Manifest:
    with Registry(parse_reference(text), store, credential=credential) as source:
        return import_image(store, source.find(platform or this_platform()))


def shown(store: Store, manifest: Manifest) -> set[str]:
    return {place for place, _ in View(store.images.layer_paths(manifest)).walk()}


def downloads(store: Store) -> list[str]:
    return os.listdir(store.root / "downloads")


class Front:
    """A server before the registry that does what registries on the internet do, and counts."""

    def __init__(self, behind: str, *, token: str = "", cut: int = 0, spoil: bool = False, ranges: bool = True) -> None:
        self.asked: Counter[str] = Counter()
        self.ranges: list[str] = []
        self.cut = cut
        front = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                front.asked[self.path.partition("?")[0]] += 1
                if self.path.startswith("/token"):
                    given = self.headers.get("Authorization", "").startswith("Basic ")
                    self._send(200 if given else 401, json.dumps({"token": token}).encode())
                elif token and self.headers.get("Authorization") != f"Bearer {token}":
                    scope = f'realm="http://{front.host}/token",service="s",scope="repository:r:pull"'
                    self._send(401, b"{}", {"WWW-Authenticate": f"Bearer {scope}"})
                else:
                    self._forward()

            def _forward(self) -> None:
                wanted = {k: v for k, v in self.headers.items() if k in ("Accept", "Range")}
                if "Range" in wanted:
                    front.ranges.append(wanted["Range"])
                    if not ranges:
                        del wanted["Range"]
                connection = http.client.HTTPConnection(behind)
                connection.request("GET", self.path, headers=wanted)
                reply = connection.getresponse()
                body = reply.read()
                connection.close()
                kept = {k: v for k, v in reply.getheaders() if k in ("Content-Type", "Content-Range")}
                if "/blobs/" in self.path and spoil and len(body) > 100_000:
                    body = body[:50_000] + bytes([body[50_000] ^ 1]) + body[50_001:]
                if "/blobs/" in self.path and len(body) > 100_000 and front.cut > 0:
                    front.cut -= 1
                    self._send(reply.status, body, kept, size=len(body) // 3)
                    return
                self._send(reply.status, body, kept)

            def _send(self, status: int, body: bytes, headers: dict | None = None, size: int | None = None) -> None:
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[:size])

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> "Front":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_an_image_is_pulled_by_tag_and_by_digest(host: str, store: Store, layout: Path):
    name = push(host, "team/plain", "v1", layout)
    manifest = pull(store, f"{host}/team/plain:v1")
    assert shown(store, manifest) == {"etc", "etc/b", "big"}
    assert manifest.env == {"A": "1"}
    assert pull(store, f"{host}/team/plain@{name}").key == manifest.key
    assert downloads(store) == []


def test_what_is_there_is_not_fetched_again(host: str, store: Store, layout: Path):
    push(host, "r", "once", layout)
    with Front(host) as front:
        pull(store, f"{front.host}/r:once")
        pull(store, f"{front.host}/r:once")
    blobs = {path: count for path, count in front.asked.items() if "/blobs/" in path}
    assert sorted(blobs.values()) == [1, 1, 2]  # two layers; the configuration is read each time


def test_an_index_is_narrowed_to_a_platform(host: str, store: Store, tmp_path: Path):
    made = Layout(tmp_path / "many")
    entries = []
    for machine, content in (("riscv64", b"1"), ("s390x", b"2")):
        image = made.manifest([layer(member(machine, content))], platform=f"linux/{machine}")
        entries.append(image | {"platform": {"os": "linux", "architecture": machine}})
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": entries}
    made.add(made.blob(json.dumps(index).encode(), f"{OCI}.index.v1+json"))
    push(host, "many", "latest", made.path)
    assert shown(store, pull(store, f"{host}/many", platform="linux/s390x")) == {"s390x"}
    with pytest.raises(Misuse, match="riscv64"):
        pull(store, f"{host}/many", platform="linux/amd64")


def test_a_registry_with_a_password_wants_it(locked: str, store: Store, layout: Path):
    push(locked, "private", "latest", layout, LOGIN)
    with pytest.raises(Unavailable, match="wants a login") as caught:
        pull(store, f"{locked}/private")
    assert "docker login" in (caught.value.enable or "")
    with pytest.raises(Unavailable, match="not accepted"):
        pull(store, f"{locked}/private", credential=Credential(user="me", password="wrong"))
    manifest = pull(store, f"{locked}/private", credential=Credential(user="me", password="secret"))
    assert "etc/b" in shown(store, manifest)


def test_a_token_is_asked_for_where_the_registry_says_and_used_from_then_on(host: str, store: Store, layout: Path):
    push(host, "r", "token", layout)
    with Front(host, token="t0k3n") as front:
        pull(store, f"{front.host}/r:token", credential=Credential(user="me", password="secret"))
        with pytest.raises(Unavailable, match="not accepted"):
            pull(Store(store.root), f"{front.host}/r:token")
    assert front.asked["/token"] == 2


def test_a_broken_connection_is_taken_up_where_it_broke(host: str, store: Store, layout: Path):
    push(host, "r", "cut", layout)
    with Front(host, cut=3) as front:
        assert "big" in shown(store, pull(store, f"{front.host}/r:cut"))
    assert len(front.ranges) == 3
    assert len({int(text.removeprefix("bytes=").partition("-")[0]) for text in front.ranges}) == 3


def test_a_server_that_knows_no_ranges_is_asked_from_the_start(host: str, store: Store, layout: Path):
    push(host, "r", "whole", layout)
    with Front(host, cut=1, ranges=False) as front:
        assert "big" in shown(store, pull(store, f"{front.host}/r:whole"))


def test_wrong_bytes_are_refused_and_leave_nothing(host: str, store: Store, layout: Path):
    push(host, "r", "wrong", layout)
    with Front(host, spoil=True) as front, pytest.raises(Misuse, match="damaged"):
        pull(store, f"{front.host}/r:wrong")
    assert store.images.manifests() == []
    store.images.sweep()
    assert os.listdir(store.root / "layers") == []
    assert len(downloads(store)) <= 1  # the other layer, whole


def test_what_a_killed_pull_fetched_is_continued(host: str, store: Store, layout: Path):
    push(host, "r", "kill", layout)
    code = (
        "import sys; from pathlib import Path\n"
        "from dutyfree.image.oci import registry as r\n"
        "from dutyfree.image.oci.reference import parse_reference\n"
        "from dutyfree.image.oci.document import this_platform\n"
        "from dutyfree.image.oci.intake import import_image\n"
        "from dutyfree.image.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "class Slow(r.Registry):\n"
        "    def _receive(self, reply, file, digest, left):\n"
        "        if left > 100_000:\n"
        "            file.write(next(reply.iter_raw(65536))); file.flush(); print(flush=True); sys.stdin.read()\n"
        "        super()._receive(reply, file, digest, left)\n"
        "with Slow(parse_reference(sys.argv[2]), store) as source:\n"
        "    import_image(store, source.find(this_platform()))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, store.root, f"{host}/r:kill"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        child.kill()
        child.wait()
    with Front(host) as front:
        assert "big" in shown(store, pull(store, f"{front.host}/r:kill"))
    assert front.ranges == ["bytes=65536-"]
    store.images.sweep()
    assert os.listdir(store.root / "building") == []
    assert downloads(store) == []


def test_what_is_not_there_is_said(host: str, store: Store):
    with pytest.raises(Misuse, match="has no") as caught:
        pull(store, f"{host}/absent:latest")
    assert caught.value.field == "reference"
    with pytest.raises(Unavailable, match="does not answer"):
        pull(store, "127.0.0.1:1/absent:latest")


def test_the_command_line_pulls_verifies_and_collects(locked: str, layout: Path, tmp_path: Path):
    push(locked, "team/app", "v1", layout, LOGIN)
    environ = os.environ | {"DUTYFREE_HOME": str(tmp_path / "home")}

    def dutyfree(*words: str, stdin: str = "", code: int = 0) -> str:
        command = [sys.executable, "-m", "dutyfree.cli.main", "image", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environ, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    said = dutyfree("pull", f"{locked}/team/app:v1", "--user", "me", "--password-stdin", stdin="secret\n")
    assert said.startswith("app-v1: 2.9 MiB, 2 layers, key ")
    assert "is taken" in dutyfree("pull", f"{locked}/team/app:v1", code=2)
    assert dutyfree("verify", "app-v1").count("intact") == 2
    dutyfree("gc", "--keep-bytes", "1", "--older-than", "0s")
    assert "app-v1" in dutyfree("list")
    (file,) = (tmp_path / "home/layers").glob("*/rootfs/big")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert "DAMAGED" in dutyfree("verify", "app-v1", code=1)
    dutyfree("remove", "app-v1")
    assert os.listdir(tmp_path / "home/layers") == []

"""The cluster's API: a request and its reply, a watch, a websocket. Owns one HTTP session; knows nothing of sandboxes.

`kubernetes_asyncio` reads the kubeconfig (certificates, tokens, credential plugins) and makes the session; its
generated models are not used: what goes over the wire is plain JSON. Every failure of the connection becomes
`Unavailable` here.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import yaml
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from dutyfree.core.errors import DriverError, Unavailable

DRIVER = "kubernetes"
EXEC_PROTOCOL = "v5.channel.k8s.io"
"""The first that can end a command's input; servers speak it since 1.30."""

WATCH_S = 30
"""As long as one watch lasts."""

_ABSENT = 404
_LONGEST_LINE = 4 << 20
Query = Iterable[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """Answer of the server."""

    status: int
    body: Any

    @property
    def ok(self) -> bool:
        """It did what it was asked."""
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """The server's own words, in one line."""
        said = self.body.get("message") if isinstance(self.body, dict) else None
        return " ".join(str(said or self.body).split())[:2000]


class Refused(Exception):
    """The server made no websocket of a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the server refuses an exec call: {status} {message}")
        self.status = status


class Client:
    """Speaks to one cluster, in one namespace. Made by `open_client`."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._session: aiohttp.ClientSession = api.rest_client.pool_manager
        self.server = str(api.configuration.host)
        self.namespace = namespace
        self._ahead_s = 0.0

    def place(self, kind: str, name: str = "", group: str = "api/v1") -> str:
        """The path of a resource of our namespace."""
        return f"/{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def now_s(self) -> float:
        """The server's time, to the second: what all clients of one cluster agree on."""
        return time.time() + self._ahead_s

    async def call(self, method: str, path: str, body: object = None, query: Query = ()) -> Reply:
        """A request and its whole reply. A PATCH is merged into what is there."""
        headers = await self._headers()
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        try:
            async with self._session.request(
                method,
                self.server + path,
                params=list(query),
                json=body,
                headers=headers,
                proxy=self._api.rest_client.proxy,
            ) as reply:
                text = await reply.text()
                self._tell_time(reply.headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._broken(error) from error
        return Reply(status=reply.status, body=_parsed(text))

    async def watch(self, path: str, query: Query) -> AsyncGenerator[dict[str, Any], None]:
        """Yield changes of resources until the server ends the watch: `{"type": …, "object": …}`."""
        try:
            async with self._session.get(
                self.server + path,
                params=[("watch", "1"), *query],
                headers=await self._headers(),
                timeout=aiohttp.ClientTimeout(total=None, sock_read=None),
                proxy=self._api.rest_client.proxy,
            ) as reply:
                if reply.status != 200:
                    text = await reply.text()
                    raise DriverError(
                        f"cannot watch: {Reply(status=reply.status, body=_parsed(text)).message}",
                        driver=DRIVER,
                        step="connect",
                    )
                async with aclosing(_lines(reply.content)) as lines:
                    async for line in lines:
                        yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._broken(error) from error

    async def follow(self, path: str, name: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield changes of one resource for ever: `ADDED`, `MODIFIED` and `DELETED`, as the server learns of them.

        Each watch begins with what the server has at hand (version 0): without that it first waits until its cache is as new as
        the newest write of any kind, which with an etcd that tells no progress may be never. Each also ends after a
        while, as a connection that died is silent like one with nothing to say.
        """
        which = ("fieldSelector", f"metadata.name={name}")
        query = [which, ("resourceVersion", "0"), ("timeoutSeconds", str(WATCH_S))]
        seen: dict[str, Any] | None = None
        while True:
            async with aclosing(self.watch(path, query)) as events:
                async for event in events:
                    if event["type"] == "ERROR":
                        break
                    seen = event["object"]
                    yield event
            if seen is not None and (await self.call("GET", f"{path}/{name}")).status == _ABSENT:
                yield {"type": "DELETED", "object": seen}

    async def websocket(self, path: str, query: Query) -> aiohttp.ClientWebSocketResponse:
        """An exec stream. `Refused` with the server's words if it does."""
        url = self.server.replace("http", "ws", 1) + path
        try:
            opened = await self._session.ws_connect(
                url,
                params=list(query),
                headers=await self._headers(),
                protocols=(EXEC_PROTOCOL,),
                max_msg_size=0,
                autoping=True,
                proxy=self._api.rest_client.proxy,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise Refused(error.status, error.message) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._broken(error) from error
        if opened.protocol != EXEC_PROTOCOL:
            await opened.close()
            raise Unavailable(
                f"the cluster does not speak {EXEC_PROTOCOL}: it takes Kubernetes 1.30 or later", driver=DRIVER
            )
        return opened

    async def close(self) -> None:
        """Drop the connections."""
        await self._api.close()

    async def _headers(self) -> dict[str, str]:
        """Headers of every request. `Unavailable` once the client is closed."""
        if self._session.closed:
            raise Unavailable("the connection to the cluster is closed", driver=DRIVER)
        headers: dict[str, str] = {}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    def _tell_time(self, headers: Mapping[str, str]) -> None:
        said = headers.get("Date")
        if said:
            self._ahead_s = parsedate_to_datetime(said).timestamp() - time.time()

    def _broken(self, error: BaseException) -> Unavailable:
        return Unavailable(
            f"the cluster at {self.server} does not answer: {str(error) or type(error).__name__}", driver=DRIVER
        )


async def open_client(kubeconfig: str | None, context: str | None, namespace: str | None) -> Client:
    """By a kubeconfig; without one, as a pod of the cluster. `Unavailable` says what is wrong with it."""
    settings = Configuration()
    found = namespace
    try:
        if kubeconfig is None:
            load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            loader = await load_kube_config(
                config_file=kubeconfig, context=context, client_configuration=settings, persist_config=False
            )
            found = found or (loader.current_context or {"context": {}})["context"].get("namespace")
    except (ConfigException, yaml.YAMLError, OSError) as error:
        raise Unavailable(f"the kubeconfig cannot be used: {error}", driver=DRIVER, step="connect") from error
    # Every agent holds a connection: a bounded pool would stop at its size.
    settings.connection_pool_maxsize = 0
    return Client(ApiClient(configuration=settings), found or "default")


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for piece in content.iter_any():
        rest += piece
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line
        if len(rest) > _LONGEST_LINE:
            raise DriverError("a watch sent a line without an end", driver=DRIVER, step="connect")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

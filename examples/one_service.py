"""A sandbox without any network reaches the one service its owner allows, and nothing else.

.venv/bin/python examples/one_service.py
"""

import asyncio

import dutyfree

ASK = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/').read().decode())"
ELSEWHERE = "import socket; socket.create_connection(('127.0.0.1', 22), 1)"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello from the owner")
    await writer.drain()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    async with server, dutyfree.connect("native") as substrate, substrate.create() as box:
        async with await box.provide(8080, address):
            print("allowed:", (await box.run(["python3", "-c", ASK], timeout_s=20)).text().strip())
        refused = await box.run(["python3", "-c", ELSEWHERE], timeout_s=20)
        print("refused:", refused.stderr.splitlines()[-1].decode())


if __name__ == "__main__":
    asyncio.run(main())

"""Many VCMs in one process: ``python -m tests.bench.nmp_crowd --count N --address A --port P
--folder F``.

Connects them, 32 at a time, and prints "open". Then, for each line that it reads, `VERB COUNT`,
each of the first COUNT VCMs asks that question as often as makes TOTAL in all, a few at a time; or,
for `owed COUNT`, hears and acknowledges. Prints the seconds that took.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import sys
import time
from pathlib import Path
from typing import Any

from cod.security.ca import SERVER_NAME
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import Decoder, Message, encode

AT_ONCE = 8  # questions of one VCM without an answer
BODIES: dict[str, b.Body] = {"ping": b.Ping(), "status": b.Status()}


class Vcm:
    """One connection."""

    def __init__(self, name: str) -> None:
        self.name, self.number, self.decoder = name, 0, Decoder()
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    async def connect(
        self, address: str, port: int, context: ssl.SSLContext, turn: asyncio.Semaphore
    ) -> None:
        async with turn:
            self.reader, self.writer = await asyncio.open_connection(
                address, port, ssl=context, server_hostname=SERVER_NAME, limit=65536
            )
            self.say(b.Hello(self.name, "bench", 0))
            self.pump = asyncio.create_task(self.listen())
            await self.messages.get()

    def say(self, body: b.Body, answers: str = "") -> None:
        self.number += 1
        self.writer.write(
            encode(Message(xml.verb(body), f"m{self.number}", xml.write(body), answers))
        )

    async def listen(self) -> None:
        """Pings of the server's are answered at once."""
        while data := await self.reader.read(65536):
            for message in self.decoder.feed(data):
                if message.verb == "ping":
                    self.say(b.Pong(), message.id)
                else:
                    self.messages.put_nowait(message)

    async def ask(self, verb: str, count: int) -> None:
        data = xml.write(BODIES[verb])
        asked = 0
        for heard in range(count):
            while asked < count and asked - heard < AT_ONCE:
                self.number += 1
                asked += 1
                self.writer.write(encode(Message(verb, f"m{self.number}", data)))
            await self.messages.get()

    async def take(self, count: int) -> None:
        for _ in range(count):
            message = await self.messages.get()
            if message.sequence:
                self.say(b.Ack(message.sequence))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    context = ssl.create_default_context(cafile=str(options.folder / "ca.crt"))
    context.load_cert_chain(options.folder / "c.crt", options.folder / "c.key")
    crowd, turn = [Vcm(f"v{number}") for number in range(options.count)], asyncio.Semaphore(32)
    began = time.monotonic()
    await asyncio.gather(
        *(vcm.connect(options.address, options.port, context, turn) for vcm in crowd)
    )
    print(f"open {time.monotonic() - began}", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        verb, count, total = line.split()
        part: list[Any] = crowd[: int(count)]
        each = int(total) // len(part)
        began = time.monotonic()
        await asyncio.gather(
            *(vcm.take(each) if verb == "owed" else vcm.ask(verb, each) for vcm in part)
        )
        print(time.monotonic() - began, flush=True)


if __name__ == "__main__":
    asyncio.run(main())

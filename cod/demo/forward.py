"""Carries connections from a listening socket of the host to a port inside a lab's network, until
the process is ended.

    python -m cod.demo.forward DESCRIPTOR PORT

A socket belongs to the network namespace in which it was made. So the process can run inside the
lab's namespace and get a socket of the host's by its file descriptor.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import sys
from contextlib import suppress

HOST = "127.0.0.1"


async def main(descriptor: int, port: int) -> None:
    """Accept connections from the socket `descriptor`, and connect each to `port` of this
    namespace's loopback."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, questions = await asyncio.open_connection(HOST, port)
        except OSError:  # the server is being started
            writer.close()
            return
        await asyncio.gather(_pump(reader, questions), _pump(answers, writer))

    server = await asyncio.start_server(carry, sock=socket.socket(fileno=descriptor))
    await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    # PR_SET_PDEATHSIG: the process ends with the program that started it
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))

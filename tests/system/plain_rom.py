"""A DHCP relay that makes the ROMs of QEMU's NICs look plain: ``python -m tests.system.plain_rom
FAR SERVER HOLD``.

Every PXE ROM that QEMU has is an iPXE, and says so in options 77 and 175. This relay leaves those
out of what machines on the network of address FAR ask, so the server sees the DISCOVER of a plain
PXE ROM and answers with its first-stage loader, which the ROM loads and runs as any ROM would.
While the file HOLD exists, acknowledgements are kept back; the first one makes the file HOLD.kept.
"""

from __future__ import annotations

import select
import socket
import sys
from pathlib import Path

from cod.wire import dhcp


def main(far: str, server: str, hold: Path) -> None:
    """Relay for ever."""
    ears, mouth = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    for each in (ears, mouth):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    mouth.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"far\0")
    for each in (ears, mouth):
        each.bind(("", dhcp.SERVER_PORT))
    kept: list[bytes] = []
    print("relays", flush=True)
    while True:
        ready, _, _ = select.select([ears, mouth], [], [], 0.1)
        for one in ready:
            packet = dhcp.decode(one.recv(4096))
            if packet.op == 1:
                options = {
                    code: value
                    for code, value in packet.options.items()
                    if code not in (dhcp.USER_CLASS, dhcp.IPXE)
                }
                asked = packet._replace(
                    options=options, giaddr=socket.inet_aton(far), hops=packet.hops + 1
                )
                ears.sendto(dhcp.encode(asked), (server, dhcp.SERVER_PORT))
            else:
                kept.append(dhcp.encode(packet))
        held = hold.exists()
        if held and any(dhcp.decode(one).options[dhcp.TYPE] == b"\5" for one in kept):
            hold.with_name(f"{hold.name}.kept").touch()
        for answer in [
            one for one in kept if not (held and dhcp.decode(one).options[dhcp.TYPE] == b"\5")
        ]:
            kept.remove(answer)
            mouth.sendto(answer, (dhcp.BROADCAST, dhcp.CLIENT_PORT))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

"""The machine behind an ipmi_sim, as a program that ipmi_sim runs: `chassis.py SOCKET NODE FOLDER
MC get|set WORD...`.

SOCKET speaks the lab daemon's protocol: a lab's own socket, or a test's `bmcs.Switchboard`. FOLDER
keeps the boot device and a log of what was asked.
"""

import json
import socket
import sys
from pathlib import Path


def ask(path: str, node: str, op: str) -> str:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(json.dumps({"op": op, "node": node}).encode() + b"\n")
        return str(json.loads(line.makefile().readline())["power"])


def get(path: str, node: str, folder: Path, what: str) -> None:
    if what == "power":
        print(f"power:{int(ask(path, node, 'status') == 'on')}")
    elif what == "boot":
        print(f"boot:{(folder / 'boot').read_text() if (folder / 'boot').exists() else 'default'}")


def set_(path: str, node: str, folder: Path, what: str, value: str) -> None:
    if what == "power":
        ask(path, node, "on" if value == "1" else "off")
    elif what == "reset":
        ask(path, node, "reset")
    elif what == "shutdown":
        ask(path, node, "soft")
    elif what == "boot":
        (folder / "boot").write_text(value)


def main() -> None:
    path, node, place, _mc, op, *words = sys.argv[1:]
    folder = Path(place)
    with open(folder / "log", "a") as log:
        print(op, *words, file=log)
    if op == "get":
        for what in words:
            get(path, node, folder, what)
    else:
        for what, value in zip(words[::2], words[1::2], strict=True):
            set_(path, node, folder, what, value)


main()

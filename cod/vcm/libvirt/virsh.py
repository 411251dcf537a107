"""A connection to the libvirt of one node, by libvirt's command `virsh`.

One process is kept for each node: a connection by ssh takes half a second, and libvirt's `test:///`
driver forgets its machines when the process ends.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass
from xml.etree import ElementTree

from cod.vcm.batch.commands import PATIENCE, CommandFailed, NotUnderstood
from cod.vcm.libvirt.placement import Size

MARK = "cod-end"
MOST = 2**24  # bytes of an answer
PROMPT = "virsh # "
_MIB = {"b": 2**-20, "bytes": 2**-20, "kib": 2**-10, "k": 2**-10, "mib": 1, "m": 1, "gib": 2**10}
_MIB |= {"g": 2**10, "tib": 2**20, "t": 2**20, "kb": 1e3 / 2**20, "mb": 1e6 / 2**20}
_MIB |= {"gb": 1e9 / 2**20}


@dataclass(frozen=True, slots=True)
class Machine:
    """A virtual machine. `owner`: the title that its VCM gave it; '' for machines of others."""

    name: str
    size: Size
    owner: str = ""


def read(document: str) -> Machine:
    """Return the machine of a libvirt domain document. Raises `NotUnderstood`."""
    try:
        root = ElementTree.fromstring(document)
        memory = root.find("memory")
        assert memory is not None
        unit = _MIB[memory.get("unit", "KiB").lower()]
        # rounded up: less than it takes would overbook the host
        mib = -int(-int(memory.text or "") * unit // 1)
        name = (root.findtext("name") or "").strip()
        cpus = int(root.findtext("vcpu") or 1)
    except (
        ElementTree.ParseError,
        AssertionError,
        KeyError,
        ValueError,
        OverflowError,
    ) as error:
        raise NotUnderstood(f"this is no libvirt domain document: {error!r}") from None
    if not name or cpus < 1 or mib < 1:
        raise NotUnderstood("a domain document needs name, memory and vcpu")
    return Machine(name, Size(cpus, mib), (root.findtext("title") or "").strip())


def owned(document: str, owner: str) -> str:
    """Return the document with the title `owner`, by which a VCM recognises its machines."""
    root = ElementTree.fromstring(document)
    for title in root.findall("title"):
        root.remove(title)
    title = ElementTree.Element("title")
    title.text = owner
    names = [at for at, child in enumerate(root) if child.tag in ("name", "uuid")]
    root.insert(max(names, default=-1) + 1, title)
    return ElementTree.tostring(root, encoding="unicode")


def _quoted(name: str) -> str:
    """Return a machine's name as a word for virsh. Raises `NotUnderstood` for a name that virsh
    could read as more than one word: names come from nodes, and virsh has commands that write local
    files."""
    if not (name.isascii() and name.isprintable()) or "'" in name:
        raise NotUnderstood(f"a machine's name is {name!r}")
    return f"'{name}'"


class Virsh:
    """A process of virsh, started when it is needed and again after its end."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, command: str) -> str:
        """Run a command of virsh and return its output. Raises `CommandFailed`."""
        try:
            output = self._output(command)
        except OSError as error:
            self.close()
            raise CommandFailed(f"virsh: {error.strerror}") from None
        # virsh repeats what it reads, after a prompt that may have come with the last answer
        lines = [
            line
            for at, line in enumerate(output.splitlines())
            if not line.startswith(PROMPT) and (at or line != command)
        ]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error:")]
        if errors:
            raise CommandFailed(f"{self._uri}: {'; '.join(errors)}")
        return "\n".join(lines)

    def _output(self, command: str) -> str:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                ["virsh", "-q", "-c", self._uri],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # else long lines are broken where they are repeated
                env={**os.environ, "LC_ALL": "C", "COLUMNS": "4096"},
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{command}\necho {MARK}\n".encode())
        process.stdin.flush()
        output, until = b"", time.monotonic() + PATIENCE
        end = f"\n{MARK}".encode()
        while end not in output:
            ready, _, _ = select.select(
                [process.stdout], [], [], max(0.0, until - time.monotonic())
            )
            data = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not data or len(output) > MOST:
                self.close()
                if data:
                    raise CommandFailed(f"virsh -c {self._uri}: it says more than {MOST} bytes")
                words = output.decode(errors="replace").strip() or "it does not answer"
                raise CommandFailed(f"virsh -c {self._uri}: {words}")
            output += data
        return output.partition(end)[0].decode(errors="replace")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    # ------------------------------------------------------------ what virtual hosts are asked

    def capacity(self) -> Size:
        found = dict[str, str]()
        for line in self.ask("nodeinfo").splitlines():
            key, _, value = line.partition(":")
            found[key.strip()] = value.strip()
        try:
            return Size(int(found["CPU(s)"]), int(found["Memory size"].split()[0]) // 1024)
        except (KeyError, ValueError, IndexError) as error:
            raise NotUnderstood(f"virsh nodeinfo: {error!r}") from None

    def machines(self) -> dict[str, Machine]:
        """Return the running machines, by name."""
        # not by name: virsh takes a name of digits for the number of another machine
        known = [line.strip() for line in self.ask("list --uuid").splitlines() if line.strip()]
        found = [read(self.ask(f"dumpxml {_quoted(uuid)}")) for uuid in known]
        return {one.name: one for one in found}

    def start(self, document: str) -> None:
        """Start a machine of that document. libvirt forgets the machine when it ends."""
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(document)
            file.flush()
            self.ask(f"create '{file.name}'")

    def shut_down(self, name: str) -> None:
        """Request a machine's system to shut down."""
        self.ask(f"shutdown {_quoted(name)}")

    def end(self, name: str) -> None:
        """End a machine as if its power were cut."""
        self.ask(f"destroy {_quoted(name)}")

"""A rack of whole machines: unmodified firmware in QEMU, a real `cod serve` in their network, ways
to wait for both.

    with rack(machines) as stand:
        stand.power("b1", "on"); stand.reaches("b1", "inactive")

The machines are known by the lab's names, whatever the server calls them. Bounds of waits are
generous: on a busy host an emulated processor is slow, and only what never happens is a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cod.demo.stage import Stage
from cod.lab import control
from cod.lab.spec import LabNetwork, LabNode
from images import build as images
from tests.waiting import until
from trampoline import build as trampoline

PATIENCE = 600.0  # seconds for a step of a machine's way
CHECKOUT = Path(__file__).resolve().parents[2]
TEMPLATES = CHECKOUT / "images"
SNAPSHOTS = CHECKOUT / "build/snapshots"


class Rack(Stage):
    """A stage whose machines are waited for."""

    def power(self, name: str, op: str) -> None:
        """Turn a machine's switch: 'on', 'off' or 'reset'."""
        control.power(self.lab, name, op)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The nodes that the server knows, by the lab's names of their machines."""
        with self.client() as api:
            return {
                self.machines[node["boot_mac"]]["name"]: node
                for node in api.every("/nodes")
                if node["boot_mac"] in self.machines
            }

    def node(self, name: str) -> dict[str, Any]:
        """The machine as the server knows it; {} if it does not."""
        return self.nodes().get(name, {})

    def state(self, name: str) -> str:
        """The state of the machine's node, '' if it is not known yet."""
        return str(self.node(name).get("state", ""))

    def history(self, name: str) -> list[dict[str, Any]]:
        """All that has happened to its node, in order."""
        with self.client() as api:
            return list(api.get(f"/nodes/{self.node(name)['name']}")["history"])

    def states(self, name: str) -> list[str]:
        """All states that it has been in, in their order."""
        return [row["to_state"] for row in self.history(name)]

    def console(self, name: str) -> str:
        """What the machine has written on its serial port."""
        path = control.console(self.lab, name)
        return path.read_bytes().decode(errors="replace") if path.exists() else ""

    def page(self, address: str) -> str:
        """What the system at `address` serves, once it answers."""
        return str(
            self.wait(lambda: self._get(address, "/"), f"the system at {address} serves its page")
        )

    def identity(self, name: str) -> dict[str, Any]:
        """What a hello image on the machine says of itself, {} if it does not answer (yet)."""
        address = self.node(name).get("address")
        said = address and self._get(address, "/identity.json")
        return dict(json.loads(said)) if said else {}

    def booted(self, name: str, times: int) -> dict[str, Any]:
        """Wait until the hello image on the machine has booted `times` times; what it says of
        itself then."""

        def there() -> dict[str, Any]:
            said = self.identity(name)
            return said if said.get("boots") == times else {}

        return dict(
            self.wait(
                there, lambda: f"{name} has booted {times} times; it says {self.identity(name)}"
            )
        )

    def _get(self, address: str, path: str) -> str:
        """Return what is served there, '' if nothing is (yet)."""
        return self.inside(["busybox", "wget", "-q", "-O", "-", f"http://{address}{path}"], 10)

    def bytes_sent(self) -> int:
        """What the server's side has sent into the machines' network so far."""
        assert self._server is not None
        lines = Path(f"/proc/{self._server.pid}/net/dev").read_text().splitlines()
        return int(
            next(line for line in lines if line.strip().startswith("br0:")).split(":")[1].split()[8]
        )

    def wait(
        self, truth: Callable[[], Any], what: str | Callable[[], object], seconds: float = PATIENCE
    ) -> Any:
        """Wait until `truth()` is true; returns it. For machines, which have no clock of ours to
        move."""
        return until(truth, what, seconds, 0.2)

    def reaches(self, name: str, *states: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait until the machine's node is in one of `states`; returns it. Fails at once if it is
        quarantined."""

        def there() -> dict[str, Any]:
            node = self.node(name)
            if node and node["state"] == "quarantined" and "quarantined" not in states:
                raise AssertionError(f"{name} is quarantined: {node['reason']}")
            return node if node and node["state"] in states else {}

        return dict(self.wait(there, f"{name} is {' or '.join(states)}", seconds))


@contextmanager
def rack(
    machines: Sequence[LabNode],
    *,
    patience: float = 1.0,
    policy: str = "",
    networks: Sequence[LabNetwork] = (),
    switch: str = "bridge",
    restored: bool = False,
    made: type[Rack] = Rack,
) -> Iterator[Rack]:
    """A running rack, everything switched off; all of it is gone afterwards. Shows logs if the
    block fails. `patience`, `policy`, `networks` and `switch` are those of `Stage`; `made` founds
    its site another way.

    With `restored`, machines that are new begin in the trampoline (`cod.lab.snapshots`): for
    stories, not for proofs of a boot.

    Its folder is a short one: a socket's path has 108 bytes at most.
    """
    with tempfile.TemporaryDirectory(prefix="cod-") as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COD_LAB_ROOT", f"{place}/labs")
        stand = made(
            Path(place) / "s",
            machines,
            f"rack-{os.getpid()}",
            patience,
            policy,
            networks,
            switch,
            snapshots=SNAPSHOTS if restored else None,
        )
        try:
            with stand:
                yield stand
        except BaseException:
            for path in [
                *sorted(Path(place).glob("s/console/*.log")),
                *Path(place).glob("s/server.log"),
            ]:
                print(f"--- {path.name}\n{path.read_bytes()[-3000:].decode(errors='replace')}")
            raise


def build_all(*names: str) -> None:
    """The trampoline and the images, unless they are up to date."""
    _build_trampoline("lab", CHECKOUT / "build/trampoline", CHECKOUT / "build/cache/trampoline")
    for name in names:
        _build_image(name, CHECKOUT / "build/images", CHECKOUT / "build/cache/images")


# Once a process for all stands: whether a build is up to date is asked of apt, for a CPU second.
_build_trampoline, _build_image = cache(trampoline.build), cache(images.build)


def offer(stand: Rack, *names: str) -> None:
    """Add built images and their templates."""
    for name in names:
        stand.cod("image", "add", name, str(CHECKOUT / f"build/images/{name}.img"), "--wait")
        stand.cod("template", "add", str(TEMPLATES / f"{name}.xml"))


def fat_file(image: Path, mib: int, name: str) -> bytes:
    """A file of the FAT partition that begins `mib` MiB into a disk (also one that a machine is
    using)."""
    done = subprocess.run(
        ["mtype", "-i", f"{image}@@{mib}M", f"::{name}"],
        capture_output=True,
        check=False,
        env=os.environ | {"MTOOLS_SKIP_CHECK": "1"},
    )
    return done.stdout

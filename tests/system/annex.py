"""A stand-in machine in a rack's network, and what a cell needs there to have its master on it.

The master of a batch system wants neither firmware nor a kernel of its own to be tried; its nodes
do. So the head is a host in namespaces (cod/lab/standin.py), plugged into the bridge of the rack's
virtual machines, known to the same server and member of the same vcluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cod.lab import record
from tests.system.qemu import Rack
from tests.system.site_images import make_image
from tests.system.stand import Host, ip
from tests.waiting import until

HEAD = "head"
# Nobody switches the head; whatever else has a power switch is in the lab.
POWERLESS = '[[power]]\nmatch = "52:54:00:c0:*"\ndriver = "none"\n'
TEMPLATE = (
    '<template name="head"><requires><disk><size max="128MiB"/></disk></requires>'
    '<image target="disk" name="head"/></template>'
)


class Annex:
    """What `Cell` and `Host` use of a stand, on a rack."""

    def __init__(self, rack: Rack) -> None:
        self.rack = rack
        self.folder = self.socket_folder = rack.folder
        self.namespace = record.namespace(rack.lab)
        self.site_file = rack.site_file
        self.cod = rack.cod
        self.hosts: dict[str, Host] = {}

    def wait(self, truth: Callable[[], Any], seconds: float = 60.0, what: str = "") -> Any:
        """Wait until `truth()` is true; returns it."""
        return until(truth, what or "what the cell waits for", seconds, 0.1)


@contextmanager
def annex(rack: Rack, heads: Sequence[str] = (HEAD,)) -> Iterator[Annex]:
    """The rack with machines for heads beside it, switched off, and a template for them alone."""
    rack.folder.parent.chmod(0o711)  # jobs are other people's
    made = Annex(rack)
    try:
        for number, name in enumerate(heads):
            host = made.hosts[name] = Host(made, name, 99 - number, 64 << 20)
            rack.machines[host.mac] = {"name": name}
        rack.cod("image", "add", HEAD, str(make_image(rack.folder, HEAD)), "--wait")
        _add_template(rack, TEMPLATE)
        yield made
    finally:
        for host in made.hosts.values():
            host.off()
            print(f"--- {host.name}\n{host.console()[-2000:]}")
            ip("netns", "del", host.namespace)


def _add_template(rack: Rack, document: str) -> None:
    path = Path(rack.folder / "template.xml")
    path.write_text(document)
    rack.cod("template", "add", str(path))

"""`make try`: a site to look around in: a lab of four machines, a server, people, groups, images;
until Ctrl-C.

    python -m cod.demo.tour [--out build/try] [--port 8443]

The server lives in the lab's network, which nothing outside reaches; its portal alone is carried to
the host's loopback.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Event
from types import FrameType

from rich.console import Console

from cod import data
from cod.client import ApiError, Unreachable
from cod.demo.forward import HOST
from cod.demo.stage import Stage, StageError
from cod.lab import control
from cod.lab.spec import LabDisk, LabNode
from cod.model import Refused

LAB = "try"
MACHINES = (  # three of one type, and one of another
    *(
        LabNode(f"bios{number}", "bios", disks=(LabDisk(2 << 30, "virtio"),))
        for number in (1, 2, 3)
    ),
    LabNode("uefi1", "uefi", memory=768, disks=(LabDisk(2 << 30, "virtio"),)),
)
IMAGES = ("hello-a", "hello-b")
INSIDE = 8443  # the portal's port in the lab's network
TABLES = """
[api]
listen = ["127.0.0.1:{inside}"]
names = ["localhost"]

[signin]
url = "https://localhost:{port}"
"""
PEOPLE = (
    ("ann", "Ann Owner", "physics", "owner"),
    ("bob", "Bob Member", "physics", "member"),
    ("cleo", "Cleo Owner", "biology", "owner"),
)
WORDS = """
The portal runs: [bold]https://localhost:{port}/[/bold]
(its certificate is its own: let the browser go on all the same)

Sign in as the administrator by this link, which works once:
    [bold]{admin}[/bold]
and, in a private window, as the owner of the group physics:
    [bold]{owner}[/bold]

 1. Choose a password; you are signed in.
 2. Nodes: four machines boot under QEMU and report their hardware; it takes a minute or two.
 3. A node's page: its hardware, its history, its console as it is written.
 4. As the owner: New virtual cluster. Name it, take the template hello-a and two nodes; see whether it would work.
 5. The cluster's page: watch the nodes being installed, started, and in use.
 6. As the administrator: Groups. Members, priorities, leases, quotas.
 7. People: make a link for Cleo, who owns biology, and open it in another private window.
 8. As Cleo, ask for two nodes: two are free, of two types. The request waits, and its page says why.
 9. As the first owner, release a node: it is erased, and Cleo's cluster gets it.
10. As the administrator: Audit. Who changed what, you among them.

From another terminal:  {cod} --site {site} node list --watch
Ctrl-C ends the server and switches the machines off; nothing of them stays but {out}.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m cod.demo.tour", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("build/try"))
    parser.add_argument("--lab", default=LAB, help="the lab's name")
    parser.add_argument(
        "--port",
        type=int,
        default=8443,
        help="the portal's on this host; another, if that is taken",
    )
    options = parser.parse_args(arguments)
    out, console = options.out.resolve(), Console(highlight=False, soft_wrap=True)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        control.down(options.lab)  # the rest of a killed tour, which may hold the port
        with closing(_listening(options.port)) as listener:
            port = listener.getsockname()[1]
            console.print("Four machines and a server are made ready …")
            tables = TABLES.format(inside=INSIDE, port=port)
            with Stage(
                out,
                MACHINES,
                options.lab,
                policy=tables,
                switch="ovs",
                snapshots=data.path("build") / "snapshots",
            ) as stage:
                _carry(stage, listener)
                links = _furnish(stage)
                for machine in MACHINES:
                    control.power(options.lab, machine.name, "on")
                console.print(
                    WORDS.format(
                        port=port,
                        admin=links["ada"],
                        owner=links["ann"],
                        site=stage.site_file,
                        cod=Path(sys.executable).with_name("cod"),
                        out=out,
                    )
                )
                Event().wait()
    except KeyboardInterrupt:
        console.print("\nThe server has stopped, and the machines are off.")
        return 0
    except (StageError, Unreachable, ApiError, Refused) as error:
        console.print(f"The tour failed: {error}", style="bold red")
        return 1
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _listening(port: int) -> socket.socket:
    """Return a socket that listens on the host's loopback, on `port`, or on another port if that is
    taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError:
        listener.bind((HOST, 0))
    listener.listen(64)
    return listener


def _carry(stage: Stage, listener: socket.socket) -> None:
    """Start the process that carries connections from the listening socket into the lab's network.
    It ends with the lab, or with this process."""
    argv = [sys.executable, "-m", "cod.demo.forward", str(listener.fileno()), str(INSIDE)]
    environment = os.environ | {"PYTHONPATH": str(data.path("cod").parent)}
    control.run_inside(
        stage.lab,
        argv,
        pass_fds=(listener.fileno(),),
        start_new_session=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def _furnish(stage: Stage) -> dict[str, str]:
    """Make people, groups, images and templates; return the link of each person, by name."""
    links = {
        "ada": str(
            stage.cod("user", "add", "ada", "--admin", "--full-name", "Ada Administrator")["link"]
        )
    }
    for group, priority in (("physics", 5), ("biology", 1)):
        stage.cod("group", "create", group, "--priority", str(priority))
    for name, full_name, group, role in PEOPLE:
        links[name] = str(stage.cod("user", "add", name, "--full-name", full_name)["link"])
        stage.cod("member", "set", group, name, role)
    for image in IMAGES:
        stage.cod("image", "add", image, str(data.path(f"build/images/{image}.img")), "--wait")
        stage.cod("template", "add", str(data.path(f"images/{image}.xml")))
    return links


if __name__ == "__main__":
    sys.exit(main())

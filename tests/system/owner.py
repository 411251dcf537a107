"""Somebody who came by an invitation: a password, keys, and `cod` on a computer of theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from cod.lab import network, record
from tests.system.login import Key
from tests.system.qemu import Rack

PASSWORD = "tea in the machine room"
API = "127.0.0.1:8070"


class Owner:
    """A person with a role in a group. The site's API listens on `API`, without TLS."""

    def __init__(
        self, stand: Rack, name: str, keys: list[Key], role: str = "owner", group: str = "physics"
    ) -> None:
        self.inside = network.inside(record.namespace(stand.lab), [])
        self.environment = os.environ | {"COD_SERVER": f"http://{API}"}
        link = stand.cod("invite", "group", group, "--role", role)["link"]
        self.cod("invite", "accept", link, "--name", name, say=f"{PASSWORD}\n{PASSWORD}\n")
        self.environment["COD_TOKEN"] = str(
            self.cod("session", "start", name, say=f"{PASSWORD}\n")["token"]
        )
        for key in keys:
            self.cod("key", "add", str(key.path.with_suffix(".pub")))

    def cod(self, *words: str, say: str = "") -> Any:
        """Run a command; `say` is typed. Returns its JSON."""
        done = subprocess.run(
            [*self.inside, sys.executable, "-m", "cod", *words, "--json"],
            input=say,
            text=True,
            capture_output=True,
            check=False,
            env=self.environment,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout[done.stdout.index("{") :])

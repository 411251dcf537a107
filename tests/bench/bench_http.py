"""An image over HTTP from the page cache, 1, 4 and 16 clients at once, against nginx with sendfile.
Clients: curl."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.bench.arena import SERVER, Arena, Measure, Run, Smoke, alternate, compare, python, write

SIZE = 1 << 30
NGINX = """
daemon off; worker_processes 1; user root; pid {root}/nginx.pid; error_log /dev/null;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_timeout 30;
  client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;
  uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
  server {{ listen {server}:8070; location / {{ root {root}; }} }}
}}
"""
SMOKE = Smoke(rows=("http image, ",), sizes={"SIZE": 4 << 20}, system=True, needs=("nginx",))


class Bench:
    """Both servers run all the time, each on a port of its own; only one is asked at a time."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def ready(self, port: int) -> Callable[[], bool]:
        command = [
            "ip",
            "netns",
            "exec",
            self.arena.client_side,
            "curl",
            "-sfI",
            "-m",
            "1",
            f"http://{SERVER}:{port}/files/image",
        ]
        return lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0

    def round(self, port: int, clients: int) -> Callable[[], Run]:
        repeat = max(1, 4 // clients)  # one short transfer would measure curl's start
        url = f"http://{SERVER}:{port}/files/image"
        command = [
            "curl",
            "-sf",
            *(word for _ in range(repeat) for word in ("-o", "/dev/null", url)),
        ]
        return lambda: self.arena.measured([command] * clients, clients * repeat * SIZE / 1e9)


def main() -> None:
    measures: list[Measure] = []
    with ExitStack() as stack:
        root = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(dir="/var/tmp", prefix="cod-bench-http-")
            )
        )
        root.chmod(0o755)
        (root / "files").mkdir()
        with (root / "files" / "image").open("wb") as image:
            for _ in range(SIZE >> 20):
                image.write(os.urandom(1 << 20))
        (root / "nginx.conf").write_text(NGINX.format(root=root, server=SERVER))
        bench = Bench(stack.enter_context(Arena("http")))
        stack.enter_context(
            bench.arena.serving(
                python("tests.bench.serve", "http", root / "files", SERVER, 8069), bench.ready(8069)
            )
        )
        stack.enter_context(
            bench.arena.serving(
                [shutil.which("nginx") or "/usr/sbin/nginx", "-c", root / "nginx.conf"],
                bench.ready(8070),
            )
        )
        for clients in (1, 4, 16):
            print(f"{clients} clients (GB)")
            results = alternate(
                {"cod": bench.round(8069, clients), "nginx": bench.round(8070, clients)}
            )
            measures += compare(
                f"http image, {clients} clients", "GB", results, "cod", "nginx", ">= 0.9"
            )
    write("http", measures)


if __name__ == "__main__":
    main()

"""Runs the machine shapes and writes docs/hardware.md: ``python -m tests.system.matrix [--jobs N]
[NAME...]``.

Each job is a process with a server of its own, whose machines run one after another. A machine
leaves build/matrix/NAME.json. Shapes can be run again one by one: the page keeps the rows of those
without a result; ``--page`` makes only the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from cod.lab.spec import LabDisk, LabNode
from tests.system import shapes
from tests.system.qemu import CHECKOUT, build_all, offer
from tests.system.shapes import SHAPES, Shape

RESULTS = CHECKOUT / "build/matrix"
PAGE = CHECKOUT / "docs/hardware.md"
SECONDS = 900.0  # for each of the steps to inactive and to active
ORDINALS = ("first", "second", "third", "fourth")
BEGIN, END = "<!-- table: made by make matrix -->", "<!-- end of table -->"


def main(argv: list[str]) -> int:
    """Run the named shapes (all, if none is), write the page, and return the number of unexpected
    outcomes."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.matrix")
    parser.add_argument("names", nargs="*", metavar="NAME", help="shapes of tests/system/shapes.py")
    parser.add_argument("--jobs", type=int, default=1, help="how many machines at once")
    parser.add_argument(
        "--here", action="store_true", help="run the shapes in this process, write no page"
    )
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    options = parser.parse_args(argv)
    wanted = [] if options.page else [shapes.named(name) for name in options.names] or list(SHAPES)
    if options.here:
        return run(wanted)
    if wanted:
        build_all(shapes.IMAGE)
    # need a server of their own: a vcluster is where most nodes are
    far = [shape for shape in wanted if shape.is_far]
    near = [shape for shape in wanted if not shape.is_far]
    with ThreadPoolExecutor(options.jobs) as pool:
        failed = sum(
            pool.map(
                _in_process, [*(near[job :: options.jobs] for job in range(options.jobs)), far]
            )
        )
    write_page({path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")})
    return failed


def run(wanted: Sequence[Shape]) -> int:
    """Bring the machines up one after another; return the number of unexpected outcomes."""
    failed = 0
    with shapes.rack_of(wanted) as stand:
        offer(stand, shapes.IMAGE)
        for shape in wanted:
            try:
                outcome = shapes.bring_up(stand, shape, SECONDS)
            except AssertionError as error:
                outcome = shapes.Outcome(sentence=str(error).splitlines()[0])
            (RESULTS / f"{shape.name}.json").write_text(
                json.dumps(asdict(outcome), indent=1) + "\n"
            )
            expected = shapes.as_expected(shape, outcome)
            failed += not expected
            print(
                f"{shape.name}: {'as expected' if expected else 'NOT as expected'}: {outcome}",
                flush=True,
            )
    return failed


def _in_process(wanted: Sequence[Shape]) -> int:
    if not wanted:
        return 0
    RESULTS.mkdir(parents=True, exist_ok=True)
    names = [shape.name for shape in wanted]
    return subprocess.run(
        [sys.executable, "-m", "tests.system.matrix", "--here", *names], cwd=CHECKOUT, check=False
    ).returncode


def write_page(results: dict[str, dict[str, Any]]) -> None:
    """Replace the table between the page's marks; a shape without a result keeps its row."""
    text = PAGE.read_text()
    known = {tuple(line.split(" | ")[:4]): line for line in text.splitlines()}
    rows = [
        BEGIN,
        "",
        "| Firmware | Network cards | Disks | | Inactive | Primed | Active |",
        "|---|---|---|---|---|---|---|",
    ]
    table = [_row(shape, results.get(shape.name)) for shape in SHAPES]
    table = [
        known.get(tuple(row.split(" | ")[:4]), row) if "not tried" in row else row for row in table
    ]
    active = sum(row.endswith(" s |") for row in table)
    rows += [*table, "", f"{active} of {len(SHAPES)} shapes become active.", "", END]
    before, after = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
    PAGE.write_text(before + "\n".join(rows) + after)


def described(shape: Shape) -> list[str]:
    """Return the cells of the page that say what the machine is."""
    node = shape.node
    firmware = {"bios": "BIOS", "uefi": "UEFI"}[node.firmware] + (
        " over HTTP" if node.netboot == "http" else ""
    )
    return [
        firmware,
        ", ".join(_nic(node, n) for n in range(len(node.nics))),
        _disks(node.disks),
        _notes(shape),
    ]


def _row(shape: Shape, outcome: dict[str, Any] | None) -> str:
    cells = described(shape)
    if outcome is None:
        end = ["not tried"] * 3
    elif outcome["active"] is None:
        seconds = [
            f"{outcome[key]:.0f} s" if outcome[key] is not None else ""
            for key in ("inactive", "primed")
        ]
        end = [
            *seconds,
            (
                "refused: "
                if shapes.as_expected(shape, shapes.Outcome(**outcome))
                else "**failed**: "
            )
            + outcome["sentence"],
        ]
    else:
        end = [f"{outcome[key]:.0f} s" for key in ("inactive", "primed", "active")]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, *end)) + " |"


def _nic(node: LabNode, position: int) -> str:
    nic = node.nics[position]
    rom = " with ROM" if node.firmware == "uefi" and nic.has_rom("uefi") else ""
    return nic.model.removesuffix("-net-pci") + rom


def _disks(disks: tuple[LabDisk, ...]) -> str:
    names = Counter(
        (
            "AHCI"
            if disk.bus == "ahci"
            else "NVMe"
            if disk.bus == "nvme"
            else disk.bus.replace("usb", "USB")
        )
        + (" with 4096-byte sectors" if disk.sector == 4096 else "")
        for disk in disks
    )
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in names.items())


def _notes(shape: Shape) -> str:
    said = []
    for kind, word in (("nic", "card"), ("disk", "disk")):
        first = next((device for device in shape.node.boot if device.startswith(kind)), f"{kind}0")
        if first != f"{kind}0":
            said.append(f"the firmware tries the {ORDINALS[int(first[len(kind) :])]} {word} first")
    return "; ".join([*said, *([shape.note] if shape.note else [])])


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    sys.exit(main(sys.argv[1:]))

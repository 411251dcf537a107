"""A machine's description in a phrase: '96 CPUs, 2 TiB, 4 x A100 PCIe 40GB, 25 Gb/s'. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from xml.etree import ElementTree

from cod.model import TypeRules
from cod.policy.hardware import equal
from cod.quantity import exact_size

_GPU_VENDORS = ("10de", "1002", "8086")  # as trampoline/pci.py counts them
_GPU_CLASSES = ("03", "12")


def phrase(report_xml: str, name_of: Callable[[str, str], str]) -> str:
    """Return a phrase about the machine of a hardware report, in the terms in which machines are
    sold. `name_of`: returns a PCI device's name by the ids of vendor and device, '' if unknown."""
    root = ElementTree.fromstring(report_xml)
    found = []
    if cpus := sum(int(cpu.get("count", "0")) for cpu in root.iterfind("cpu")):
        found.append(f"{cpus} CPU{'s' if cpus > 1 else ''}")
    for memory in root.iterfind("memory"):
        mib = equal.rounded("memory/mib", memory.get("mib", ""), TypeRules())
        found.append(exact_size(int(mib) * 2**20))
    for gpu in root.iterfind("gpu"):
        found.append(f"{gpu.get('count')} x {_gpu_name(root, name_of)}")
    if speed := max((int(nic.get("speed", "0")) for nic in root.iterfind("nic")), default=0):
        found.append(f"{speed / 1000:g} Gb/s" if speed >= 1000 else f"{speed} Mb/s")
    return ", ".join(found)


def _gpu_name(root: ElementTree.Element, name_of: Callable[[str, str], str]) -> str:
    """Return the product name of the most frequent GPU: the text in brackets of 'GA100 [A100 PCIe
    40GB]'."""
    names = Counter(
        name_of(pci.get("vendor", ""), pci.get("device", ""))
        for pci in root.iterfind("pci")
        if pci.get("vendor") in _GPU_VENDORS and pci.get("class", "")[:2] in _GPU_CLASSES
    )
    name = next(iter(names.most_common(1)), ("", 0))[0]
    sold = re.search(r"\[(.+)\]", name)
    return sold[1] if sold else name or "GPU"

"""Names of PCI devices, from a list as distributions ship it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cod import model
from cod.web.api import pci_names
from cod.web.api.resources.nodes import pci_devices

LIST = """\
# a comment
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t740f  Aldebaran/MI200 [Instinct MI210]
10de  NVIDIA Corporation
\t20b0  GA100 [A100 SXM4 40GB]
\t\t10de 1450  a board

C 03  Display controller
\t00  VGA compatible controller
\t\t00  VGA controller
\t02  3D controller
"""


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "pci.ids"
    path.write_text(LIST)
    monkeypatch.setattr(pci_names, "PLACES", (tmp_path / "absent", path))
    return path


def test_the_list_names_classes_and_devices(listed: Path) -> None:
    names = pci_names.installed()
    assert names.of_class("0302") == "3D controller"
    assert names.of_class("0380") == "Display controller"
    assert names.of_device("10de", "20b0") == "NVIDIA Corporation GA100 [A100 SXM4 40GB]"
    assert names.of_device("1002", "ffff") == "Advanced Micro Devices, Inc. [AMD/ATI]"
    assert names.of_device("dead", "beef") == ""


def test_a_list_that_is_replaced_is_read_again(listed: Path) -> None:
    assert pci_names.installed().of_device("10df", "1") == ""
    listed.write_text(LIST.replace("10de  NVIDIA", "10df  Emulex"))
    assert pci_names.installed().of_device("10df", "1") == "Emulex Corporation"


def test_the_reply_of_a_node_has_names(listed: Path) -> None:
    pci = '<pci slot="0000:3b:00.0" class="0302" vendor="10de" device="20b0" driver="nvidia"/>'
    node = model.Node(
        **{field.name: None for field in dataclasses.fields(model.Node)}
        | {"attributes": f'<node version="1">{pci}</node>'}
    )
    [device] = pci_devices(node)
    assert (device.slot, device.class_name, device.driver) == (
        "0000:3b:00.0",
        "3D controller",
        "nvidia",
    )
    assert (device.name, device.subvendor) == ("NVIDIA Corporation GA100 [A100 SXM4 40GB]", "")


def test_without_a_list_there_are_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pci_names, "PLACES", (tmp_path / "absent",))
    assert pci_names.installed() == pci_names.PciNames()

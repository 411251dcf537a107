"""Lists of machines of other tools. Each text here was written from the tool's documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cod.cli.nodes.inventory import MOST, import_
from cod.machine_lists import FORMATS, reader
from cod.machine_lists.entry import ListedMachine, NotTaken, UnreadableList, label
from cod.web.api.resources import inventory

A, B, C = "52:54:00:00:00:0a", "52:54:00:00:00:0b", "52:54:00:00:00:0c"
UUID = "4c4c4544-0042-3510-8054-b4c04f4e3232"


def read(format_: str, path: Path) -> tuple[list[ListedMachine], list[NotTaken]]:
    found = list(reader(format_)(path))
    machines = [one for one in found if isinstance(one, ListedMachine)]
    return machines, [one for one in found if isinstance(one, NotTaken)]


def text(tmp_path: Path, content: str, name: str = "list") -> Path:
    path = tmp_path / name
    path.write_text(content)
    return path


def test_the_help_of_the_command_names_each_format() -> None:
    assert all(name in (import_.help or "") for name in FORMATS)


def test_the_command_sends_as_many_machines_as_the_server_takes() -> None:
    assert MOST == inventory.MOST


@pytest.mark.parametrize(
    ("name", "host"),
    [("R1_07.example.org", "r1-07"), ("n1", "n1"), (" -N 1- ", "n-1"), ("ß", ""), ("", "")],
)
def test_names_become_dns_labels(name: str, host: str) -> None:
    assert label(name) == host


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table(tmp_path: Path, delimiter: str) -> None:
    content = (
        "\ufeffName,MAC,Serial,Rack,BMC,Position,Tags,Colour\n"
        f"r1-01,{A.upper()} {B.replace(':', '-')},B5TN222,R1,10.1.0.1,U7,GPU on_loan,red\n"
        "\n"
        "r1-02,not a mac,,R1,,,,\n"
    ).replace(",", delimiter)
    machines, left = read("csv", text(tmp_path, content))
    assert machines == [
        ListedMachine(
            *("line 2", "r1-01", (A, B), "", "B5TN222", "r1", "ipmi", "10.1.0.1"),
            position="7",
            tags=("gpu", "on_loan"),
        ),
        ListedMachine("line 4", "r1-02", (), block="r1"),
    ]
    assert [(one.where, one.what) for one in left] == [
        ("line 1", "colour"),
        *(("line 4", word) for word in ("not", "a", "mac")),
    ]


def test_a_line_without_a_name_is_left_out(tmp_path: Path) -> None:
    machines, left = read("csv", text(tmp_path, f"name,mac\n,{A}\nn2,{B}\n"))
    assert [one.name for one in machines] == ["n2"]
    assert [(one.where, one.what) for one in left] == [("line 2", A)]


def test_a_table_without_names_is_refused(tmp_path: Path) -> None:
    machines, left = read("csv", text(tmp_path, f"mac\n{A}\n"))
    assert (machines, left[-1].reason) == ([], "one column has to be 'name'")


def test_isc_dhcpd(tmp_path: Path) -> None:
    content = f"""
    option domain-name "x";  # host no {{ hardware ethernet {C}; }}
    include "/etc/dhcp/more.conf";
    subnet 10.0.0.0 netmask 255.0.0.0 {{
      group {{
        next-server 10.0.0.1;
        host a {{ hardware ethernet {A.upper()}; fixed-address 10.0.0.7; option host-name "n1"; }}
        host b.example.org {{
          hardware ethernet {B};
          filename "pxelinux.0"; }}
      }}
    }}
    host c {{ hardware ethernet 1:2; }}
    """
    machines, left = read("dhcpd", text(tmp_path, content))
    assert machines == [
        ListedMachine("line 7", "n1", (A,)),
        ListedMachine("line 8", "b", (B,)),
        ListedMachine("line 13", "c"),
    ]
    assert [(one.where, one.what) for one in left] == [
        ("line 3", "include"),
        ("line 7", "fixed-address"),
        ("line 10", "filename"),
        ("line 13", "1:2"),
    ]


def test_isc_dhcpd_with_a_brace_missing_says_so(tmp_path: Path) -> None:
    _, left = read("dhcpd", text(tmp_path, f"host a {{ hardware ethernet {A};"))
    assert [one.what for one in left] == ["braces"]


def test_dnsmasq(tmp_path: Path) -> None:
    content = (
        "# hosts\ndomain=x\n"
        f"dhcp-host={A},{B},set:rack1,10.0.0.7,R1-01,45m\n"
        f"{C},r1-02,infinite # a line of dhcp-hostsfile\n"
        "dhcp-host=11:22:33:*:*:*,r1-03\n"
    )
    machines, left = read("dnsmasq", text(tmp_path, content))
    assert machines == [
        ListedMachine("line 3", "r1-01", (A, B)),
        ListedMachine("line 4", "r1-02", (C,)),
        ListedMachine("line 5", "r1-03"),
    ]
    assert [one.what for one in left] == [
        *("domain", "set:rack1", "address", "lease time", "lease time", "11:22:33:*:*:*")
    ]


def test_ethers_with_hosts(tmp_path: Path) -> None:
    text(tmp_path, "10.0.0.8 r1-02.example.org r1-02\n", "hosts")
    content = f"{A} r1-01\n52:54:0:0:0:b 10.0.0.8\n{C} 10.0.0.9\nnonsense\n"
    machines, left = read("ethers", text(tmp_path, content))
    assert machines == [
        ListedMachine("line 1", "r1-01", (A,)),
        ListedMachine("line 2", "r1-02", (B,)),
    ]
    assert [one.what for one in left] == ["10.0.0.9", "nonsense"]


def test_warewulf_with_profiles(tmp_path: Path) -> None:
    content = f"""
nodeprofiles:
  default:
    image name: rocky-9
    ipmi: {{username: admin, interface: lanplus}}
    network devices: {{default: {{device: eth0}}}}
  late: {{ipmi: {{ipaddr: 10.1.0.99}}}}
nodes:
  n1:
    profiles: [default, late, missing]
    primary network: second
    network devices:
      default: {{hwaddr: "{A}"}}
      second: {{hwaddr: 52:54:00:12:34:56}}
    ipmi: {{ipaddr: 10.1.0.1}}
  n2: {{}}
  03:
"""
    machines, left = read("warewulf", text(tmp_path, content))
    assert machines == [
        ListedMachine("node n1", "n1", ("52:54:00:12:34:56", A), driver="ipmi", address="10.1.0.1"),
        ListedMachine("node n2", "n2"),
        ListedMachine("node 03", "03"),
    ]
    assert [one.what for one in left] == ["image name", "ipmi username"]


def test_kea(tmp_path: Path) -> None:
    content = f"""
// comments of three kinds
{{ "Dhcp4": {{
  <?include "/etc/kea/more.json"?>
  "reservations": [ {{ "hw-address": "{A.upper()}", "hostname": "n1.example.org" }} ],
  /* "reservations": [ {{ "hw-address": "{C}" }} ] */
  "subnet4": [ {{ "subnet": "10.0.0.0/24", "reservations": [
      {{ "hw-address": "{B}", "hostname": "n2#//", "ip-address": "10.0.0.7", }}, # the last comma
      {{ "client-id": "01:02", "hostname": "n3" }},
      {{ "hw-address": "1:2", "hostname": "n4" }} ] }} ],
  "shared-networks": [ {{ "name": "x", "subnet4": [
      {{ "subnet": "10.1.0.0/24", "reservations": [ {{ "hw-address": "{C}" }} ] }} ] }} ]
}} }}
"""
    machines, left = read("kea", text(tmp_path, content))
    assert machines == [
        ListedMachine("reservation 1", "n1", (A,)),
        ListedMachine("10.0.0.0/24, reservation 1", "n2", (B,)),
        ListedMachine("10.0.0.0/24, reservation 3", "n4"),
        ListedMachine("10.1.0.0/24, reservation 1", "", (C,)),
    ]
    assert [(one.where, one.what) for one in left] == [
        ("the file", "include /etc/kea/more.json"),
        ("10.0.0.0/24, reservation 1", "ip-address"),
        ("10.0.0.0/24, reservation 2", "client-id"),
        ("10.0.0.0/24, reservation 3", "1:2"),
    ]
    machines, _ = read("kea", text(tmp_path, f'[{{"hw-address": "{A}", "hostname": "n1"}}]'))
    assert [one.name for one in machines] == ["n1"]


@pytest.mark.parametrize(
    "content",
    [
        '"reservations": [RESERVATION], INCLUDE',
        'INCLUDE, "reservations": [RESERVATION]',
        '"reservations": [RESERVATION, INCLUDE]',
        '"reservations": [INCLUDE, RESERVATION]',
        '"option-def": INCLUDE, "reservations": [RESERVATION]',
        '"reservations": [RESERVATION], "option-def": INCLUDE',
    ],
)
def test_an_include_of_kea_is_left_out_wherever_it_stands(tmp_path: Path, content: str) -> None:
    content = content.replace("INCLUDE", '<?include "/etc/kea/more.json"?>')
    content = content.replace("RESERVATION", f'{{"hw-address": "{A}"}}')
    machines, left = read("kea", text(tmp_path, f'{{"Dhcp4": {{{content}}}}}'))
    assert machines == [ListedMachine("reservation 1", "", (A,))]
    assert [one.what for one in left] == ["include /etc/kea/more.json"]


def test_foreman(tmp_path: Path) -> None:
    card = {"type": "interface", "virtual": False, "provision": False}
    host = {
        "name": "n1.example.org",
        "uuid": UUID,
        "hostgroup_name": "compute",
        "interfaces": [
            card | {"mac": A},
            card | {"mac": B, "provision": True},
            card | {"mac": C, "virtual": True},
            card | {"mac": C, "type": "bond"},
            {"type": "bmc", "mac": C, "ip": "10.1.0.1", "provider": "IPMI", "password": "secret"},
        ],
    }
    unknown = {"type": "bmc", "ip": "10.1.0.2", "provider": "SSH"}
    hosts = [host, {"name": "n2", "mac": C, "interfaces": [unknown]}]
    for said in (hosts, {"total": 2, "results": hosts}):
        machines, left = read("foreman", text(tmp_path, json.dumps(said)))
        assert machines == [
            ListedMachine("host n1.example.org", "n1", (B, A), UUID, "", "", "ipmi", "10.1.0.1"),
            ListedMachine("host n2", "n2", (C,)),
        ]
        assert [one.what for one in left] == ["hostgroup_name", "BMC SSH"]
        assert "secret" not in str(left)


def test_xcat_stanzas(tmp_path: Path) -> None:
    content = f"""# <xCAT data object stanza file>

n1:
    objtype=node
    bmc=10.1.0.1
    bmcpassword=secret
    groups=compute,all
    mac={A}!n1|{B}!*NOIP*
    mgt=ipmi
    rack=R1
    u=12-13
    serial=B5TN222

n2:
    objtype=node
    bmc=10.1.0.2
    mac={C}
    mgt=hmc
"""
    machines, left = read("xcat", text(tmp_path, content))
    assert machines == [
        ListedMachine(
            *("node n1", "n1", (A, B), "", "B5TN222", "r1", "ipmi", "10.1.0.1"),
            position="12-13",
            tags=("compute",),
        ),
        ListedMachine("node n2", "n2", (C,)),
    ]
    assert [one.what for one in left] == ["bmcpassword", "mgt=hmc"]
    assert "secret" not in str(left)


def test_xcat_tables(tmp_path: Path) -> None:
    text(tmp_path, f'#node,interface,mac,comments,disable\n"n1","eth0","{A}!n1",,\n', "mac.csv")
    text(
        tmp_path,
        "#node,bmc,bmcport,taggedvlan,bmcid,username,password,comments,disable\n"
        '"compute","|n(\\d+)|10.1.0.($1+0)|",,,,"a","b",,\n',
        "ipmi.csv",
    )
    text(tmp_path, '#node,groups,status\n"n1","all,old",\n', "nodelist.csv")
    text(tmp_path, '#node,rack,u,chassis\n"n1","R1","7",\n"|n.*|","R9",,\n', "nodepos.csv")
    machines, left = read("xcat", tmp_path)
    assert machines == [
        ListedMachine("node n1", "n1", (A,), block="r1", position="7", tags=("old",))
    ]
    assert [(one.where, one.what) for one in left] == [
        ("ipmi.csv, line 2", "compute"),
        ("nodepos.csv, line 3", "|n.*|"),
    ]


def test_cobbler(tmp_path: Path) -> None:
    system = {
        "name": "n1.example.org",
        "profile": "rocky",
        "interfaces": {
            "eth0": {"mac_address": A, "interface_type": "na"},
            "eth1": {"mac_address": "", "interface_type": ""},
            "bond0": {"mac_address": B, "interface_type": "bond"},
        },
        "power_type": "ipmilan",
        "power_address": "10.1.0.1",
        "power_pass": "secret",
    }
    text(tmp_path, json.dumps(system), "n1.json")
    text(tmp_path, json.dumps({"name": "n2", "power_type": "apc", "power_address": "x"}), "n2.json")
    machines, left = read("cobbler", tmp_path)
    assert machines == [
        ListedMachine("n1.json, n1.example.org", "n1", (A,), driver="ipmi", address="10.1.0.1"),
        ListedMachine("n2.json, n2", "n2"),
    ]
    assert [one.what for one in left] == ["profile", "power_pass", "power_type apc"]


def test_maas(tmp_path: Path) -> None:
    machine = {
        "hostname": "n1",
        "system_id": "abc",
        "hardware_uuid": UUID,
        "hardware_info": {"system_serial": "B5TN222"},
        "zone": {"name": "rack1"},
        "tag_names": ["gpu", "Virtual"],
        "pool": {"name": "default"},
        "boot_interface": {"mac_address": B},
        "interface_set": [
            {"mac_address": A, "type": "physical"},
            {"mac_address": C, "type": "bond"},
        ],
        "power_type": "redfish",
        "power_parameters": {"power_address": "10.1.0.1", "power_pass": "secret"},
    }
    path = text(tmp_path, json.dumps([machine, {"hostname": "n2", "power_type": "ipmi"}]))
    machines, left = read("maas", path)
    assert machines == [
        ListedMachine(
            *("machine n1", "n1", (B, A), UUID, "B5TN222", "rack1", "redfish", "10.1.0.1"),
            tags=("gpu", "virtual"),
        ),
        ListedMachine("machine n2", "n2"),
    ]
    assert [one.what for one in left] == ["pool", "power_type ipmi"]


def test_netbox_as_json_and_csv(tmp_path: Path) -> None:
    device = {
        "name": "n1",
        "serial": "B5TN222",
        "rack": {"name": "R1"},
        "position": 7.0,
        "tags": [{"name": "On loan", "slug": "on-loan"}, "gpu"],
        "oob_ip": {"address": "10.1.0.1/24"},
        "interfaces": [
            {"mac_address": A, "mgmt_only": False},
            {"mac_address": B, "mgmt_only": True},
        ],
    }
    machines, left = read("netbox", text(tmp_path, json.dumps({"results": [device]})))
    of_device = ("", "B5TN222", "r1", "ipmi", "10.1.0.1", "", "7", ("on-loan", "gpu"))
    assert machines == [ListedMachine("device 1", "n1", (A,), *of_device)]
    assert left == []
    table = (
        "Name,Serial number,Rack,Position,Tags,Out-of-band IP\n"
        'n1,B5TN222,R1,7,"On loan,gpu",10.1.0.1/24\n'
    )
    machines, _ = read("netbox", text(tmp_path, table))
    assert machines == [ListedMachine("device 1", "n1", (), *of_device)]


@pytest.mark.parametrize("format_", ["warewulf", "cobbler", "kea", "maas", "foreman", "netbox"])
def test_what_is_no_such_file_is_a_clear_error(tmp_path: Path, format_: str) -> None:
    with pytest.raises(UnreadableList, match=r"is no (YAML|JSON|configuration of Kea)"):
        read(format_, text(tmp_path, '{"a": [}'))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnreadableList):
        read(format_, tmp_path / "binary")


@pytest.mark.parametrize("format_", sorted(FORMATS))
@pytest.mark.parametrize("content", ["", "[]", "null", '[1, "x", null]', "x: {y: [z", "a,b\n{};"])
def test_nonsense_never_stops_a_reader(tmp_path: Path, format_: str, content: str) -> None:
    try:
        machines, _ = read(format_, text(tmp_path, content))
    except UnreadableList:
        return
    assert not [one for one in machines if one.macs or one.serial]


@pytest.mark.parametrize("format_", ["csv", "netbox"])
def test_a_table_with_a_cell_without_end_is_a_clear_error(tmp_path: Path, format_: str) -> None:
    content = 'name,mac\nn1,"' + "x" * 200_000
    with pytest.raises(UnreadableList, match="line 2, is no table"):
        read(format_, text(tmp_path, content))

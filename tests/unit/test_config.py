"""The site file: what is accepted, and that every error names its key and says what to do."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod import init, model, proposal
from cod.policy.nodes.power import rule_for
from cod.service.parts import PARTS
from cod.site import load
from cod.site.file import SiteFile, about, keys
from cod.site.load import ConfigError
from cod.site.own_address import on_host

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
name = "rack"
domain = "cod.example"
[server]
data_dir = "/srv/cod"
[policy]
heartbeat = 7.5
[[subnet]]
name = "lab"
network = "10.77.0.0/16"
server = "10.77.0.1"
interface = "br0"
boot_pool = ["10.77.1.0", "10.77.4.255"]
block_pool = ["10.77.128.0", "10.77.255.255"]
[[power]]
match = "rack1-*"
driver = "lab"
address = "bmc-{name}"
"""
ACCOUNT = """
[[account]]
name = "rack"
user = "admin"
password_file = "/etc/cod/rack.password"
"""
SUBNET = GOOD[GOOD.index("[[subnet]]") : GOOD.index("[[power]]")]


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load.parse(text, Path("site.toml"))
    assert all(line.startswith("site.toml: ") for line in str(caught.value).splitlines())
    return caught.value.problems


def loaded(tmp_path: Path, text: str) -> tuple[model.Site, load.Settings]:
    path = tmp_path / "site.toml"
    path.write_text(text)
    return load.load(path)


def test_a_good_file_becomes_a_site_and_settings(tmp_path: Path) -> None:
    site, settings = loaded(tmp_path, GOOD)
    assert site.name == "rack"
    assert site.policy == model.Policy(heartbeat=7.5)
    assert site.subnets == (
        model.Subnet(
            name="lab",
            network="10.77.0.0/16",
            server="10.77.0.1",
            boot_pool=("10.77.1.0", "10.77.4.255"),
            block_pool=("10.77.128.0", "10.77.255.255"),
            interface="br0",
            dns=("10.77.0.1",),
        ),
    )
    assert site.power == (model.PowerRule("rack1-*", "lab", "bmc-{name}"),)
    assert settings.database == "sqlite:////srv/cod/cod.db"
    assert settings.socket == Path("/srv/cod/run/api.sock")
    assert settings.listen == ()


def test_accounts_are_named_by_rules(tmp_path: Path) -> None:
    site, _ = loaded(
        tmp_path, GOOD.replace('driver = "lab"', 'driver = "ipmi"\naccount = "rack"') + ACCOUNT
    )
    assert site.accounts == (model.Account("rack", "admin", "/etc/cod/rack.password"),)
    assert site.power == (model.PowerRule("rack1-*", "ipmi", "bmc-{name}", "rack"),)


def test_an_account_may_have_boots_handed_nonces(tmp_path: Path) -> None:
    site, _ = loaded(tmp_path, GOOD + ACCOUNT + "boot_nonce = true\n")
    assert [each.boot_nonce for each in site.accounts] == [True]


@pytest.mark.parametrize(
    ("keys", "given"),
    [
        ("", ("10.77.0.1",)),
        ("dns = ['9.9.9.9']", ("9.9.9.9",)),
        ("\n[dns]\nport = 0", ()),
        ("\n[dns]\nport = 5353", ()),
    ],
)
def test_nodes_ask_the_site_s_own_name_server_unless_told_otherwise(
    tmp_path: Path, keys: str, given: tuple[str, ...]
) -> None:
    site, _ = loaded(tmp_path, SUBNET + keys)
    assert site.subnets[0].dns == given


def test_a_mail_server_has_the_port_that_its_tls_wants(tmp_path: Path) -> None:
    wanted = (
        "[smtp]\nhost = 'mx.cod.example'\nsender = 'cod@cod.example'\nadmins = ['ann@x.org',"
        " 'bob@x.org']\n"
    )
    for more, port in (
        ("", 587),
        ("tls = 'tls'", 465),
        ("tls = 'none'", 25),
        ("port = 2525", 2525),
    ):
        site, _ = loaded(tmp_path, GOOD.replace("[policy]", f"{wanted}{more}\n[policy]"))
        assert site.mail.at == port
        assert site.mail.admins == ("ann@x.org", "bob@x.org")


def test_the_site_chooses_what_makes_a_type(tmp_path: Path) -> None:
    site, _ = loaded(
        tmp_path, GOOD + "[types]\nignore = ['disk/model', 'nic/driver']\nmemory_parts = 8\n"
    )
    assert site.types == model.TypeRules(
        ignore=("disk/model", "nic/driver"), memory_parts=8, clock_step=100
    )


def test_defaults_are_those_of_the_model(tmp_path: Path) -> None:
    """The tables repeat the defaults of `model.Site` and `model.Policy`, for people to read: they
    must not differ."""
    site, _ = loaded(tmp_path, "domain = 'd'\n" + SUBNET)
    bare = model.Site(name="site", domain="d", subnets=site.subnets)
    assert site == bare


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (("heartbeat = 7.5", "heartbeat = 0"), "policy.heartbeat", "more than 0"),
        (("heartbeat = 7.5", "heartbeat = inf"), "policy.heartbeat", "finite"),
        (("heartbeat = 7.5", "heartbeat = 'soon'"), "policy.heartbeat", "should be a number"),
        (("heartbeat = 7.5", "hartbeat = 5"), "policy.hartbeat", "did you mean 'heartbeat'?"),
        (("heartbeat = 7.5", "xyzzy = 5"), "policy.xyzzy", "this table has unknown, auto_approve"),
        (("heartbeat = 7.5", "unknown = 'ignore'"), "policy.unknown", "'discover' or 'known-only'"),
        (("[policy]", "[polcy]"), "polcy", "did you mean 'policy'?"),
        (('server = "10.77.0.1"', ""), "subnet.0.server", "is missing"),
        (
            ('server = "10.77.0.1"', 'server = "10.78.0.1"'),
            "subnet.0",
            "server 10.78.0.1 should be inside",
        ),
        (
            ('server = "10.77.0.1"', 'server = "10.77.0.1"\nrouter = "10.1.0.1"'),
            "subnet.0",
            "router 10.1.0.1 should be",
        ),
        (
            ('server = "10.77.0.1"', 'server = "10.77.2.1"'),
            "subnet.0",
            "should hold neither the server's",
        ),
        (('interface = "br0"', ""), "subnet.0", "interface or relay should be set"),
        (
            (
                'server = "10.77.0.1"\ninterface = "br0"',
                'server = "0.0.0.0"\nrelay = "10.77.0.254"',
            ),
            "subnet.0",
            "nothing listens for DHCP",
        ),
        (
            (
                'server = "10.77.0.1"\ninterface = "br0"',
                'server = "127.0.0.1"\nrelay = "10.77.0.254"',
            ),
            "subnet.0",
            "nothing listens for DHCP",
        ),
        (
            (
                'server = "10.77.0.1"\ninterface = "br0"',
                'server = "224.0.0.1"\nrelay = "10.77.0.254"',
            ),
            "subnet.0",
            "nothing listens for DHCP",
        ),
        (
            ('interface = "br0"', 'interfaces = "br0"'),
            "subnet.0.interfaces",
            "did you mean 'interface'?",
        ),
        (
            ('"10.77.1.0", "10.77.4.255"', '"10.77.4.255", "10.77.1.0"'),
            "subnet.0",
            "first address before its last",
        ),
        (
            ('"10.77.1.0", "10.77.4.255"', '"10.77.1.0", "10.79.4.255"'),
            "subnet.0",
            "should be inside the network",
        ),
        (
            ('"10.77.1.0", "10.77.4.255"', '"10.77.1.0", "10.77.128.0"'),
            "subnet.0",
            "should not overlap",
        ),
        (
            ('"10.77.1.0", "10.77.4.255"', '"10.77.0.0", "10.77.0.0"'),
            "subnet.0",
            "first and last address",
        ),
        (('interface = "br0"', 'interface = "br0"\nblock_size = 48'), "subnet.0", "power of two"),
        (
            ('interface = "br0"', 'interface = "br0"\nblock_size = 65536'),
            "subnet.0",
            "at least one block",
        ),
        (("10.77.0.0/16", "10.77.0.1/16"), "subnet.0.network", "valid IPv4 network"),
        (('name = "lab"', 'name = "Lab!"'), "subnet.0.name", "letters, digits and hyphens"),
        (('"bmc-{name}"', '"bmc-{nme}"'), "power.0.address", "may name {name} and {mac} only"),
        (
            ('"bmc-{name}"', '"bmc-{name.__class__}"'),
            "power.0.address",
            "may name {name} and {mac} only",
        ),
        (('driver = "lab"', 'driver = "magic"'), "power.0.driver", "'wol' or 'pdu'"),
        (
            ('driver = "lab"', 'driver = "ipmi"\naccount = "x"'),
            "power.0.account",
            "there is no [[account]] named 'x'",
        ),
        (("[policy]", ACCOUNT + ACCOUNT + "[policy]"), "account.1.name", "'rack' is used twice"),
        (
            ("[policy]", ACCOUNT.replace("/etc", "etc") + "[policy]"),
            "account.0.password_file",
            "an absolute path",
        ),
        (
            (
                "[policy]",
                ACCOUNT.replace('password_file = "/etc/cod/rack.password"', "") + "[policy]",
            ),
            "account.0.password_file",
            "is missing",
        ),
        (
            ("[policy]", ACCOUNT.replace('"rack"', '"Rack"') + "[policy]"),
            "account.0.name",
            "letters, digits and hyphens",
        ),
        (
            ('data_dir = "/srv/cod"', 'database = "oracle://x"'),
            "server.database",
            "sqlite, mysql or mariadb",
        ),
        (('data_dir = "/srv/cod"', 'database = "nonsense"'), "server.database", "should be a URL"),
        (
            ("[policy]", "[types]\nignore = ['disk/modle']\n[policy]"),
            "types.ignore.0",
            "did you mean 'disk/model'?",
        ),
        (
            ("[policy]", "[types]\nignore = ['fpga']\n[policy]"),
            "types.ignore.0",
            "'fpga' is no attribute of a node",
        ),
        *(
            (
                ("[policy]", f"[types]\nignore = ['disk{each}']\n[policy]"),
                "types.ignore",
                f"disk{each} cannot be left out",
            )
            for each in ("", "/local", "/keep", "/sector", "/bootable")
        ),
        (("[policy]", "[types]\nmemory_parts = 0\n[policy]"), "types.memory_parts", "at least 1"),
        (("[policy]", "[types]\nclock_step = -50\n[policy]"), "types.clock_step", "at least 1"),
        (
            ("[policy]", "[api]\nlisten = ['8080']\n[policy]"),
            "api.listen",
            "should be ADDRESS:PORT",
        ),
        (("[policy]", "[smtp]\nhost = 'mx'\n[policy]"), "smtp", "sender should be set"),
        (
            ("[policy]", "[smtp]\nsender = 'a@b, c@d'\n[policy]"),
            "smtp.sender",
            "one e-mail address",
        ),
        (
            ("[policy]", "[smtp]\nsender = ' '\n[policy]"),
            "smtp.sender",
            "one e-mail address",
        ),
        (('name = "rack"', "name = 'rack'\nisolation = ''"), "isolation", "should be a"),
        (
            ("[policy]", "[smtp]\nadmins = ['a b@c']\n[policy]"),
            "smtp.admins.0",
            "should be an e-mail address",
        ),
        (("[policy]", "[smtp]\nadmins = ['']\n[policy]"), "smtp", "empty address"),
        (("[policy]", "[smtp]\nuser = 'x'\n[policy]"), "smtp", "both, or neither"),
        (
            ("[policy]", "[smtp]\ntls = 'none'\nuser = 'x'\npassword_file = '/p'\n[policy]"),
            "smtp",
            "travel readable",
        ),
        (("[policy]", "[smtp]\nhost = 'mx;id'\n[policy]"), "smtp.host", "mx;id"),
        (
            ("[policy]", "[notices]\nca_file = 'ca.pem'\n[policy]"),
            "notices.ca_file",
            "absolute path",
        ),
        (
            ("[policy]", "[boot]\nbios_loader = '../x'\n[policy]"),
            "boot.bios_loader",
            "without '..'",
        ),
        (("[policy]", "[boot]\nhttp_port = 70000\n[policy]"), "boot.http_port", "at most 65535"),
        (
            ("[policy]", "[boot]\nhttp_port = 80\nconfd_port = 80\n[policy]"),
            "boot.http_port",
            "should differ",
        ),
    ],
)
def test_an_error_names_its_key_and_says_what_to_do(
    change: tuple[str, str], key: str, words: str
) -> None:
    assert change[0] in GOOD
    found = problems(GOOD.replace(*change, 1))
    assert len(found) == 1
    assert found[0].startswith(key)
    assert words in found[0]


def test_each_key_that_is_wrong_has_a_sentence_of_its_own() -> None:
    wrong = "[types]\nignore = ['x', 'disk']\n[smtp]\nadmins = ['y']\n[policy]"
    starts = [each.partition(": ")[0] for each in problems(GOOD.replace("[policy]", wrong))]
    assert starts == ["types.ignore.0", "types.ignore", "smtp.admins.0"]


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ("[policy]\ninertia = -1", "policy.inertia", "at least 0"),
        ("[policy]\ninertia = inf", "policy.inertia", "finite"),
        (
            '[policy]\nvictims = ["newest"]',
            "policy.victims.0",
            "'cheap-type', 'whole-block' or 'last-started'",
        ),
        (
            '[policy]\nvictims = ["cheap-type", "cheap-type"]',
            "policy.victims",
            "each criterion once",
        ),
        (
            "[policy]\ninertia_by_priority = { 10 = -5 }",
            "policy.inertia_by_priority.10",
            "at least 0",
        ),
        (
            "[policy]\ninertia_by_priority = { 99999999999999999999 = 5 }",
            "policy.inertia_by_priority.99999999999999999999.[key]",
            "at most 1000000",
        ),
        ("[policy]\ndefault_lease = true", "policy.default_lease", "a number"),
        ("[policy]\ndrain_grace = false", "policy.drain_grace", "a number"),
        ("[energy]\nwarm_low = true", "energy.warm_low", "whole number"),
        (
            "[policy]\ninertia_by_priority = { high = 5 }",
            "policy.inertia_by_priority.high.[key]",
            "whole number",
        ),
        ("[policy]\nage_step = 0", "policy.age_step", "more than 0"),
        ("[policy]\nreclaim_grace = -1", "policy.reclaim_grace", "at least 0"),
        ("[policy]\ndrain_grace = -1", "policy.drain_grace", "at least 0"),
        ("[policy]\nlease_warnings = [3600, 0]", "policy.lease_warnings.1", "more than 0"),
        (
            "[energy]\nwarm_low = 5\nwarm_high = 4",
            "energy",
            "warm_low 5 should not be above warm_high 4",
        ),
        ("[energy]\nwarm_low = 5", "energy", "warm_low 5 should not be above warm_high 4"),
        (
            "[energy]\ncurve_file = '/etc/cod/c.csv'\ncurve_poll = 86400",
            "energy",
            "curve_stale 21600 should be above curve_poll 86400",
        ),
        ("[energy]\nwarm_high = 0", "energy", "warm_low 1 should not be above warm_high 0"),
        ("[energy]\nwarm_low = -1", "energy.warm_low", "at least 0"),
        ("[energy]\nwarm_low = 1.5", "energy.warm_low", "whole number"),
        ("[energy]\nidle_time = -1", "energy.idle_time", "at least 0"),
        ("[energy]\nwake_time = 0", "energy.wake_time", "more than 0"),
        ("[energy]\nwake_step = -1", "energy.wake_step", "at least 0"),
        ("[energy]\nwatts_off = 100", "energy", "should not fall: 100, 80, 200"),
        ("[energy]\nwatts_busy = 50", "energy", "should not fall: 5, 80, 50"),
        ("[energy]\nwatts_off = -1", "energy.watts_off", "at least 0"),
        ("[server]\nkeep_history = -1", "server.keep_history", "at least 0"),
    ],
)
def test_a_contradictory_policy_is_refused(line: str, key: str, words: str) -> None:
    [found] = problems(f"{line}\n{SUBNET}")
    assert found.startswith(f"{key}: ")
    assert words in found


def test_marks_may_meet(tmp_path: Path) -> None:
    text = (
        "[energy]\nmanage = true\nwarm_low = 4\nwarm_high = 4\n[server]\nkeep_history = 30\n"
        + SUBNET
    )
    site, made = loaded(tmp_path, text)
    assert site.energy == model.Energy(manage=True, warm_low=4, warm_high=4)
    assert made.server.keep_history == 30 * 86400.0


def test_all_errors_are_told_at_once() -> None:
    text = GOOD.replace("heartbeat = 7.5", "heartbeat = -1\npatience = 0").replace(
        'driver = "lab"', 'driver = "x"'
    )
    assert [line.split(":")[0] for line in problems(text)] == [
        "policy.patience",
        "policy.heartbeat",
        "power.0.driver",
    ]
    # no DHCP reply could say it
    text = GOOD.replace("heartbeat = 7.5", "binding_time = 1e10\nboot_time = inf")
    assert [line.split(":")[0] for line in problems(text)] == [
        "policy.binding_time",
        "policy.boot_time",
    ]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            SUBNET.replace("10.77", "10.78").replace("br0", "br1"),
            "subnet.1.name: 'lab' is used twice",
        ),
        (
            SUBNET.replace("lab", "two").replace("br0", "br1"),
            "subnet.1.network: 10.77.0.0/16 overlaps that of 'lab'",
        ),
        (
            SUBNET.replace("lab", "two").replace("10.77", "10.78"),
            "subnet.1.interface: br0 serves 'lab' already",
        ),
    ],
)
def test_subnets_do_not_get_into_each_others_way(second: str, words: str) -> None:
    assert any(words in line for line in problems(GOOD + second))


def test_a_subnet_behind_a_relay_is_served_from_elsewhere(tmp_path: Path) -> None:
    remote = (
        SUBNET.replace("lab", "far")
        .replace("10.77", "10.78")
        .replace('interface = "br0"', 'relay = "10.78.0.1"')
    )
    site, _ = loaded(
        tmp_path, GOOD + remote.replace('server = "10.78.0.1"', 'server = "10.77.0.1"')
    )
    assert site.subnets[1].relay == "10.78.0.1"
    assert site.subnets[1].server == "10.77.0.1"


@pytest.mark.parametrize(
    ("mirror", "words"),
    [
        ('address = "10.77.0.9"\nsubnets = ["far"]', "subnets: there is no [[subnet]] named 'far'"),
        ('address = "10.77.4.255"', "address: 10.77.4.255 is among those that nodes of 'lab' get"),
        ('address = "10.77.128.0"', "address: 10.77.128.0 is among those that nodes of 'lab' get"),
        ('address = "10.9.0.7"', "address: 10.9.0.7 is in isolation.networks"),
    ],
)
def test_no_node_can_take_a_mirrors_address(mirror: str, words: str) -> None:
    networks = '[isolation]\nvlans = [100, 199]\nnetworks = "10.9.0.0/16"\ninterface = "br1"'
    found = problems(f"{GOOD}\n{networks}\n[[mirror]]\n{mirror}\n")
    assert any(line.startswith(f"mirror.0.{words}") for line in found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "UTF-8"),
        (b"name = ", "is not TOML"),
        (b"[policy]\n[api]\n[policy]\n", r"has \[policy\] twice \(at line 3"),
        (b"name = 'x'", "subnet: is missing"),
        (b"subnet = []", "at least one"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "site.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load.load(path)


def test_a_socket_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.data_dir: .* too long"):
        loaded(tmp_path, GOOD.replace("/srv/cod", "/srv/" + 100 * "x"))


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    with pytest.raises(ConfigError):
        load.parse(text, Path("x"))


# ---------------------------------------------------------------- cod init's file


def test_the_annotated_file_is_valid_and_names_every_key() -> None:
    text = init.annotated({"server": {"data_dir": "/x"}, "subnet": proposal.EXAMPLE})
    load.parse(text, Path("x"))
    named = {line.lstrip("# ").partition(" =")[0] for line in text.splitlines() if " = " in line}
    for key in keys(SiteFile):
        for each in keys(key.table) if key.table else [key]:
            assert each.name in named, each.name


def test_the_annotated_defaults_are_the_defaults() -> None:
    """Every commented default can be uncommented without changing anything."""
    text = init.annotated({"subnet": proposal.EXAMPLE})
    required_or_null = (
        "curve_file",
        "hold_above",
        "interface",
        "relay",
        "router",
        "ca_file",
        "port",
        "password_file",
        "quota",
        "certificate",
        "key",
        "secret_file",
        "transfer_key_file",
        "keytab_command",
        "vlans",
        "networks",
        "server",
        "default_size",  # a network of isolated vclusters has to be named first
        "largest_size",
        "by_default",
    )
    lines = []
    for line in text[: text.index("# [[account]]")].splitlines():
        bare = line.removeprefix("# ")
        is_key = " = " in bare and bare.partition(" = ")[0].isidentifier()
        lines.append(bare if is_key and bare.partition(" = ")[0] not in required_or_null else line)
    assert "heartbeat = 5.0" in lines
    assert load.parse("\n".join(lines), Path("x")) == load.parse(text, Path("x"))


def test_what_groups_may_keep_of_images(tmp_path: Path) -> None:
    assert loaded(tmp_path, GOOD)[0].images == model.ImageRules(None, 3 * 86400.0)
    given = loaded(
        tmp_path, GOOD + "[images]\nquota = 1000\nkeep_uploads = 0.5\nlargest = 5000\nopen = true\n"
    )[0]
    assert given.images == model.ImageRules(1000, 43200.0, open=True, largest=5000)
    assert problems(GOOD + "[images]\nquota = -1\n") == [
        "images.quota: should be at least 0, not -1"
    ]


@given(st.text())
def test_toml_strings_survive(text: str) -> None:
    if any(ord(c) < 0x20 or 0xD800 <= ord(c) < 0xE000 or ord(c) == 0x7F for c in text):
        return
    assert tomllib.loads(f"key = {init.toml(text)}") == {"key": text}


@pytest.mark.slow
def test_init_makes_a_site_and_may_be_repeated(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    done = init.found(
        tmp_path, file, {"interface": "br7"}, 1000.0, ["127.0.0.1:8443", "10.77.0.1:443"]
    )
    assert any("schema" in line for line in done)
    assert (tmp_path / "boot" / "trampoline").is_dir()
    assert (tmp_path / "cod.db").exists()
    assert file.stat().st_mode & 0o077 == 0
    before = file.read_text()
    assert 'interface = "br7"' in before
    assert load.load(file)[1].listen == (("127.0.0.1", 8443), ("10.77.0.1", 443))
    policy = load.load(file)[0].policy
    # a new site cannot be held for ever
    assert (policy.node_limit, policy.max_lease) == (64, 30 * 86400)
    again = init.found(tmp_path, file, {"interface": "br8"}, 2000.0)
    assert f"kept {file}: what the options say is for a new one" in again
    assert f"kept {file}" in init.found(tmp_path, file, {}, 2000.0)
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("network", "server", "boot", "block"),
    [
        (
            "10.77.0.0/16",
            "10.77.0.1",
            ["10.77.1.0", "10.77.4.255"],
            ["10.77.128.0", "10.77.255.255"],
        ),
        (
            "192.168.7.0/24",
            "192.168.7.1",
            ["192.168.7.32", "192.168.7.127"],
            ["192.168.7.128", "192.168.7.255"],
        ),
        ("10.1.16.0/20", "10.1.16.1", ["10.1.16.16", "10.1.16.79"], ["10.1.24.0", "10.1.31.255"]),
        ("10.1.1.0/25", "10.1.1.1", ["10.1.1.16", "10.1.1.63"], ["10.1.1.64", "10.1.1.127"]),
        (  # a server in the upper half has the blocks in the lower one
            "192.168.7.0/24",
            "192.168.7.254",
            ["192.168.7.128", "192.168.7.223"],
            ["192.168.7.0", "192.168.7.127"],
        ),
        (
            "10.77.0.0/16",
            "10.77.200.1",
            ["10.77.251.0", "10.77.254.255"],
            ["10.77.0.0", "10.77.127.255"],
        ),
    ],
)
def test_a_networks_pools(
    tmp_path: Path, network: str, server: str, boot: list[str], block: list[str]
) -> None:
    """A network and an address in it are enough for a site file that is right."""
    assert proposal.pools(network, server) == {"boot_pool": boot, "block_pool": block}
    init.write_site_file(tmp_path / "site.toml", tmp_path, {"network": network, "server": server})
    assert load.load(tmp_path / "site.toml")[0].subnets[0].network == network


def test_a_pool_that_was_chosen_is_not_proposed(tmp_path: Path) -> None:
    """The server's address is in no pool, but would be in the boot pool that nobody wants."""
    chosen = {"network": "192.168.7.0/24", "boot_pool": ["192.168.7.10", "192.168.7.60"]}
    site_file = tmp_path / "site.toml"
    init.write_site_file(site_file, tmp_path, {"server": "192.168.7.100", **chosen})
    subnet = load.load(site_file)[0].subnets[0]
    assert subnet.block_pool == ("192.168.7.128", "192.168.7.255")


def test_no_pools_of_no_network() -> None:
    assert proposal.pools("") == proposal.pools("10.1.1.1/16") == {}
    assert proposal.pools(str(proposal.EXAMPLE["network"])) == {
        key: proposal.EXAMPLE[key] for key in ("boot_pool", "block_pool")
    }


def test_the_site_file_says_of_all_that_is_re_read_that_it_is() -> None:
    """Say so in the table that the head of the site file sends readers to."""
    said = {
        key.name for key in keys(SiteFile) if key.table and "Re-read on SIGHUP" in about(key.table)
    }
    assert said == {
        "policy",
        "energy",
        "types",
        "images",
        "burnin",
        "console",
        "notices",
        "smtp",
        "signin",
        "ldap",
        "ldap_group",
        "oidc",
        "account",
        "power",
        "keep",
        "switch",
        "groups",
        "volumes",
        "fileserver",
        "mirror",
        "kerberos",
    }


def test_init_refuses_options_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="inside the network"):
        init.found(tmp_path, tmp_path / "site.toml", {"server": "10.9.9.9"}, 1000.0)
    with pytest.raises(ConfigError, match="listen"):
        init.found(tmp_path, tmp_path / "site.toml", {}, 1000.0, ["8443"])
    small = {"network": "10.1.1.64/26", "server": "10.1.1.70"}
    with pytest.raises(proposal.Unfit, match=r"10.1.1.64/26 has 64 addr.* larger network; or"):
        init.found(tmp_path, tmp_path / "site.toml", small, 1000.0)
    between = {"network": "10.77.0.0/16", "server": "10.77.2.1"}
    with pytest.raises(proposal.Unfit, match="choose --boot-pool"):
        init.found(tmp_path, tmp_path / "site.toml", between, 1000.0)
    assert not (tmp_path / "site.toml").exists()
    with pytest.raises(ConfigError, match="IPv4 address"):
        init.found(tmp_path, tmp_path / "site.toml", between | {"server": "head"}, 1000.0)
    own = {"boot_pool": ["10.77.3.0", "10.77.3.255"], "block_pool": ["10.77.4.0", "10.77.9.255"]}
    init.write_site_file(tmp_path / "site.toml", tmp_path, between | own)


# ---------------------------------------------------------------- power rules


def test_the_first_power_rule_that_fits_is_used() -> None:
    rules = [
        model.PowerRule("rack1-*", "ipmi", "bmc-{name}", "rack"),
        model.PowerRule("52:54:*", "lab", "/sock#{mac}"),
        model.PowerRule("*", "wol", ""),
    ]
    assert rule_for(rules, "rack1-7", "52:54:00:00:00:01") == ("ipmi", "bmc-rack1-7", "rack")
    assert rule_for(rules, "node-1", "52:54:00:00:00:01") == (
        "lab",
        "/sock#52:54:00:00:00:01",
        None,
    )
    assert rule_for(rules, "node-1", "aa:54:00:00:00:01") == ("wol", "", None)
    assert rule_for(rules[:1], "node-1", "aa:54:00:00:00:01") == ("none", "", None)


# ---------------------------------------------------------------- docs


def test_the_systemd_units_run_parts_that_there_are() -> None:
    units = {
        path.stem: path.read_text()
        for path in (ROOT / "docs/systemd").glob("*.service")
        if "@" not in path.stem
    }
    assert set(units) == {"cod", *(f"cod-{part}" for part in PARTS)}
    for name, text in units.items():
        only = f" --only {name.removeprefix('cod-')}" if name != "cod" else " --users"
        assert f"ExecStart=/usr/bin/cod --site /etc/cod/site.toml serve{only}\n" in text
        assert "\nStartLimitIntervalSec=0\n" in text  # a full disk must not end the attempts
        assert "\nEnvironment=RUNTIME_DIRECTORY=/run/cod\n" in text
        assert "\nExecStartPre=-+/usr/bin/cod --site /etc/cod/site.toml permissions\n" in text


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ('certificate = "/etc/cod/web.crt"', "both, or neither"),
        ('listen = ["127.0.0.1:1", "10.77.0.1:1"]\nplain = true', "loopback"),
        ('names = ["Not A Name"]', "DNS name"),
    ],
)
def test_the_portals_tls(lines: str, what: str) -> None:
    assert what in problems(GOOD + f"[api]\n{lines}\n")[0]
    load.parse(
        GOOD + '[api]\nlisten = ["127.0.0.1:1", "[::1]:1"]\nplain = true\n', Path("site.toml")
    )


SIGNING = """[api]
listen = ["192.0.2.1:8443"]
names = ["cod.example.org"]
[signin]
idle = 60.0
[ldap]
url = "ldaps://ldap.example.org"
base = "ou=people,dc=example,dc=org"
[oidc]
issuer = "https://login.example.org/realms/x"
client_id = "cod"
secret_file = "/etc/cod/oidc.secret"
"""


def test_how_people_sign_in(tmp_path: Path) -> None:
    rules = loaded(tmp_path, GOOD + SIGNING)[0].signin
    assert (rules.url, rules.idle, rules.life) == ("https://cod.example.org:8443", 60.0, 604_800.0)
    assert (rules.ldap.tls, rules.ldap.create, rules.oidc.secret_file) == (
        "tls",
        True,
        "/etc/cod/oidc.secret",
    )
    assert loaded(tmp_path, GOOD)[0].signin == model.SignInRules()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('[signin]\nurl = "cod.example.org"', "signin.url"),
        ('[signin]\nurl = "https://cod.example.org/x"', "signin.url"),
        ('[ldap]\nurl = "ldaps://h"', "base should be set"),
        ('[ldap]\nurl = "ldap://h"\nbase = "x"', 'tls should be "tls" for ldaps'),
        ('[ldap]\nfilter = "(uid=ann)"', "filter should hold {name}"),
        ('[ldap]\nfilter = "(uid={name})(x={other})"', "filter should hold {name}"),
        ('[ldap]\nuser = "cn=reader"', "user and password_file"),
        ('[oidc]\nissuer = "https://x"', "client_id and secret_file"),
        ('[oidc]\nissuer = "ftp://x"', "oidc.issuer"),
    ],
)
def test_what_cannot_be_signed_in_by_is_refused(tmp_path: Path, table: str, problem: str) -> None:
    with pytest.raises(load.ConfigError) as caught:
        loaded(tmp_path, GOOD + table + "\n")
    assert problem in str(caught.value)


SEVERAL = GOOD.replace('server = "10.77.0.1"', 'server = ["10.77.0.1", "10.77.0.2"]')


def test_of_several_servers_each_host_is_the_one_whose_address_it_has(tmp_path: Path) -> None:
    site, _ = loaded(tmp_path, SEVERAL)
    for own, other in (("10.77.0.1", "10.77.0.2"), ("10.77.0.2", "10.77.0.1")):
        [subnet] = on_host(site, tmp_path, {own, "192.0.2.9"}).subnets
        assert (subnet.server, subnet.others, subnet.dns) == (own, (other,), (own, other))
    with pytest.raises(ConfigError) as caught:
        on_host(site, tmp_path, {"192.0.2.9"})
    assert caught.value.problems == [
        "subnet.0.server: none of 10.77.0.1, 10.77.0.2 is an address of this host, which has"
        " 192.0.2.9; list this host's address on lab too, in the site file of each server"
    ]


def test_each_of_several_servers_serves_every_subnet(tmp_path: Path) -> None:
    """A host without an address on a subnet of one server would answer there as that server."""
    site, _ = loaded(tmp_path, SEVERAL)
    alone = replace(site.subnets[0], name="far", server="10.78.0.1", others=())
    site = replace(site, subnets=(*site.subnets, alone))
    assert on_host(site, tmp_path, {"10.77.0.1", "10.78.0.1"}) == site
    with pytest.raises(ConfigError) as caught:
        on_host(site, tmp_path, {"10.77.0.2"})
    [problem] = caught.value.problems
    assert problem.startswith("subnet.1.server: none of 10.78.0.1 is an address of this host")


def test_a_single_server_is_not_looked_for_on_the_host(tmp_path: Path) -> None:
    site, _ = loaded(tmp_path, GOOD)
    assert on_host(site, tmp_path, ()) == site
    assert loaded(tmp_path, GOOD.replace('"10.77.0.1"', '["10.77.0.1"]'))[0] == site


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        ("[]", "subnet.0.server: should be text, not []"),
        ('["10.77.0.1", "10.77.0.1"]', "subnet.0: server should name each address once"),
        (
            '["10.77.0.1", "10.77.1.5"]',
            "subnet.0: boot_pool 10.77.1.0 - 10.77.4.255 should hold neither the server's nor the"
            " router's address",
        ),
        (
            '["10.77.0.1", "10.99.0.1"]',
            "subnet.0: server 10.99.0.1 should be inside the network 10.77.0.0/16",
        ),
        (
            '"10.77.0.1"\nothers = ["10.77.0.2"]',
            "subnet.0: no such key 'others'; `server` lists the addresses of several servers",
        ),
    ],
)
def test_what_servers_may_not_be(servers: str, problem: str) -> None:
    found = problems(GOOD.replace('server = "10.77.0.1"', f"server = {servers}"))
    assert found == [problem]


ISOLATED = '[isolation]\nvlans = [2000, 2009]\nnetworks = "10.80.0.0/16"\n'


def test_each_of_several_servers_has_its_place_in_isolated_networks(tmp_path: Path) -> None:
    site, _ = loaded(tmp_path, SEVERAL + ISOLATED + 'interface = "br0"\n')
    for place, own in enumerate(("10.77.0.1", "10.77.0.2")):
        rules = on_host(site, tmp_path, {own}).isolation
        assert rules is not None
        assert (rules.hosts, rules.place) == (("10.77.0.1", "10.77.0.2"), place)
        again = on_host(on_host(site, tmp_path, {own}), tmp_path, {own})
        assert again.isolation == rules


def test_each_of_several_servers_is_reached_through_the_router(tmp_path: Path) -> None:
    routed = ISOLATED + 'router = "first"\nserver = ["10.77.0.1", "10.77.0.2"]\n'
    site, _ = loaded(tmp_path, SEVERAL + routed)
    rules = on_host(site, tmp_path, {"10.77.0.2"}).isolation
    assert rules is not None
    assert rules.servers == ("10.77.0.2", "10.77.0.1")
    far = routed.replace("10.77.0.2", "10.99.0.2")
    site, _ = loaded(tmp_path, SEVERAL + far)
    with pytest.raises(ConfigError) as caught:
        on_host(site, tmp_path, {"10.77.0.2"})
    [problem] = caught.value.problems
    assert problem.startswith("isolation.server: none of 10.77.0.1, 10.99.0.2 is an address")


def test_isolated_networks_have_as_many_servers_as_the_subnets() -> None:
    one = ISOLATED + 'router = "first"\nserver = "10.77.0.1"\n'
    assert problems(SEVERAL + one) == [
        "isolation.server: should list an address of each of the 2 servers that `server` of the"
        " first [[subnet]] names"
    ]
    assert problems(SEVERAL + ISOLATED + 'interface = "br0"\nplace = 1\n') == [
        "isolation: no such key 'place'; `server` lists the addresses of several servers"
    ]

"""Which command a power wish leads to, at which stage, and how the drivers' addresses and answers
are read."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Account, Site
from cod.policy.nodes.power import (
    ASK_AGENT,
    ASK_ON,
    ASK_SYSTEM,
    BUDGET,
    LONGEST_PAUSE,
    command,
    retry_after,
)
from cod.power import ipmi, pdu, wol
from cod.power.accounts import sign_in
from cod.power.driver import PowerError, SignIn, Target
from cod.power.trust import Trust, trust_of

FULFILLED = {("on", "on"), ("off", "off"), ("soft", "off")}


@pytest.mark.parametrize(
    ("desired", "power", "agent", "expected"),
    [
        ("on", "off", False, ["on", "on", "cycle", "cycle"]),
        ("on", "unknown", False, ["on", "on", "cycle", "cycle"]),
        ("on", "on", False, [None, None]),
        ("off", "on", False, ["off", "off", "off"]),
        ("off", "unknown", False, ["off", "off"]),
        ("off", "off", True, [None, None]),
        ("off", "on", True, ["soft", "off", "off"]),
        ("soft", "on", False, ["soft"] * ASK_SYSTEM + ["off", "off"]),
        ("soft", "on", True, ["soft"] * ASK_AGENT + ["off"]),
        ("soft", "off", False, [None]),
        ("cycle", "on", False, ["cycle", None, None]),
        ("cycle", "unknown", False, ["cycle", "cycle"]),
        ("cycle", "off", False, ["on", "on", "cycle"]),
    ],
)
def test_what_is_asked_stage_by_stage(
    desired: str, power: str, agent: bool, expected: list[str | None]
) -> None:
    assert [command(desired, stage, power, agent) for stage in range(len(expected))] == expected


DESIRED = ("on", "off", "soft", "cycle")
POWER = ("on", "off", "unknown")


@given(st.sampled_from(DESIRED), st.integers(0, 100), st.sampled_from(POWER), st.booleans())
def test_nothing_is_asked_of_what_is_so_and_something_of_what_is_not(
    desired: str, stage: int, power: str, agent: bool
) -> None:
    found = command(desired, stage, power, agent)
    if (desired, power) in FULFILLED:
        assert found is None
    elif not (desired == "cycle" and power == "on"):
        assert found is not None
    assert found not in ({"off", "soft"} if desired in ("on", "cycle") else {"on", "cycle"})


@pytest.mark.parametrize(
    ("desired", "agent"), list(itertools.product(("off", "soft"), (False, True)))
)
def test_asking_comes_to_an_end(desired: str, agent: bool) -> None:
    last = max(ASK_SYSTEM, ASK_AGENT, ASK_ON)
    assert command(desired, last, "on", agent) == "off"


@given(st.integers(1, 10**9), st.floats(0, 10 * BUDGET))
def test_no_wish_is_tried_for_ever(attempts: int, elapsed: float) -> None:
    pause = retry_after(attempts, elapsed)
    assert pause is None or (0 < pause <= LONGEST_PAUSE and elapsed + pause <= BUDGET)
    assert pause is not None or elapsed > BUDGET - LONGEST_PAUSE


# ---------------------------------------------------------------- accounts


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(
        "test", "cod.test", (), accounts=(Account("rack", "admin", str(tmp_path / "password")),)
    )


def test_an_accounts_password_is_read_each_time(site: Site, tmp_path: Path) -> None:
    assert sign_in(site, None) is None
    (tmp_path / "password").touch(0o600)
    for word in ("first", "second"):
        (tmp_path / "password").write_text(f"{word}\nsomething else\n")
        assert sign_in(site, "rack") == SignIn("admin", word)


@pytest.mark.parametrize(
    ("mode", "content", "words"),
    [
        (0o640, b"secret\n", "chmod 600"),
        (0o604, b"secret\n", "chmod 600"),
        (0o600, b"\n", "first line"),
        (0o600, b"\xff\n", "UTF-8"),
        (None, b"", "No such file"),
    ],
)
def test_why_a_password_cannot_be_used(
    site: Site, tmp_path: Path, mode: int | None, content: bytes, words: str
) -> None:
    if mode is not None:
        (tmp_path / "password").write_bytes(content)
        (tmp_path / "password").chmod(mode)
    with pytest.raises(PowerError, match=words) as raised:
        sign_in(site, "rack")
    assert str(tmp_path / "password") in raised.value.sentence
    assert "account rack" in raised.value.sentence
    assert "secret" not in raised.value.sentence.replace("secret file", "")
    assert not raised.value.lasting, "an administrator may mend it"


def test_an_account_that_is_gone(site: Site) -> None:
    with pytest.raises(PowerError, match=r"no \[\[account\]\] named 'old'") as raised:
        sign_in(site, "old")
    assert raised.value.lasting


def test_no_password_shows_in_what_is_printed() -> None:
    assert "secret" not in repr(Target("bmc7", SignIn("admin", "secret")))


# ---------------------------------------------------------------- addresses

ADMIN = SignIn("admin", "secret")


@pytest.mark.parametrize(
    ("address", "host", "port", "suite"),
    [
        ("bmc7", "bmc7", "623", None),
        ("10.0.0.7:6230", "10.0.0.7", "6230", None),
        ("[fd00::7]:624?suite=17", "fd00::7", "624", "17"),
        ("bmc7.example.org?suite=3", "bmc7.example.org", "623", "3"),
    ],
)
def test_addresses_of_ipmi(address: str, host: str, port: str, suite: str | None) -> None:
    options, environment = ipmi.call(Target(address, ADMIN))
    assert options[options.index("-H") + 1] == host
    assert options[options.index("-p") + 1] == port
    assert (options[options.index("-C") + 1] if "-C" in options else None) == suite
    assert "secret" not in options
    assert environment["IPMI_PASSWORD"] == "secret"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "bmc7:x",
        "bmc7:99999",
        "bmc7/1",
        "bmc7?suite=0",
        "bmc7?suite=",
        "bmc7?speed=9",
        "ipmi://bmc7",
        "bmc7#1",
        " bmc7",
        "admin:secret@bmc7",
        "bmc7?suite",
    ],
)
def test_addresses_that_are_none_of_ipmi(address: str) -> None:
    with pytest.raises(PowerError, match="is not of the form") as raised:
        ipmi.call(Target(address, ADMIN))
    assert raised.value.lasting
    assert "secret" not in raised.value.sentence


APC = "1.3.6.1.4.1.318.1.1.12.3.3.1.1.4"


@pytest.mark.parametrize(
    ("address", "outlet"),
    [
        ("pdu1/apc/7", pdu.Outlet("pdu1", 161, f"{APC}.7", 1, 2)),
        ("pdu1:1161/1.3.6.1.9.8?on=1&off=0", pdu.Outlet("pdu1", 1161, "1.3.6.1.9.8", 1, 0)),
    ],
)
def test_addresses_of_outlets(address: str, outlet: pdu.Outlet) -> None:
    assert pdu.parse(address) == outlet


@pytest.mark.parametrize(
    "address",
    [
        "pdu1",
        "pdu1/7",
        "pdu1/apc",
        "pdu1/apc/x",
        "pdu1/acme/7",
        "pdu1/apc/7?on=1&off=2",
        "pdu1/1.3.6.1.9.8",
        "pdu1/1.3.6.1.9.8?on=1",
        "pdu1/1.3.6.1.9.8?on=1&off=1",
        "pdu1/1.3.6.1.9.8?on=a&off=b",
        "/apc/7",
    ],
)
def test_addresses_that_are_none_of_outlets(address: str) -> None:
    with pytest.raises(PowerError, match="is not of the form"):
        pdu.parse(address)


def test_addresses_of_sleeping_cards() -> None:
    assert wol.parse("52:54:00:AB:cd:ef@10.77.255.255") == ("52:54:00:ab:cd:ef", "10.77.255.255", 9)
    assert wol.parse("52:54:00:ab:cd:ef@10.77.255.255:7") == (
        "52:54:00:ab:cd:ef",
        "10.77.255.255",
        7,
    )
    for address in (
        "52:54:00:ab:cd:ef",
        "52:54:00:ab:cd@10.0.0.255",
        "52:54:00:ab:cd:ef@net",
        "x@10.0.0.255",
        "52:54:00:ab:cd:ef@10.0.0.256",
        "52:54:00:ab:cd:ef@10.0.0.255:0",
        "52:54:00:ab:cd:ef@10.0.0.255:99999",
    ):
        with pytest.raises(PowerError, match="is not of the form"):
            wol.parse(address)


@pytest.mark.parametrize("text", ["", "ftp://x", "https://", "https://u:p@x", "https://x/other"])
def test_the_readers_of_addresses_never_fail_otherwise(text: str) -> None:
    for read in (wol.parse, pdu.parse, lambda text: ipmi.call(Target(text, ADMIN))):
        with pytest.raises(PowerError):
            read(text)


@given(st.text(max_size=40))
def test_no_text_is_more_than_a_wrong_address(text: str) -> None:
    for read in (wol.parse, pdu.parse, lambda text: ipmi.call(Target(text, ADMIN))):
        with suppress(PowerError):
            read(text)


# ---------------------------------------------------------------- certificates


def test_one_kind_of_trust_is_chosen(tmp_path: Path) -> None:
    assert trust_of({}) == Trust()
    assert trust_of({"insecure": "yes"}) == Trust(anyone=True)
    assert trust_of({"fingerprint": "AB:" * 31 + "AB"}) == Trust(fingerprint="ab" * 32)
    (tmp_path / "none.pem").write_text("hello")
    (tmp_path / "bad.pem").write_text(
        "-----BEGIN CERTIFICATE-----\nhello\n-----END CERTIFICATE-----\n"
    )
    for options, words in [
        ({"insecure": "no"}, "may be 'yes'"),
        ({"fingerprint": "ab"}, "64 hexadecimal"),
        ({"insecure": "yes", "ca": "x"}, "one may be given"),
        ({"ca": "/no/such"}, "No such file"),
        ({"ca": f"{tmp_path}/none.pem"}, "holds none"),
        ({"ca": f"{tmp_path}/bad.pem"}, "something else"),
    ]:
        with pytest.raises(PowerError, match=words):
            trust_of(options)


# ---------------------------------------------------------------- what ipmitool says

READING = """
    Instantaneous power reading:                   212 Watts
    Minimum during sampling period:                  8 Watts
    Maximum during sampling period:                415 Watts
    Average power reading over sample period:      210 Watts
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   {}
"""


def test_a_dcmi_power_reading() -> None:
    assert ipmi.reading(READING.format("activated")) == 212.0
    assert ipmi.reading(READING.format("deactivated")) is None
    assert ipmi.reading("") is None


@pytest.mark.parametrize(
    ("said", "sentence", "lasting", "kind"),
    [
        (
            "> RAKP 2 HMAC is invalid\nError: Unable to establish IPMI v2 / RMCP+ session",
            "refuses the password",
            True,
            PowerError,
        ),
        (
            (
                "RAKP 2 message indicates an error : unauthorized name\nError: Unable to establish"
                " IPMI v2 / RMCP+ session"
            ),
            "does not know the user",
            True,
            PowerError,
        ),
        (
            "Error: Unable to establish IPMI v2 / RMCP+ session",
            "does not answer",
            False,
            PowerError,
        ),
        (
            "Set Chassis Power Control to Up/On failed: Insufficient privilege level",
            "rights of an operator",
            True,
            ipmi.IpmiRefusal,
        ),
        (
            (
                "Invalid completion code received: Insufficient privilege level\nSet Chassis Power"
                " Control to Cycle failed: Invalid data field in request"
            ),
            "says: Set Chassis Power Control to Cycle failed: Invalid data",
            False,
            ipmi.IpmiRefusal,
        ),
        ("", "says: no", False, ipmi.IpmiRefusal),
    ],
)
def test_what_ipmitools_words_mean(
    said: str, sentence: str, lasting: bool, kind: type[PowerError]
) -> None:
    error = ipmi.trouble(said)
    assert sentence in error.sentence
    assert error.lasting is lasting
    assert type(error) is kind

"""The drivers over real sockets of loopback: a BMC with every whim in Redfish, magic packets."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.protocol import Factory, Protocol
from twisted.web.server import Site

from cod.power import bmcweb, redfish
from cod.power.driver import PowerError, SignIn, Target
from cod.power.loading import drivers
from cod.power.redfish import RedfishDriver
from cod.power.wol import WolDriver, magic
from tests.net.redfishbmc import CHASSIS, SYSTEM, SYSTEMS, Bmc
from tests.ports import free_port

InReactor = Callable[..., Any]
ADMIN = SignIn("admin", "secret")


@pytest.fixture
def bmc(reactor: Any, in_reactor: InReactor) -> Iterator[Bmc]:
    bmc = Bmc()
    port = in_reactor(reactor.listenTCP, 0, Site(bmc), 50, "127.0.0.1")
    bmc.address = f"http://127.0.0.1:{port.getHost().port}"
    yield bmc
    in_reactor(port.stopListening)


@pytest.fixture
def driver(reactor: Any, in_reactor: InReactor, bmc: Bmc) -> Callable[[str], Any]:
    """Calls a method of the driver with the BMC's address."""
    own = RedfishDriver(reactor)
    return lambda method, path="", *more: in_reactor(
        getattr(own, method), Target(bmc.address + path, ADMIN), *more
    )


def test_there_is_a_driver_of_every_name(reactor: Any) -> None:
    made = drivers(reactor)
    assert sorted(made) == ["ipmi", "lab", "pdu", "redfish", "wol"]
    assert {name for name, each in made.items() if each.measures} == {"ipmi", "redfish"}
    assert {name for name, each in made.items() if not each.switches_off} == {"wol"}


def test_what_is_asked_of_a_bmc_that_can_do_everything(
    bmc: Bmc, driver: Callable[[str], Any]
) -> None:
    assert driver("status") == "off"
    assert driver("on") is None
    assert driver("status") == "on"
    driver("cycle")
    assert driver("soft") is True
    driver("cycle")
    driver("off")
    assert bmc.resets() == [
        "On",
        "PowerCycle",
        "GracefulShutdown",
        "On",
        "ForceOff",
    ], "cycled while off, it is put on"
    assert driver("boot_from_network") is True
    assert bmc.asked[-1] == (
        "PATCH",
        SYSTEM,
        {"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}},
    )
    assert bmc.tags[-1] == 'W/"7"'


@pytest.mark.parametrize(
    ("power", "shown"),
    [
        ("On", "on"),
        ("Off", "off"),
        ("PoweringOn", "off"),
        ("PoweringOff", "on"),
        (None, "unknown"),
        ("Paused", "unknown"),
    ],
)
def test_power_states(
    bmc: Bmc, driver: Callable[[str], Any], power: str | None, shown: str
) -> None:
    bmc.pages[SYSTEM]["PowerState"] = power
    assert driver("status") == shown


def test_without_power_cycle_it_is_off_then_on(bmc: Bmc, driver: Callable[[str], Any]) -> None:
    bmc.allow(["On", "ForceOff", "ForceRestart"])
    bmc.pages[SYSTEM]["PowerState"] = "On"
    driver("cycle")
    assert bmc.resets() == ["ForceOff", "On"]
    assert driver("soft") is False


def test_a_bmc_that_does_not_say_what_it_allows_is_asked_for_what_is_usual(
    bmc: Bmc, driver: Callable[[str], Any]
) -> None:
    bmc.allow(None)
    bmc.pages[SYSTEM]["PowerState"] = "On"
    driver("cycle")
    driver("soft")
    assert bmc.resets() == ["ForceOff", "On", "GracefulShutdown"]


def test_reset_types_may_be_told_elsewhere(bmc: Bmc, driver: Callable[[str], Any]) -> None:
    bmc.pages[SYSTEM]["Actions"]["#ComputerSystem.Reset"] = {
        "target": f"{SYSTEM}/Actions/ComputerSystem.Reset",
        "@Redfish.ActionInfo": f"{SYSTEM}/ResetActionInfo",
    }
    bmc.pages[f"{SYSTEM}/ResetActionInfo"] = {
        "Parameters": [{"Name": "ResetType", "AllowableValues": ["ForceOn", "ForceOff"]}]
    }
    driver("on")
    assert bmc.resets() == ["ForceOn"]
    assert driver("soft") is False


def test_a_bmc_that_cannot_do_it_says_what_it_can(bmc: Bmc, driver: Callable[[str], Any]) -> None:
    bmc.allow(["On", "Nmi"])
    with pytest.raises(
        PowerError, match="allows no reset of type ForceOff: it has On, Nmi"
    ) as raised:
        driver("off")
    assert raised.value.lasting
    bmc.pages[SYSTEM]["Boot"]["BootSourceOverrideTarget@Redfish.AllowableValues"] = ["Hdd"]
    assert driver("boot_from_network") is False
    assert bmc.asked == []


URI = "http://10.77.0.1:8069/boot/once/abcd/ipxe.efi"


def offer_http_boot(bmc: Bmc) -> dict[str, Any]:
    boot: dict[str, Any] = bmc.pages[SYSTEM]["Boot"]
    boot["BootSourceOverrideTarget@Redfish.AllowableValues"].append("UefiHttp")
    boot["HttpBootUri"] = ""
    return boot


def test_a_boot_is_handed_a_uri(bmc: Bmc, driver: Callable[..., Any]) -> None:
    offer_http_boot(bmc)
    assert driver("boot_from_uri", "", URI) is True
    wish = {
        "BootSourceOverrideEnabled": "Once",
        "BootSourceOverrideTarget": "UefiHttp",
        "HttpBootUri": URI,
    }
    assert bmc.asked == [("PATCH", SYSTEM, {"Boot": wish})]
    bmc.pages[SYSTEM]["Boot"]["BootSourceOverrideMode"] = "Legacy"
    assert driver("boot_from_uri", "", URI) is True
    assert bmc.asked[-1][2]["Boot"] == wish | {"BootSourceOverrideMode": "UEFI"}


def test_a_bmc_without_http_boot_is_handed_no_uri(bmc: Bmc, driver: Callable[..., Any]) -> None:
    assert driver("boot_from_uri", "", URI) is False
    boot = offer_http_boot(bmc)
    del boot["HttpBootUri"]
    assert driver("boot_from_uri", "", URI) is False
    assert bmc.asked == []


@pytest.mark.parametrize(("code", "lasting"), [(400, True), (405, True), (412, False)])
def test_a_bmc_that_refuses_a_uri_is_not_asked_again(
    bmc: Bmc, driver: Callable[..., Any], code: int, lasting: bool
) -> None:
    offer_http_boot(bmc)
    listed, system = (json.dumps(bmc.pages[each]).encode() for each in (SYSTEMS, SYSTEM))
    read = [(200, {}, system), (code, {}, b"")]  # the resource, for its ETag; the change
    bmc.first = [(200, {}, listed), (200, {}, system), *read, *read]
    with pytest.raises(PowerError, match=f"HTTP {code}") as raised:
        driver("boot_from_uri", "", URI)
    assert raised.value.lasting is lasting
    assert ("takes no HttpBootUri" in raised.value.sentence) is lasting


def test_a_bmc_that_accepts_a_uri_and_forgets_it_has_not_taken_it(
    bmc: Bmc, driver: Callable[..., Any]
) -> None:
    offer_http_boot(bmc)
    bmc.keeps = False
    assert driver("boot_from_uri", "", URI) is False


def test_one_of_several_systems_has_to_be_named(bmc: Bmc, driver: Callable[..., Any]) -> None:
    bmc.pages["/redfish/v1/Systems"]["Members"].append({"@odata.id": "/redfish/v1/Systems/2"})
    with pytest.raises(PowerError, match="has 2 systems") as raised:
        driver("status")
    assert raised.value.lasting
    assert driver("status", SYSTEM) == "off"


def test_a_busy_bmc_is_asked_again(
    bmc: Bmc, driver: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bmcweb, "LONGEST_PAUSE", 0.05)
    bmc.first = [(503, {"Retry-After": "7"}, b""), (429, {}, b"")]
    monkeypatch.setattr(
        bmcweb, "_pause", lambda response, right=bmcweb._pause: min(right(response), 0.05)
    )
    assert driver("status") == "off"
    bmc.first = [(503, {}, b"")] * 3
    with pytest.raises(PowerError, match="busy") as raised:
        driver("status")
    assert not raised.value.lasting


@pytest.mark.parametrize(
    ("said", "pause"), [("3", 3.0), ("3600", 8.0), ("Wed, 21 Oct 2026", 1.0), (None, 1.0)]
)
def test_how_long_a_busy_bmc_is_left_alone(said: str | None, pause: float) -> None:
    class Response:
        class headers:
            @staticmethod
            def getRawHeaders(_name: str, default: list[str]) -> list[str]:
                return default if said is None else [said]

    assert bmcweb._pause(Response) == pause


def test_a_change_that_lost_a_race_is_made_again(bmc: Bmc, driver: Callable[..., Any]) -> None:
    right = bmc._changed
    answers = [412]

    def changed(request: Any, path: str, body: Any) -> bytes:
        return bmc._send(request, answers.pop(), b"") if answers else right(request, path, body)

    bmc._changed = changed  # type: ignore[method-assign]
    assert driver("boot_from_network") is True
    assert len(bmc.asked) == 2


@pytest.mark.parametrize(
    ("code", "body", "sentence", "lasting"),
    [
        (
            400,
            b'{"error": {"@Message.ExtendedInfo": [{"Message": "No\\n such   thing"}]}}',
            "says: No such thing .HTTP 400",
            False,
        ),
        (500, b'{"error": {"message": "Oops"}}', "says: Oops", False),
        (500, b"<html>", "says: no .HTTP 500", False),
        (403, b"", "refuses user or password", True),
        (404, b"{}", "HTTP 404", True),
        (301, b"", "HTTP 301", False),
        (200, b"<html>", "no JSON", False),
        (200, b"[]", "no Redfish resource", False),
        (200, b"", "no Redfish", False),
        (200, b'{"Members": [{"@odata.id": "http://elsewhere/"}]}', "no usable @odata.id", False),
        (200, b'{"Members": [{"@odata.id": "//elsewhere/"}]}', "no usable @odata.id", False),
        (200, b'{"Members": {}}', "has 0 systems", True),
        (200, b"x" * 2_000_000, "longer than", False),
    ],
)
def test_answers_that_are_none(
    bmc: Bmc, driver: Callable[[str], Any], code: int, body: bytes, sentence: str, lasting: bool
) -> None:
    bmc.first = [(code, {}, body)]
    with pytest.raises(PowerError, match=sentence) as raised:
        driver("status")
    assert raised.value.lasting is lasting


def test_a_bmc_that_is_silent_or_gone(
    bmc: Bmc,
    driver: Callable[[str], Any],
    reactor: Any,
    in_reactor: InReactor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bmcweb, "ANSWER", 0.2)
    bmc.silent = True
    with pytest.raises(PowerError, match="does not answer within") as raised:
        driver("status")
    assert not raised.value.lasting
    monkeypatch.undo()
    bmc.silent = False
    with pytest.raises(PowerError, match=r"does not answer: .*refused"):
        in_reactor(RedfishDriver(reactor).status, Target(f"http://127.0.0.1:{free_port()}", ADMIN))


def test_what_listens_there_is_something_else(reactor: Any, in_reactor: InReactor) -> None:
    class Other(Protocol):
        def connectionMade(self) -> None:
            self.transport.write(b"SSH-2.0-other\r\n")  # type: ignore[call-arg]

    port = in_reactor(reactor.listenTCP, 0, Factory.forProtocol(Other), 50, "127.0.0.1")
    for scheme, sentence in (("https", "does not speak TLS"), ("http", "broke the connection off")):
        with pytest.raises(PowerError, match=sentence) as raised:
            in_reactor(
                RedfishDriver(reactor).status,
                Target(f"{scheme}://127.0.0.1:{port.getHost().port}", ADMIN),
            )
        assert not raised.value.lasting
    in_reactor(port.stopListening)


@pytest.mark.parametrize(
    "address",
    [
        "bmc7",
        "ftp://bmc7",
        "https://",
        "https://admin:secret@bmc7",
        "https://bmc7/redfish/v1/Chassis/1",
        "https://bmc7?x=1",
        "https://bmc7:port",
    ],
)
def test_addresses_that_are_none(reactor: Any, in_reactor: InReactor, address: str) -> None:
    with pytest.raises(PowerError, match="is not of the form https") as raised:
        in_reactor(RedfishDriver(reactor).status, Target(address, ADMIN))
    assert raised.value.lasting
    assert "secret" not in str(raised.value)


# ---------------------------------------------------------------- watts


@pytest.mark.parametrize(
    ("chassis", "more", "watts"),
    [
        (
            {"EnvironmentMetrics": {"@odata.id": "/m"}},
            {"/m": {"PowerWatts": {"Reading": 212.5}}},
            212.5,
        ),
        (
            {"Power": {"@odata.id": "/p"}},
            {"/p": {"PowerControl": [{"PowerConsumedWatts": 180}]}},
            180.0,
        ),
        ({"Power": {"@odata.id": "/p"}}, {"/p": {"PowerControl": []}}, None),
        (
            {"Power": {"@odata.id": "/p"}},
            {"/p": {"PowerControl": [{"PowerConsumedWatts": None}]}},
            None,
        ),
        (
            {"Power": {"@odata.id": "/p"}},
            {"/p": {"PowerControl": [{"PowerConsumedWatts": -1}]}},
            None,
        ),
        ({"Power": {"@odata.id": "/p"}}, {"/p": {"PowerControl": [7]}}, None),
        ({}, {}, None),
        ({"Power": {"@odata.id": "/p"}, "Links": {"ComputerSystems": [{}, {}]}}, {"/p": {}}, None),
    ],
)
def test_watts(
    bmc: Bmc,
    driver: Callable[[str], Any],
    chassis: dict[str, Any],
    more: dict[str, Any],
    watts: float | None,
) -> None:
    bmc.pages[CHASSIS] |= chassis
    bmc.pages |= more
    assert driver("watts") == watts


def test_watts_of_a_system_in_no_chassis(bmc: Bmc, driver: Callable[[str], Any]) -> None:
    del bmc.pages[SYSTEM]["Links"]
    assert driver("watts") is None


def test_a_cycle_that_never_goes_off(
    bmc: Bmc, driver: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redfish, "TO_GO_OFF", 0.1)
    bmc.allow(["On", "ForceOff"])
    bmc.pages[SYSTEM]["PowerState"] = "On"
    bmc._changed = lambda request, path, body: bmc._send(request, 204, b"")  # type: ignore[method-assign]
    with pytest.raises(PowerError, match="not off after") as raised:
        driver("cycle")
    assert raised.value.ignored
    assert bmc.resets() == ["ForceOff"]


# ---------------------------------------------------------------- magic packets


def test_a_magic_packet_is_broadcast_three_times(reactor: Any, in_reactor: InReactor) -> None:
    mac = "52:54:00:ab:cd:ef"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as card:
        card.bind(("0.0.0.0", 0))
        card.settimeout(60)
        target = Target(f"{mac}@127.255.255.255:{card.getsockname()[1]}")
        in_reactor(WolDriver(reactor).on, target)
        packets = [card.recv(1000) for _ in range(3)]
        card.settimeout(0.3)
        with pytest.raises(TimeoutError):
            card.recv(1000)
    assert set(packets) == {magic(mac)}
    assert magic(mac) == bytes.fromhex("ffffffffffff" + "525400abcdef" * 16)


def test_what_a_packet_cannot_do(reactor: Any, in_reactor: InReactor) -> None:
    driver, target = WolDriver(reactor), Target("52:54:00:ab:cd:ef@127.255.255.255")
    assert in_reactor(driver.status, target) == "unknown"
    for command in (driver.off, driver.cycle):
        with pytest.raises(PowerError, match="cannot switch off") as raised:
            in_reactor(command, target)
        assert raised.value.lasting
    assert in_reactor(driver.soft, target) is False
    assert in_reactor(driver.boot_from_network, target) is False
    assert in_reactor(driver.watts, target) is None


def test_a_network_that_cannot_be_reached(reactor: Any, in_reactor: InReactor) -> None:
    with pytest.raises(
        PowerError, match=r"no packet can be sent to 255\.255\.255\.255:|is not of the form"
    ):
        in_reactor(WolDriver(reactor).on, Target("52:54:00:ab:cd:ef@255.255.255.255:0"))

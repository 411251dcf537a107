"""Answers of a switch that are not OVSDB: a session ends at once with a sentence, whatever
comes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cod.model import Switch
from cod.switches.driver import SwitchError, SwitchTarget
from cod.switches.ovs import OvsDriver
from tests.net import switchsession

MONITORED = {"Open_vSwitch": {"x": {"new": {"cur_cfg": 1, "ovs_version": "3.1.0"}}}}
Listen = Callable[..., str]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    """Serve one connection: the answers to its questions, one after the other, as bytes or as
    results."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "db.sock"))
    server.listen()

    def serve(answers: tuple[Any, ...]) -> None:
        with suppress(OSError):
            peer, _ = server.accept()
            for number, answer in enumerate(answers):
                peer.recv(65536)
                peer.sendall(
                    answer
                    if isinstance(answer, bytes)
                    else json.dumps({"id": number, "result": answer, "error": None}).encode()
                )
            while peer.recv(65536):
                pass

    def listen(*answers: Any) -> str:
        Thread(target=serve, args=(answers,), daemon=True).start()
        return f"unix:{tmp_path}/db.sock"

    yield listen
    server.close()


@pytest.mark.parametrize(
    "answers",
    [
        (b"[" * 100_000,),
        (b"7",),
        (7,),
        ({"Open_vSwitch": 7},),
        ({"Open_vSwitch": {"x": {"new": {"cur_cfg": "one"}}}},),
        (b'{"method": "update", "params": []}',),
        (MONITORED, {}),
        (MONITORED, []),
        (MONITORED, [7]),
        (MONITORED, [{"rows": 7}]),
        (MONITORED, [{"rows": [7]}]),
    ],
    ids=range(11),
)
def test_what_is_not_ovsdb_ends_the_session(
    reactor: Any, in_reactor: Any, listen: Listen, answers: tuple[Any, ...]
) -> None:
    target = SwitchTarget(Switch("leaf", "ovs", listen(*answers)))
    with pytest.raises(SwitchError, match="does not speak OVSDB"):
        switchsession.ask(in_reactor, OvsDriver(reactor), target, {}, "p1")


def test_a_change_is_answered_in_another_shape(
    reactor: Any, in_reactor: Any, listen: Listen
) -> None:
    target = SwitchTarget(
        Switch("leaf", "ovs", listen(MONITORED, [{"count": 1}, {"count": 1}, {"rows": []}]))
    )
    with pytest.raises(SwitchError, match="does not speak OVSDB"):
        switchsession.ask(in_reactor, OvsDriver(reactor), target, {"p1": 20}, "p1")


def test_a_letter_that_comes_in_two_pieces_is_one(reactor: Any, in_reactor: Any) -> None:
    from cod.switches.ovs import _Ovsdb

    connection = _Ovsdb()
    connection.transport = type("Transport", (), {"write": lambda self, data: None})()
    answer = connection.ask("echo", [])
    whole = json.dumps(
        {"id": 0, "result": "Vermittlungsstück", "error": None}, ensure_ascii=False
    ).encode()
    cut = whole.index("ü".encode()) + 1
    connection.dataReceived(whole[:cut])
    connection.dataReceived(whole[cut:])
    said: list[Any] = []
    answer.addCallback(said.append)
    assert said == ["Vermittlungsstück"]

"""Questions that cost the server much: bounded before anything is parsed, checked in a thread,
rationed by person."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from lxml import etree

from cod.client import ApiError, Client
from cod.flows.images import templates
from cod.web.api import calls
from cod.wire import xmldoc
from tests.net.apiserver import Served

GOOD = '<template name="{}"><boot mode="diskless"><kernel url="http://h/k"/></boot></template>'


def heavy(elements: int, size: int = 0) -> str:
    """A document of so many elements, none of which is wrong before all have been looked at."""
    flags = "".join(f'<flag equal="f{number}"/>' for number in range(elements))
    return (
        f'<template name="heavy"><requires><cpu>{flags}</cpu></requires><image target="disk"'
        ' name="a"/>'
        f"<description>{'x' * size}</description></template>"
    )


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (heavy(10_000), "more than 4000 tags or attributes"),
        (heavy(1, 2**18), "at most 262144 are read"),
        (
            "<template " + " ".join(f'a{n}="1"' for n in range(5000)) + "/>",
            "more than 4000 tags or attributes",
        ),
    ],
)
def test_what_is_too_much_is_refused_before_it_is_parsed(
    document: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etree, "fromstring", lambda *_: pytest.fail("it is parsed"))
    with pytest.raises(xmldoc.BadDocument, match=words):
        xmldoc.parse(document.encode(), "template")


def test_a_document_of_the_most_elements_is_soon_checked() -> None:
    begun = time.process_time()
    xmldoc.parse(heavy(3980).encode(), "template")
    assert time.process_time() - begun < 1.0


def test_a_check_under_way_delays_neither_database_nor_reactor(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold six checks at once: other pages are answered before any check has ended."""
    begun, go_on = threading.Event(), threading.Event()
    real: Callable[[str], Any] = templates.read

    def slow(document: str) -> Any:
        begun.set()
        assert go_on.wait(60)
        return real(document)

    monkeypatch.setattr(templates, "read", slow)
    answers: list[Any] = []
    askers = [
        threading.Thread(
            target=lambda n=n: answers.append(
                Client(served.local.server).post(
                    "/templates/check", {"document": GOOD.format(f"t{n}")}
                )
            )
        )
        for n in range(6)
    ]
    for asker in askers:
        asker.start()
    try:
        assert begun.wait(60)
        served.local.get("/nodes")
        delays = []
        for _ in range(10):
            at = time.monotonic()
            served.local.get("/nodes")
            # what writes is not held up either
            served.local.post("/groups", {"name": f"g{len(delays)}"})
            delays.append(time.monotonic() - at)
        assert not answers, "a check went on by itself"
    finally:
        go_on.set()
        for asker in askers:
            asker.join(60)
    assert [answer["ok"] for answer in answers] == [True] * 6
    print(f"pages beside six checks: {sorted(delays)} s")


def test_each_person_has_a_ration(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "BURST", 3.0)
    monkeypatch.setattr(calls, "RATE", 0.001)
    token = served.local.post("/tokens", {"name": "ann", "scope": "admin"})["token"]
    other = served.local.post("/tokens", {"name": "bob", "scope": "admin"})["token"]
    ann, bob = served.remote(token), served.remote(other)
    body = {"document": GOOD.format("t")}
    for _ in range(3):
        assert ann.post("/templates/check", body)["ok"]
    with pytest.raises(ApiError) as refused:
        ann.post("/templates/check", body)
    assert (refused.value.status, refused.value.code) == (429, "slow_down")
    assert bob.post("/templates/check", body)["ok"]
    assert ann.get("/nodes")["items"] == []
    for _ in range(5):
        # the local administrator could stop the server as well
        served.local.post("/templates/check", body)

"""The look at what a test leaves behind finds it, and leaves alone what is others'."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from tests.leftovers import Before, process


def test_a_thread_that_goes_on_is_named_and_one_that_ends_is_waited_for() -> None:
    before, go = Before(), threading.Event()
    thread = threading.Thread(target=go.wait, name="agent")
    thread.start()
    assert before.left(0.0) == ["the thread 'agent'"]
    assert Before().left(0.0) == [], "it was there before"
    threading.Timer(0.05, go.set).start()
    assert before.left() == []


@pytest.mark.parametrize(
    "name", ["PoolThread-twisted.internet.reactor-3", "Thread-8 (process_request_thread)"]
)
def test_threads_that_others_go_on_using_are_not_the_tests(name: str) -> None:
    before, go = Before(), threading.Event()
    thread = threading.Thread(target=go.wait, name=name)
    thread.start()
    assert before.left(0.0) == []
    go.set()
    thread.join()


def test_what_a_test_changes_and_does_not_put_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = Before()
    monkeypatch.setenv("COD_NOBODYS", "1")
    monkeypatch.chdir(tmp_path)
    level = logging.getLogger().level
    logging.getLogger().setLevel(level + 1)
    before.ended = process()
    assert before.left() == ["the root logger's level", "the working directory", "the environment"]
    logging.getLogger().setLevel(level)
    assert before.left() == ["the working directory", "the environment"]
    monkeypatch.undo()
    assert before.left() == []


def test_what_a_fixture_had_changed_and_puts_back_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COD_NOBODYS", "1")
    before = Before()
    before.ended = process()
    monkeypatch.undo()
    assert before.left() == []
    assert "COD_NOBODYS" not in os.environ

"""Ports of loopback that are free, and stay so until somebody who was told binds them."""

from __future__ import annotations

import random
import socket

_chance = random.SystemRandom()  # not the seeded one: workers would all draw the same


def free_port(*kinds: int) -> int:
    """A port that nobody uses now for sockets of those kinds (none: TCP). It lies below those that
    the kernel gives to whoever asks for any: a connection that another test makes in the meantime
    does not take it."""
    for _ in range(1000):
        number = _chance.randrange(15_000, 32_000)
        if all(_is_free(number, kind) for kind in kinds or (socket.SOCK_STREAM,)):
            return number
    raise AssertionError("no port is free")


def _is_free(number: int, kind: int) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
        return True

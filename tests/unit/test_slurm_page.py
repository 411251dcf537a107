"""docs/slurm tells what sites have to set, and the numbers of the code."""

from __future__ import annotations

import re

import pytest

from cod.vcm.slurm import blackholes, system
from tests.manual import page

PAGE = " ".join(page("slurm").read_text().split())


@pytest.mark.parametrize(
    "text",
    [
        "Clocks have to agree within two seconds",
        "with `cred_expire=5` a node that is 20 s ahead",
        "cred_expire=30",
        "GresTypes",
        "AccountingStorage",
        "SchedulerParameters=",
        "bf_interval=5",
        "port 8071",
        "`-w pattern5`",
        "scontrol reconfigure",
    ],
)
def test_what_a_site_has_to_know_is_on_the_page(text: str) -> None:
    assert text in PAGE


def test_the_page_s_numbers_of_nodes_that_fail_jobs_are_those_of_the_code() -> None:
    words = {"five": 5, "four": 4, "three": 3}
    (jobs, seconds) = re.findall(r"drains such a node: (\w+) jobs, .*? within (\d+) s,", PAGE)[0]
    assert (words[jobs], float(seconds)) == (blackholes.JOBS, blackholes.QUICK)
    assert "No more than a quarter of the pool's nodes" in PAGE
    assert system.MOST_CLOSED == 4

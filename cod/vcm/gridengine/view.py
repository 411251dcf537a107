"""The hosts and jobs of a Grid Engine pool, read from ``qstat -f -r -u '*' -xml``.

The document has an element `Queue-List` for each queue instance, with the jobs that run there, and
behind them the waiting jobs. An unexpected form raises `NotUnderstood`: a pool that cannot be read
must not be changed. Times are local times of the master, without a zone; they are only compared
with each other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lxml import etree

from cod.vcm.batch.commands import NotUnderstood, task_ranges

LARGEST = 64 * 2**20  # bytes of qstat's output


@dataclass(frozen=True, slots=True)
class Running:
    """A job, or one task of an array, with `slots` slots on one host. `started` is seconds on the
    master's clock."""

    job: int
    task: int
    slots: int
    started: float
    state: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that has not started: `tasks` tasks, each of which needs `slots` slots.

    state       as qstat writes it: qw, hqw, Eqw, Rq …
    parallel    its parallel environment, or ''
    resources   hard requests (-l) by name
    queues      the queues that it must run in (-q), as it names them; none: any queue
    considered  the scheduler has given it a priority, which it does when it first examines the
                job, and not before the job's earliest time (-a)
    """

    job: int
    state: str
    slots: int = 1
    tasks: int = 1
    parallel: str = ""
    resources: Mapping[str, str] = field(default_factory=dict)
    queues: tuple[str, ...] = ()
    considered: bool = True

    @property
    def ready(self) -> bool:
        """Return whether the job would start if there were room. Held, erroneous and deleted jobs
        would not."""
        return self.considered and not set(self.state) & set("hEd")


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the pool. `states` has the letters of its queue instance: d disabled, u unheard, o
    orphaned, E …

    heard  its execution daemon has reported since the master knows it
    """

    name: str
    slots: int
    used: int
    states: str
    heard: bool
    running: tuple[Running, ...] = ()

    @property
    def usable(self) -> bool:
        """Return whether the host takes jobs."""
        return self.heard and not self.states


@dataclass(frozen=True, slots=True)
class View:
    """The pool at one moment. `hosts` by short name, in the queue that was read."""

    hosts: Mapping[str, Host]
    waiting: tuple[Waiting, ...] = ()


def read(output: bytes, queue: str) -> View:
    """Return the state of the pool's `queue`. Raises `NotUnderstood`."""
    root = _root(output)
    hosts = {host.name: host for host in _hosts(root, queue)}
    return View(hosts, tuple(_waiting(job) for job in root.findall("job_info/job_list")))


def offered(output: bytes, queue: str, members: Collection[str]) -> dict[str, str]:
    """Return the resources of the pool's hosts that -l can request, by name, read from ``qstat -F
    -xml``: the largest value that any of `members` offers, and the values that the queue itself
    defines, which qstat also shows for hosts that never reported. Raises `NotUnderstood`."""
    best: dict[str, str] = {}
    for instance in _root(output).iterfind("queue_info/Queue-List"):
        name, _, host = _text(instance, "name").partition("@")
        heard = host.split(".")[0] in members and instance.find("arch") is not None
        if name != queue:
            continue
        for each in instance.iterfind("resource"):
            key, value = each.get("name", ""), (each.text or "").strip()
            if (heard or each.get("type") == "qf") and (key not in best or more(value, best[key])):
                best[key] = value
    return best


_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)")
_TIME = re.compile(r"([0-9]*):([0-9]{1,2}):([0-9]{1,2})")
_FACTORS = {
    "": 1.0,
    "k": 1e3,
    "K": 2.0**10,
    "m": 1e6,
    "M": 2.0**20,
    "g": 1e9,
    "G": 2.0**30,
    "t": 1e12,
    "T": 2.0**40,
}


def amount(text: str) -> float | None:
    """Return the amount of memory, the time or the number in the text (complex(5)); None if it is
    none of these."""
    if text.lower() == "infinity":
        return float("inf")
    if found := _TIME.fullmatch(text):
        return int(found[1] or 0) * 3600.0 + int(found[2]) * 60.0 + int(found[3])
    counted = _AMOUNT.fullmatch(text)
    return float(counted[1]) * _FACTORS[counted[2]] if counted else None


def more(one: str, other: str) -> bool:
    """Return whether both texts are amounts, and the first is the larger one."""
    first, second = amount(one), amount(other)
    return first is not None and second is not None and first > second


# characters that XML forbids, but names of jobs may contain
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def _root(output: bytes) -> etree._Element:
    if len(output) > LARGEST:
        raise NotUnderstood(f"{len(output)} bytes of output")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True)
    try:
        root = etree.fromstring(
            _NO_TEXT.sub("\ufffd", output.decode(errors="replace")).encode(), parser
        )
    except etree.XMLSyntaxError as error:
        raise NotUnderstood(f"not XML: {error.msg}") from None
    if root.tag != "job_info" or root.find("queue_info") is None or root.find("job_info") is None:
        raise NotUnderstood(f"a {root.tag} without queues and jobs in it")
    return root


def _hosts(root: etree._Element, queue: str) -> Iterator[Host]:
    for instance in root.iterfind("queue_info/Queue-List"):
        name, _, host = _text(instance, "name").partition("@")
        if name == queue and host:
            yield Host(
                host.split(".")[0],
                _number(instance, "slots_total"),
                _number(instance, "slots_used"),
                instance.findtext("state") or "",
                instance.find("arch") is not None,
                tuple(_running(job) for job in instance.iterfind("job_list")),
            )


def _running(job: etree._Element) -> Running:
    task = job.findtext("tasks") or "0"
    return Running(
        job=_number(job, "JB_job_number"),
        task=int(task) if task.isdecimal() else 0,
        slots=_number(job, "slots"),
        started=_time(_text(job, "JAT_start_time")),
        state=_text(job, "state"),
    )


def _waiting(job: etree._Element) -> Waiting:
    requested = job.find("requested_pe")
    return Waiting(
        job=_number(job, "JB_job_number"),
        state=_text(job, "state"),
        slots=_number(job, "slots"),
        tasks=sum(map(len, task_ranges(job.findtext("tasks") or "1"))),
        parallel="" if requested is None else requested.get("name", ""),
        resources={
            each.get("name", ""): (each.text or "").strip() for each in job.iterfind("hard_request")
        },
        queues=tuple((each.text or "").strip() for each in job.iterfind("hard_req_queue")),
        considered=not re.fullmatch(r"0+(\.0*)?", (job.findtext("JAT_prio") or "1").strip()),
    )


def _text(element: etree._Element, name: str) -> str:
    text = element.findtext(name)
    if not text:
        raise NotUnderstood(f"line {element.sourceline}: {element.tag} without {name}")
    return text.strip()


def _number(element: etree._Element, name: str) -> int:
    text = _text(element, name)
    if not re.fullmatch("[0-9]{1,15}", text):
        raise NotUnderstood(f"line {element.sourceline}: {name} is {text!r}")
    return int(text)


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise NotUnderstood(f"the time {text!r}") from None

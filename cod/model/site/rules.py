"""The site's rules for its nodes, as its administrator writes them: the allocation of nodes, and
the nodes that stay awake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from cod.choices import Wipe
from cod.model.keys import (
    AbsolutePath,
    Mark,
    NotNegative,
    NotNegativeSeconds,
    Positive,
    PositiveSeconds,
    Priority,
    Read,
    SiteTable,
    site_key,
)


def _once(victims: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(victims)) < len(victims):
        raise ValueError("should name each criterion once")
    return victims


@dataclass(frozen=True, slots=True)
class Policy(SiteTable):
    """The site's rules. Re-read on SIGHUP."""

    unknown: Literal["discover", "known-only"] = site_key(
        "discover",
        "PXE clients that are not in the database: 'discover' answers and registers them,"
        " 'known-only' leaves them to another server",
        fixed="machines that are not the site's could be booted, and erased",
    )
    auto_approve: bool = site_key(
        False,
        "new machines need no administrator's approval. With true, any "
        "machine that network-boots here may have its disks wiped",
        fixed="machines could be erased that nobody has looked at",
    )
    new_rate: float = site_key(
        2.0,
        "new machines a second that are registered of those behind one relay, or on one"
        " interface: invented MACs cannot fill database and boot pool. A subnet may have four"
        " times that, a switch port (option 82) an eighth. Refused machines are registered when"
        " they ask again",
        ge=0.01,
        le=1000,
    )
    new_burst: int = site_key(
        500,
        "new machines that are registered at once before "
        "`new_rate` counts: as many as are switched on together",
        ge=1,
        le=100_000,
    )
    new_machines: int = site_key(
        5000,
        "machines that wait for approval or have never "
        "reported, at most; those that never reported give way, oldest first",
        ge=1,
        le=1_000_000,
    )
    new_time: NotNegativeSeconds = site_key(
        86400.0,
        "seconds after which a machine that has never reported, and "
        "does not ask any more, is forgotten; 0: never",
    )
    approved_share: float = site_key(
        0.25,
        "share of each boot pool that only approved machines "
        "get addresses of: they boot however many new machines ask",
        ge=0,
        le=0.9,
    )
    patience: Positive = site_key(
        1.0, "factor on every deadline of the node lifecycle (slow firmware)"
    )
    binding_time: PositiveSeconds = site_key(
        3600.0, "seconds of a DHCP binding given to an operating system"
    )
    boot_time: PositiveSeconds = site_key(
        900.0, "seconds of a DHCP binding given to firmware and trampoline"
    )
    heartbeat: PositiveSeconds = site_key(
        5.0,
        "seconds between an agent's signs of life; three missed are a loss",
        fixed="agents that are connected keep the former value",
    )
    secret_time: PositiveSeconds = site_key(300.0, "seconds in which a boot's secret must be used")
    default_lease: PositiveSeconds = site_key(
        86400.0, "seconds of a vcluster's lease where its group says nothing"
    )
    moves: Literal["ask", "follow"] = site_key(
        "ask",
        "a node that boots from another relay or switch port than before: 'ask' has it wait for"
        " an administrator, 'follow' takes it as it is",
        fixed="it guards nodes from machines that pretend to be them",
    )
    os_addresses: Literal["ours", "theirs"] = site_key(
        "ours",
        "who gives nodes' systems their addresses: 'ours' is COD, 'theirs' is another DHCP"
        " server on the same network, whose addresses COD takes as the nodes'",
        fixed="it moves addresses",
    )
    wipe: Wipe = site_key(
        Wipe.ZERO,
        "how disks are erased at least: zero (every byte reads as zero), purge (disks that can"
        " do so erase themselves first, then the same; preview), or tables (partition tables"
        " and signatures at once, the rest before another group gets the node; preview)",
        fixed="data that were not erased cannot be taken back",
    )
    same_wwn: Literal["refuse", "paths", "disks"] = site_key(
        "refuse",
        "disks of one machine that show one WWN: refuse (none is used), paths (of a disk with"
        " two ports: the first is used), or disks (with a copied WWN: each is used); from a"
        " machine's next boot of the trampoline on",
        fixed="disks could be written twice",
    )
    power_cycle: bool = site_key(True, "may COD power-cycle nodes that overrun a deadline")
    power_rate: float = site_key(
        8.0,
        "machines of one power driver that are begun to be "
        "switched in a second, at most: a rack that starts at once trips its breaker",
        ge=0.01,
        le=1000,
    )
    power_at_once: int = site_key(
        16,
        "machines of one power driver that are being switched at "
        "a time, at most: a command and its verification",
        ge=1,
        le=1000,
    )
    inertia: NotNegativeSeconds = site_key(
        300.0, "seconds for which a newly assigned node is immune from reclaims"
    )
    inertia_by_priority: Mapping[Priority, NotNegativeSeconds] = site_key(
        {}, "the same for holders of one priority: { 10 = 3600 }"
    )
    age_step: PositiveSeconds = site_key(
        600.0,
        "seconds: requests of one priority submitted within the same step "
        "are of one age, and the more constraining goes first",
    )
    hold_after: NotNegativeSeconds = site_key(
        3600.0,
        "seconds that a request waits before nodes that come free are held back for it, so that"
        " later ones of its priority do not pass it for ever; 0: never",
    )
    reclaim_grace: NotNegativeSeconds = site_key(
        300.0,
        "seconds that a holder has to give nodes back before they "
        "are seized for a request of higher priority",
    )
    max_grace: NotNegativeSeconds = site_key(
        0.0,
        "seconds that a group may set as its own grace of a reclaim, such "
        "as 7200; 0: no more than reclaim_grace",
    )
    victims: Annotated[
        tuple[Literal["cheap-type", "whole-block", "last-started"], ...], Read(_once)
    ] = site_key(
        ("cheap-type", "last-started"),
        "which nodes of preemptible vclusters are taken first, the criterion that counts most"
        " in front: cheap-type (of the type of lowest cost), whole-block (of the block that can"
        " lose most), last-started (those whose work began last)",
    )
    drain_grace: NotNegativeSeconds = site_key(
        300.0, "seconds between the end of a lease and the seizure of its nodes"
    )
    turnaround: NotNegativeSeconds = site_key(
        900.0,
        "seconds until nodes that are given back are free again, erased: reservations in"
        " advance count on that until it is learnt of the nodes' type",
    )
    lease_warnings: tuple[PositiveSeconds, ...] = site_key(
        (86400.0, 3600.0), "seconds before the end of a lease at which its group is warned"
    )
    fair: Literal["tree", "classic", "dominant"] = site_key(
        "tree",
        "how groups of one priority are ranked by their "
        "shares and what they have used: Slurm's Fair Tree, or its classic "
        "formula; or by their dominant shares: by what they hold of the type of nodes of which "
        "they hold most",
    )
    fair_half_life: NotNegativeSeconds = site_key(
        0.0,
        "seconds in which half of what a group has used fades, such "
        "as 604800; 0: groups of one priority are not ranked, and nothing is taken "
        "from equals by their shares",
    )
    node_limit: int = site_key(
        0,
        "nodes that a group may hold at once, where the group says nothing; 0: no limit",
        ge=0,
        le=10_000_000,
    )
    max_lease: NotNegativeSeconds = site_key(
        0.0,
        "seconds of a whole lease, with all extensions, where the group says nothing; 0: no limit",
    )
    pending_requests: int = site_key(
        200,
        "requests and reservations of a group that wait for nodes at once; 0: no limit. The"
        " group site has none",
        ge=0,
        le=100_000,
    )
    changes: int = site_key(
        600,
        "changes that one person makes in a minute through portal and API, at most; 0: no limit",
        ge=0,
        le=1_000_000,
    )


@dataclass(frozen=True, slots=True)
class Energy(SiteTable):
    """The reserve pool: how many free nodes stay awake. Types may have their own marks and watts.
    Re-read on SIGHUP."""

    manage: bool = site_key(False, "put surplus nodes to sleep and wake them when they are needed")
    warm_low: Mark = site_key(1, "fewer free nodes of a type awake than this: wake some")
    warm_high: Mark = site_key(4, "more than this awake and idle: put some to sleep")
    forecast_weeks: int = site_key(
        0,
        "weeks by which the marks of each weekday and hour are forecast, between warm_low and "
        "warm_high; 0: those are the marks",
        ge=0,
        le=4,
        unit="weeks",
    )
    forecast_quantile: float = site_key(
        0.9, "share of those weeks for which the forecast would have sufficed", gt=0, le=1
    )
    idle_time: NotNegativeSeconds = site_key(
        900.0, "seconds that a node is idle before it may be put to sleep"
    )
    wake_time: PositiveSeconds = site_key(
        600.0, "seconds that a node has for waking, when it wakes alone"
    )
    wake_step: NotNegativeSeconds = site_key(
        5.0, "seconds more for each node that wakes at the same time"
    )
    watts_off: NotNegative = site_key(
        5.0, "a node asleep, in watts, where its BMC does not measure", unit="watts"
    )
    watts_idle: NotNegative = site_key(80.0, "a node awake in the reserve", unit="watts")
    watts_busy: NotNegative = site_key(200.0, "a node in use", unit="watts")
    carbon: NotNegative = site_key(
        0.0,
        "grams of CO2 emitted for each kWh, where no curve says it; 0: emissions are not counted",
        unit="g/kWh",
    )
    currency: str = site_key("EUR", "of prices and budgets", pattern=r"\S", max_length=8)
    price_node_hour: NotNegative = site_key(
        0.0, "price of a node held for an hour, for accounts and budgets; energy comes on top"
    )
    price_kwh: NotNegative = site_key(0.0, "price of a kWh, for accounts and budgets")
    curve_file: AbsolutePath | None = site_key(
        None, "CSV of the price of a kWh, or the CO2 emitted for it, by the hour"
    )
    curve_url: str = site_key(
        "",
        "in place of a file: where it is asked for",
        max_length=500,
        secret=True,
        fixed="the server connects to that address",
    )
    curve_of: Literal["carbon", "price"] = site_key(
        "carbon", "what the curve says: grams of CO2, or a price", fixed="it goes with the curve"
    )
    curve_poll: float = site_key(
        900.0, "seconds between looks at the curve", ge=60, le=86_400, unit="seconds"
    )
    curve_stale: PositiveSeconds = site_key(
        21_600.0, "seconds after which the curve that was read last is too old"
    )
    hold_above: float | None = site_key(
        None,
        "preemptible clusters get no nodes while the curve is above this; left out: always",
        allow_inf_nan=False,
    )

    @property
    def curve(self) -> str:
        """Return the file or the address of the curve; '' where the site has none."""
        return self.curve_file or self.curve_url

"""All checks, in the order in which an administrator repairs what they find."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from cod import host
from cod.doctor.finding import BAD, GOOD, UNSEEN, Context, Finding
from cod.host import Interface
from cod.site import load
from cod.site.load import ConfigError
from cod.site.own_address import own_first

# Name: (module, function). Modules are loaded when their check is made: some bring the drivers,
# some the database.
CHECKS = {
    "network": ("network", "findings"),
    "ports": ("ports", "findings"),
    "firewall": ("firewall", "findings"),
    "dhcp": ("dhcp", "findings"),
    "loaders": ("boot", "loaders"),
    "trampoline": ("boot", "trampoline"),
    "programs": ("boot", "programs"),
    "database": ("database", "findings"),
    "servers": ("servers", "findings"),
    "room": ("disk_space", "findings"),
    "clock": ("clock", "findings"),
    "certificates": ("certificates", "findings"),
    "permissions": ("permissions", "findings"),
    "users": ("users", "findings"),
    "power": ("machines", "findings"),
    "switches": ("switches", "findings"),
    "outside": ("external_services", "findings"),
    "kerberos": ("kerberos", "findings"),
    "faults": ("faults", "findings"),
    "settings": ("settings", "findings"),
    "delegation": ("delegation", "findings"),
    "tenants": ("tenants", "findings"),
}


def examine(
    site_file: Path,
    now: float,
    only: Collection[str] = (),
    begun: Callable[[str], object] = lambda check: None,
) -> Iterator[Finding]:
    """Yield the findings of the checks in `only`, or of all checks if it is empty. No check changes
    anything. `begun` is told each check before it is made."""
    try:
        site, settings = load.load(site_file)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding(
                BAD,
                f"{site_file}: {problem}",
                "correct the site file; `cod init` writes one where there is none",
                check="site file",
            )
        return
    yield Finding(GOOD, f"{site_file}: site {site.name}", check="site file")
    interfaces: Mapping[str, Interface] | None = None
    try:
        interfaces = host.interfaces()
    except host.Unknown as error:
        yield Finding(
            UNSEEN, str(error), "run `cod doctor` again when that is mended", check="network"
        )
    site = own_first(site, host.addresses(interfaces or {}))
    context = Context(site, settings, interfaces, now, os.geteuid() == 0)
    for name, (module, function) in CHECKS.items():
        if not only or name in only:
            begun(name)
            try:
                check = getattr(importlib.import_module(f"cod.doctor.checks.{module}"), function)
                yield from (replace(each, check=name) for each in check(context))
            except Exception as error:  # an error in one check must not hide the findings of others
                yield Finding(
                    UNSEEN,
                    f"the check failed: {type(error).__name__}: {error}",
                    "report this as an error of COD",
                    check=name,
                )

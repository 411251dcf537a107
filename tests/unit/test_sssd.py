"""What SSSD on a node is told."""

from __future__ import annotations

from configparser import ConfigParser

from cod.model import PosixRules
from cod.policy.nodes import sssd


def test_newcomers_are_soon_known_and_leavers_soon_forgotten() -> None:
    """Keep the promises: within ten seconds, and within a minute."""
    (script,) = sssd.seed_part("web", "cod.test", ["10.77.0.1"], "PEM", PosixRules()).scripts
    told = ConfigParser(interpolation=None)
    told.read_string(script.split("/sssd.conf <<'END'\n")[1].split("END\n")[0])
    assert told.getint("nss", "entry_negative_timeout") < 10
    assert told.getint("domain/cod", "entry_cache_timeout") < 60
    assert told.getint("domain/cod", "entry_cache_sudo_timeout") < 60
    assert told.getint("domain/cod", "ldap_sudo_full_refresh_interval") < 60

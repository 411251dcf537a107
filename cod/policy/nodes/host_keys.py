"""SSH host keys of nodes: how the seed brings them, and how SSH clients and DNS say them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cod.model import HostKey
from cod.policy.nodes.seed import SeedPart

FILE = "ssh_host_ed25519_key"
"""Of the seed, for images that read it themselves."""

# numbers of RFC 4255, 6594, 7479
_SSHFP = {"ssh-rsa": 1, "ecdsa-sha2-nistp256": 3, "ssh-ed25519": 4}
_SHA256 = 2


def seed_part(key: HostKey, private: str) -> SeedPart:
    """Return the seed's part with an Ed25519 key, for the node alone. cloud-init then makes no host
    keys of its own."""
    config = {
        "ssh_keys": {"ed25519_private": private, "ed25519_public": f"{key.algorithm} {key.key}"}
    }
    return SeedPart(cloud_config=config, files={FILE: private}, secret=True)


def sshfp(key: HostKey) -> tuple[int, int, str] | None:
    """Return the data of the key's SSHFP record: algorithm, type of the fingerprint, and that in
    hex; None for an algorithm without a number."""
    number = _SSHFP.get(key.algorithm)
    return None if number is None else (number, _SHA256, key.digest.hex())


def known_hosts(names: Sequence[str], keys: Iterable[HostKey]) -> list[str]:
    """Return lines of a known_hosts file (sshd(8)) for a host of those names and addresses."""
    return [f"{','.join(names)} {key.algorithm} {key.key}" for key in keys]

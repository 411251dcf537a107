"""SSH host keys of nodes: in the seed, in known_hosts files, and in DNS records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cod.model import HostKey
from cod.policy.nodes.seed import SeedPart

FILE = "ssh_host_ed25519_key"
"""The seed's file with the private key, for images that read the seed themselves."""

# numbers of RFC 4255, 6594, 7479
_SSHFP = {"ssh-rsa": 1, "ecdsa-sha2-nistp256": 3, "ssh-ed25519": 4}
_SHA256 = 2


def seed_part(key: HostKey, private: str) -> SeedPart:
    """Return the seed's part with an Ed25519 host key, which is secret. With it, cloud-init
    generates no host keys."""
    config = {
        "ssh_keys": {"ed25519_private": private, "ed25519_public": f"{key.algorithm} {key.key}"}
    }
    return SeedPart(cloud_config=config, files={FILE: private}, secret=True)


def sshfp(key: HostKey) -> tuple[int, int, str] | None:
    """Return the data of the key's SSHFP record: (algorithm, fingerprint type, fingerprint in hex).
    None: the algorithm has no number."""
    number = _SSHFP.get(key.algorithm)
    return None if number is None else (number, _SHA256, key.digest.hex())


def known_hosts(names: Sequence[str], keys: Iterable[HostKey]) -> list[str]:
    """Return lines of a known_hosts file (sshd(8)) for a host of those names and addresses."""
    return [f"{','.join(names)} {key.algorithm} {key.key}" for key in keys]

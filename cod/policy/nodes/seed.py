"""The seed of a node: files that cloud-init, or the image itself, reads at the first boot. Pure.

Each subject that configures a node (SSH keys, accounts, host keys, a VCM) makes a `SeedPart`;
`cod.core.seed_parts` lists them. This module merges the parts, because cloud-init would let one
list of `write_files` replace another.

Images that read the seed themselves find the `files` of the parts beside the files of cloud-init.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cod.policy import stories
from cod.policy.nodes.template import Configuration

INSTALLATION = "cod-installation"  # the key of the meta-data
_TYPES = {
    "#!": "text/x-shellscript",
    "#cloud-config": "text/cloud-config",
    "#cloud-boothook": "text/cloud-boothook",
}


@dataclass(frozen=True, slots=True)
class SeedPart:
    """One subject's share of a seed.

    meta          keys of the meta-data
    cloud_config  keys of the vendor data's cloud-config: mappings and lists of several parts are
                  joined. A template's user data replaces a key of the same name, lists included:
                  what must not be lost goes into `scripts`
    scripts       `#!` scripts of the vendor data, which run once, late in the first boot, before
                  those of the user data; or `#cloud-boothook`s, which run early in every boot
    files         files beside those of cloud-init, by name
    secret        the part is written to the disk only, and never told by the metadata service
    """

    meta: Mapping[str, object] = field(default_factory=dict)
    cloud_config: Mapping[str, object] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    secret: bool = False


def login_keys(keys: Sequence[str]) -> SeedPart:
    """Return the part with the lines of root's authorized_keys.

    cloud-init takes the keys from the meta-data, for its default user and, since the vendor data
    allows it, for root.
    """
    if not keys:
        return SeedPart()
    return SeedPart(
        {"public-keys": list(keys)},
        {"disable_root": False},
        files={"authorized_keys": "".join(f"{key}\n" for key in keys)},
    )


def metadata_service(url: str, *others: str) -> SeedPart:
    """Return the part with the URLs of the node's metadata service: `url`, then the `others`; each
    ends in /."""
    more = {"cod-metadata-others": [f"{each}latest/" for each in others]} if others else {}
    return SeedPart({"cod-metadata": f"{url}latest/", **more})


def installation(vcluster_id: int, created_at: float, digest: str) -> SeedPart:
    """Return the part that names the vcluster, by its id and the time when it was made, and the
    template, by its digest. With the instance id, agents report it to a server whose database may
    have forgotten the installation (`cod.policy.stories`)."""
    return SeedPart({INSTALLATION: stories.installation(vcluster_id, created_at, digest)})


def seed_files(
    configuration: Configuration,
    *,
    instance: str,
    fqdn: str,
    mac: str,
    parts: Sequence[SeedPart] = (),
    url: str = "",
) -> dict[str, str]:
    """Return the files of the NoCloud seed (cloud-init's data source), by name; none if the
    template has no seed.

    instance  changes with each priming, so that cloud-init runs again (an order's id will do)
    fqdn      the node's name with its domain; cloud-init takes its first word as the host name
    mac       the NIC that uses DHCP. Without it cloud-init takes the first one with a cable
    url       of the metadata service. If the template has `seedfrom`, cloud-init reads everything
              else from there, so the seed leaves out other meta-data keys, which would hide those
              of the service, and vendor data, which would never be read. The installation stays: it
              is that of the disk
    """
    if not configuration.seed:
        return {}
    files = documents(configuration, instance=instance, fqdn=fqdn, mac=mac, parts=parts)
    if configuration.seedfrom:
        meta = {"instance-id": instance, "local-hostname": fqdn, "seedfrom": f"{url}nocloud/"}
        for part in parts:
            meta |= {key: str(part.meta[key]) for key in part.meta if key == INSTALLATION}
        files["meta-data"] = json.dumps(meta) + "\n"
    for part in parts:
        files |= part.files
    return files


def documents(
    configuration: Configuration, *, instance: str, fqdn: str, mac: str, parts: Sequence[SeedPart]
) -> dict[str, str]:
    """Return the files that cloud-init's data source NoCloud reads, by name. They are JSON, which
    is valid YAML and needs no quoting rules."""
    meta: dict[str, object] = {"instance-id": instance, "local-hostname": fqdn}
    for part in parts:
        meta |= part.meta
    network = {"version": 2, "ethernets": {"boot": {"match": {"macaddress": mac}, "dhcp4": True}}}
    vendor = vendor_data(parts)
    return {
        "meta-data": json.dumps(meta) + "\n",
        "user-data": configuration.user_data or "#cloud-config\n{}\n",
        "network-config": json.dumps(network) + "\n",
    } | ({"vendor-data": vendor} if vendor else {})


def vendor_data(parts: Iterable[SeedPart]) -> str:
    """Return the vendor data of all parts: one merged cloud-config, and the scripts. Several
    documents are joined into a MIME multipart document. '': no part has any."""
    config: dict[str, object] = {}
    scripts: list[str] = []
    for part in parts:
        config = _merged(config, part.cloud_config)
        scripts += part.scripts
    documents = ([f"#cloud-config\n{json.dumps(config)}\n"] if config else []) + scripts
    return _multipart(documents) if len(documents) > 1 else "".join(documents)


def _merged(left: Mapping[str, object], right: Mapping[str, object]) -> dict[str, object]:
    """Return both mappings merged: mappings inside them are merged, lists are joined, and of other
    values the one in `right` counts."""
    merged = dict(left)
    for key, value in right.items():
        known = merged.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(known, value)
        elif isinstance(known, (list, tuple)) and isinstance(value, (list, tuple)):
            merged[key] = [*known, *value]
        else:
            merged[key] = value
    return merged


def _multipart(documents: Iterable[str]) -> str:
    shown = "".join(
        f"--==COD==\nContent-Type: {_content_type(text)}\n\n{text}\n" for text in documents
    )
    return (
        'Content-Type: multipart/mixed; boundary="==COD=="\nMIME-Version:'
        f" 1.0\n\n{shown}--==COD==--\n"
    )


def _content_type(text: str) -> str:
    return next(kind for start, kind in _TYPES.items() if text.startswith(start))

"""The metadata service's documents: one record written in the forms that images and programs
understand.

========================  ========================================================================
``/latest/meta-data/``    EC2's tree, as cloud-init and many others crawl it; a folder's answer
                          lists its names
``/latest/user-data``     the template's user data; beside it ``vendor-data``, COD's own parts of
                          the seed
``/latest/cod.json``      everything at once, with the peers; `hosts`: these as lines of /etc/hosts
``/nocloud/``             what cloud-init's data source NoCloud reads
``/machinefeatures/``     machine/job features (HEP Software Foundation, HSF-TN-2016-02); beside it
                          ``/jobfeatures/``
========================  ========================================================================

In place of `latest` stands any version of EC2's interface: an older one has nothing less. Values in
EC2's tree have no line break at their ends, because cloud-init takes a value with one for a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from cod.model import Metadata, PeerNode

VERSIONS = (
    "1.0",
    "2007-01-19",
    "2007-03-01",
    "2007-08-29",
    "2007-10-10",
    "2007-12-15",
    "2008-02-01",
    "2008-09-01",
    "2009-04-04",
    "2011-01-01",
    "2011-05-01",
    "2012-01-12",
    "2014-02-25",
    "2014-11-05",
    "2015-10-20",
    "2016-04-19",
    "2016-06-30",
    "2016-09-02",
    "2018-03-28",
    "2018-08-17",
    "2018-09-24",
    "2019-10-01",
    "2020-10-27",
    "2021-01-03",
    "2021-03-23",
    "2021-07-15",
    "latest",
)
ROOTS = frozenset({*VERSIONS, "nocloud", "machinefeatures", "jobfeatures"})
TOKEN = ("latest", "api", "token")
LONGEST_TOKEN = 21_600  # seconds

Tree = Mapping[str, "str | Tree"]
_NO_FOLDER: Tree = {}


def wants_peers(parts: Sequence[str]) -> bool:
    """Return whether the document at that path contains the vcluster's other nodes."""
    return len(parts) == 2 and parts[0] in VERSIONS and parts[1] in ("cod.json", "hosts")


def document(
    metadata: Metadata, parts: Sequence[str], peers: Iterable[PeerNode] = ()
) -> tuple[str, str] | None:
    """Return the document at a path and its media type; None if there is none.

    parts  the path's segments without an empty one at the end; the first is one of `ROOTS`, or
           there is none
    """
    if not parts:
        return _listing(dict.fromkeys(sorted(ROOTS), _NO_FOLDER)), "text/plain"
    if wants_peers(parts):
        listed = list(peers)
        if parts[1] == "hosts":
            return _hosts(metadata, listed), "text/plain"
        return json.dumps(_everything(metadata, listed), indent=1) + "\n", "application/json"
    found: str | Tree | None
    if parts[0] == "nocloud":
        found = {"vendor-data": ""} | dict(metadata.documents)
    elif parts[0] == "machinefeatures":
        cpus = str(metadata.cpus or "")
        found = _without({"shutdowntime": _seconds(metadata.ends), "total_cpu": cpus})
    else:
        found = (_job_features if parts[0] == "jobfeatures" else _ec2)(metadata)
    for part in parts[1:]:
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None or isinstance(found, str):
        return None if found is None else (found, "text/plain")
    if parts[1:] == ["meta-data", "public-keys"]:
        # Numbered, with a name: cloud-init keeps one key of each name, and a user may have several.
        keys = [f"{number}={metadata.keys[int(number)].user}-{number}" for number in found]
        return "\n".join(keys), "text/plain"
    return _listing(found), "text/plain"


def _listing(folder: Tree) -> str:
    """Return a folder's names, with a slash behind each folder."""
    return "\n".join(
        name if isinstance(content, str) else f"{name}/" for name, content in folder.items()
    )


def _without(values: Mapping[str, str | Tree]) -> dict[str, str | Tree]:
    """Return the entries that have a value. Entries without one are not listed, and not found."""
    return {name: value for name, value in values.items() if value}


# ---------------------------------------------------------------- EC2


def _ec2(metadata: Metadata) -> Tree:
    given = {
        "user-data": metadata.user_data,
        "vendor-data": metadata.documents.get("vendor-data", ""),
    }
    return {"meta-data": _meta_data(metadata), "cod.json": "", "hosts": "", **_without(given)}


def _meta_data(metadata: Metadata) -> Tree:
    """Return EC2's tree of the node. Facts that only COD has belong in `_everything`, and in the
    trees of other formats only if the format has a name for them."""
    m = metadata
    nic = _without(
        {
            "device-number": "0",
            "local-hostname": m.fqdn,
            "local-ipv4s": m.address,
            "mac": m.mac,
            "subnet-ipv4-cidr-block": m.network,
        }
    )
    leaving = (
        {
            "instance-action": json.dumps({"action": "terminate", "time": _utc(m.ends)}),
            "termination-time": _utc(m.ends),
        }
        if m.leaving and m.ends is not None
        else {}
    )
    return _without(
        {
            "ami-id": m.template,
            "ami-launch-index": "0",
            "hostname": m.fqdn,
            "instance-action": "none",
            "instance-id": m.instance,
            "instance-type": m.node_type,
            "local-hostname": m.fqdn,
            "local-ipv4": m.address,
            "mac": m.mac,
            "network": {"interfaces": {"macs": {m.mac: nic}}},
            "placement": _without(
                {"availability-zone": m.block or m.site, "host-id": m.name, "region": m.site}
            ),
            "public-keys": {
                str(number): {"openssh-key": key.line} for number, key in enumerate(m.keys)
            },
            "services": {"domain": m.domain},
            "spot": leaving,
            "tags": {
                "instance": _without(
                    {
                        "Name": m.fqdn,
                        "domain": m.domain,
                        "ends": _utc(m.ends) if m.ends is not None else "",
                        "group": m.group,
                        "node": m.name,
                        "template": m.template,
                        "vcluster": m.vcluster,
                    }
                )
            },
        }
    )


def _utc(at: float | None) -> str:
    return datetime.fromtimestamp(at or 0.0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---------------------------------------------------------------- NoCloud, machine/job features,
# COD's own


def _job_features(metadata: Metadata) -> Tree:
    """Return the features of the job, which is the node's time in its vcluster."""
    m = metadata
    limit = m.ends - m.started if m.ends is not None and m.started is not None else None
    return _without(
        {
            "allocated_cpu": str(m.cpus or ""),
            "job_id": m.instance,
            "jobstart_secs": _seconds(m.started),
            "max_rss_bytes": str(m.memory * 2**20 or ""),
            "shutdowntime_job": _seconds(m.ends),
            "wall_limit_secs": _seconds(limit),
        }
    )


def _seconds(at: float | None) -> str:
    return "" if at is None else str(int(at))


def _everything(metadata: Metadata, peers: Sequence[PeerNode]) -> Mapping[str, object]:
    """Return the document `cod.json`, which contains all facts of the record."""
    m = metadata
    return {
        "version": 1,
        "instance_id": m.instance,
        "node": {
            "name": m.name,
            "hostname": m.hostname,
            "fqdn": m.fqdn,
            "mac": m.mac,
            "address": m.address,
            "network": m.network or None,
            "type": m.node_type or None,
            "block": m.block or None,
            "cpus": m.cpus or None,
            "memory_mib": m.memory or None,
        },
        "vcluster": {"name": m.vcluster, "domain": m.domain, "group": m.group},
        "template": m.template,
        "started": m.started,
        "ends": m.ends,
        "leaving": m.leaving,
        "site": {"name": m.site, "server": m.servers[0], "servers": m.servers},
        "keys": [{"user": key.user, "key": key.line} for key in m.keys],
        "peers": [
            {
                "hostname": peer.hostname,
                "fqdn": f"{peer.hostname}.{m.domain}",
                "address": peer.address,
                "state": peer.state,
            }
            for peer in peers
        ],
    }


def _hosts(metadata: Metadata, peers: Sequence[PeerNode]) -> str:
    return "".join(
        f"{peer.address} {peer.hostname}.{metadata.domain} {peer.hostname}\n" for peer in peers
    )

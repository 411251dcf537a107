"""`cod inventory`: virtual clusters' nodes, as Ansible takes an inventory."""

from __future__ import annotations

from typing import Any

import click

from cod.cli.show import client, print_json, with_json
from cod.client import Client


@click.command()
@click.option("--list", "whole", is_flag=True, help="All hosts and groups; the default.")
@click.option("--host", metavar="HOST", help="The variables of one host.")
@click.option("--vcluster", "only", metavar="NAME", help="Only the nodes of this virtual cluster.")
@with_json
def inventory(
    ctx: click.Context, whole: bool, host: str | None, only: str | None, as_json: bool
) -> None:
    """Print the nodes of virtual clusters as a dynamic inventory of Ansible: a group for each
    virtual cluster, and one for each of COD's groups with its virtual clusters in it.

    \b
    Example:
      cod inventory --vcluster web
    """
    found = _inventory(client(ctx), only)
    print_json(found if host is None else found["_meta"]["hostvars"].get(host, {}))


def _inventory(api: Client, only: str | None) -> dict[str, Any]:
    """Return the inventory as a script of Ansible's prints it for --list."""
    owners = {each["name"]: each["group"] for each in api.items("/vclusters")}
    hosts: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, list[str]]] = {}
    for node in api.items("/nodes", vcluster=only):
        cluster = node["vcluster"]
        if not node["hostname"] or cluster not in owners:
            continue
        host = f"{node['hostname']}.{cluster}"
        hosts[host] = {
            "ansible_host": node["address"],
            "ansible_user": "root",
            "cod_node": node["name"],
            "cod_state": node["state"],
            "cod_template": node["template"],
            "cod_type": node["type"],
            "cod_block": node["block"],
        }
        own = f"vcluster_{_word(cluster)}"
        groups.setdefault(own, {"hosts": []})["hosts"].append(host)
        above = groups.setdefault(f"group_{_word(owners[cluster])}", {"children": []})
        above["children"] = sorted({*above["children"], own})
    return {"_meta": {"hostvars": hosts}, **groups}


def _word(name: str) -> str:
    """Return a name as Ansible takes names of groups, without hyphens."""
    return name.replace("-", "_")

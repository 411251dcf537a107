"""`cod inventory`: virtual clusters' nodes as a dynamic inventory of Ansible."""

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
def inventory(ctx: click.Context, whole: bool, host: str | None, only: str | None) -> None:
    """Print the nodes of virtual clusters as a dynamic inventory of Ansible: a group for each
    virtual cluster, and one for each of COD's groups with its virtual clusters in it.

    Example:
      cod inventory --vcluster web
    """
    hosts, groups = _inventory(client(ctx), only)
    print_json({"_meta": {"hostvars": hosts}, **groups} if host is None else hosts.get(host, {}))


def _inventory(api: Client, only: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the variables of hosts by name, and Ansible's groups."""
    owners = {each["name"]: each["group"] for each in api.items("/vclusters")}
    hosts: dict[str, Any] = {}
    clusters: dict[str, list[str]] = {}
    for node in api.items("/nodes", vcluster=only):
        if node["hostname"] and node["vcluster"] in owners:
            host = f"{node['hostname']}.{node['vcluster']}"
            clusters.setdefault(node["vcluster"], []).append(host)
            # without an address Ansible asks DNS for the host's name
            reach = {"ansible_host": node["address"]} if node["address"] else {}
            hosts[host] = reach | {
                "ansible_user": "root",
                "cod_node": node["name"],
                "cod_state": node["state"],
                "cod_template": node["template"],
                "cod_type": node["type"],
                "cod_block": node["block"],
            }
    groups: dict[str, Any] = {}
    for owner in sorted({owners[name] for name in clusters}):
        own = [_word("vcluster", name) for name in clusters if owners[name] == owner]
        groups[_word("group", owner)] = {"children": own}
    return hosts, groups | {_word("vcluster", name): {"hosts": clusters[name]} for name in clusters}


def _word(kind: str, name: str) -> str:
    """Return a name for a group in Ansible, where hyphens are not allowed."""
    return f"{kind}_{name}".replace("-", "_")

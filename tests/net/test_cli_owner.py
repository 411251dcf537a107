"""An owner's way with the command line alone: whose things are, without saying it each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cod.cli.root import cod
from cod.flows.people import people, tokens
from cod.model import Who
from cod.store.images import images
from cod.store.people import groups
from tests.net.apiserver import NOW, Served, as_json, run

pytestmark = pytest.mark.slow  # with the command line's other tests
TEMPLATE = '<template name="{}"><image target="disk" name="red"/></template>'


@pytest.fixture
def ann_in(served: Served) -> Callable[..., Callable[..., str]]:
    """Makes a user of these groups; returns what runs a command over TCP with a token of theirs,
    and what it prints."""

    def make(**roles: str) -> Callable[..., str]:
        made = served.tx(people.create, "ann", now=NOW)
        for group, role in roles.items():
            served.tx(groups.ensure, group, NOW)
            served.tx(people.set_role, group=group, user="ann", role=role)
        served.tx(
            tokens.make, who=Who("user:ann", user_id=made.id), name="cli", token="cod_ann", now=NOW
        )
        server = f"http://127.0.0.1:{served.server.ports[0]}"

        def ran(*words: str, code: int = 0) -> str:
            result = CliRunner().invoke(cod, ["--server", server, "--token", "cod_ann", *words])
            assert result.exit_code == code, result.output
            return result.output

        return ran

    return make


def told(text: str) -> Any:
    return json.loads(text)


def red(served: Served, group: str) -> None:
    found = served.tx(groups.by_name, group)
    assert found is not None
    served.tx(
        images.add,
        name=f"{group}/red",
        group_id=found.id,
        state="ready",
        format="raw",
        content="disk",
        size=4096,
        created_at=NOW,
        digest="0" * 64,
    )


def document(folder: Path, name: str = "web") -> str:
    file = folder / f"{name}.xml"
    file.write_text(TEMPLATE.format(name))
    return str(file)


def test_an_owner_of_one_group_need_not_name_it(
    served: Served, ann_in: Callable[..., Callable[..., str]], tmp_path: Path
) -> None:
    ann = ann_in(physics="owner", web="viewer")
    red(served, "physics")
    file = document(tmp_path)
    assert "good" in ann("template", "check", file)
    assert told(ann("template", "add", file, "--json"))["revision"] == 1
    asked = ann("request", "match", "--count", "1", "--template", "web", code=1)
    assert "1 node wanted" in asked
    made = told(ann("vcluster", "create", "w", "--size", "1", "--template", "web", "--json"))
    assert made["group"] == "physics"
    assert ann("request", "match", "--count", "1", "--vcluster", "w", code=1)


def test_who_works_in_several_groups_says_which(
    served: Served, ann_in: Callable[..., Callable[..., str]], tmp_path: Path
) -> None:
    ann = ann_in(physics="owner", web="member")
    red(served, "web")
    file = document(tmp_path)
    for words in (
        ("template", "add", file),
        ("image", "add", "blue", file, "--upload"),
        ("vcluster", "create", "w", "--size", "1", "--template", "web"),
    ):
        assert "--group physics or --group web" in ann(*words, code=2)
    assert ann("template", "add", file, "--group", "web")
    assert "there is no image 'red'" in ann("template", "check", file, "--group", "physics", code=1)


def test_an_administrators_are_the_sites(served: Served, tmp_path: Path) -> None:
    served.tx(groups.ensure, "site", NOW)
    served.tx(
        images.add,
        name="red",
        state="ready",
        format="raw",
        content="disk",
        size=4096,
        created_at=NOW,
        digest="0" * 64,
    )
    run(served, "template", "add", document(tmp_path))
    assert (
        as_json(served, "vcluster", "create", "w", "--size", "1", "--template", "web")["group"]
        == "site"
    )

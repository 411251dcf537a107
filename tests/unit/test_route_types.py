"""mypy refuses a route that reads what its question has not, or whose reply is not made of what its
flow returns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cod.web.api.routes import ANYBODY, Named, Numbered, RouteMaker, nothing

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.xdist_group("mypy")  # which then runs once

HEAD = """\
from functools import partial

from cod.flows.nodes import nodes
from cod.flows import views
from cod.web.api.resources.nodes import OutOfService, NodeQuery, NodeReply, PowerWish
from cod.web.api.resources.vclusters import VclusterReply
from cod.web.api.routes import ADMINS, named_route, paged, route

"""
WISH = """\
ROUTE = named_route(
    "POST /nodes/{name}/power", ADMINS, "Wish a node on or off",
    lambda a: partial(nodes.shown, policy=a.site.policy, flow=partial(
        nodes.power, context=a.context, name=a.names.name, desired=a.body.desired)),
    reply=NodeReply, body=PowerWish)
"""
LIST = """\
ROUTE = route(
    "GET /nodes", ADMINS, "List nodes",
    lambda a: partial(views.node_list, page=a.query.page, state=a.query.state),
    reply=paged(NodeReply, "Nodes."), query=NodeQuery)
"""
# What is wrong: the route, and what mypy says of it.
WRONG = {
    "a misspelt attribute of the body": (
        WISH.replace("body.desired", "body.desierd"),
        r'"PowerWish" has no attribute "desierd"',
    ),
    "a misspelt attribute of the query": (
        LIST.replace("query.state", "query.stat"),
        r'"NodeQuery" has no attribute "stat"',
    ),
    "a name that the path has not": (
        WISH.replace("a.names.name", "a.names.node"),
        r'"Named" has no attribute "node"',
    ),
    "a name in a path that has none": (
        WISH.replace("named_route(", "route("),
        r'"Names" has no attribute "name"',
    ),
    "another thing's reply": (
        WISH.replace("NodeReply", "VclusterReply"),
        r"NodeView.*VclusterView",
    ),
    "another thing's reply for a list": (
        LIST.replace("NodeReply", "VclusterReply"),
        r"Listed\[NodeView\].*Sequence\[VclusterView\]",
    ),
    "another question's body": (
        WISH.replace("body=PowerWish", "body=OutOfService"),
        r'"OutOfService" has no attribute "desired"',
    ),
    "a body that is read and not named": (
        WISH.replace(", body=PowerWish", ""),
        r'"BaseModel" has no attribute "desired"',
    ),
    "an argument that the flow has not": (
        WISH.replace("desired=a", "desire=a"),
        r'Unexpected keyword argument "desire"',
    ),
    "an argument of another type": (
        WISH.replace("name=a.names.name", "name=a.now"),
        r'incompatible type "float"',
    ),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy says of each case, by its file's name: one run for all, with a cache that stays in
    build/."""
    folder = tmp_path_factory.mktemp("routes")
    cases = {"right_body": WISH, "right_query": LIST} | {
        re.sub(r"\W", "_", name): text for name, (text, _) in WRONG.items()
    }
    for name, text in cases.items():
        (folder / f"{name}.py").write_text(HEAD + text)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            ROOT / "pyproject.toml",
            "--cache-dir",
            ROOT / "build/mypy-routes",
            "--no-error-summary",
            "--hide-error-context",
            *sorted(folder.glob("*.py")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode in (0, 1), run.stderr
    found: dict[str, list[str]] = {name: [] for name in cases}
    for line in run.stdout.splitlines():
        name = Path(line.partition(":")[0]).stem
        assert name in found, line  # nothing else is wrong, or the cases prove nothing
        found[name].append(line)
    return found


@pytest.mark.slow
def test_what_is_right_passes(said: dict[str, list[str]]) -> None:
    assert said["right_body"] == said["right_query"] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused(said: dict[str, list[str]], case: str) -> None:
    text = "\n".join(said[re.sub(r"\W", "_", case)])
    assert "error:" in text
    assert re.search(WRONG[case][1], text, re.DOTALL), text


def test_a_path_and_its_record_say_the_same() -> None:
    """What a type checker cannot read is checked when the module is imported."""
    for path, names in (
        ("/nodes/{name}", Numbered),
        ("/nodes", Named),
        ("/nodes/{name}/{user}", Named),
    ):
        with pytest.raises(ValueError, match="has the names"):
            RouteMaker(names)(f"GET {path}", ANYBODY, "", lambda a: nothing(None))

"""Imports run one way: every arrow between floors is in the table of docs/architecture.md, or this
test fails."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.sources import statements

ROOT = Path(__file__).resolve().parents[2]

# floor -> (floors of COD it may import, third-party packages it may import); the standard library
# is open to all.
LEAVES = {"cod.model", "cod.states", "cod.choices"}
FLOORS: dict[str, tuple[set[str], set[str]]] = {
    "cod.choices": (set(), set()),
    "cod.model": ({"cod.model", "cod.choices"}, set()),
    "cod.orders": (set(), set()),
    "cod.states": (set(), set()),
    "cod.quantity": (set(), set()),
    "cod.data": (set(), set()),
    "cod.filters": ({"cod.filters", "cod.quantity", *LEAVES}, set()),
    "cod.security": ({"cod.security"}, {"argon2", "cryptography"}),
    "cod.svg": (set(), set()),
    "cod.host": (set(), set()),
    "cod.consolefiles": (set(), set()),
    "cod.notice_texts": ({"cod.notice_texts", "cod.model", "cod.quantity"}, set()),
    "cod.wire": (
        {"cod.wire", "cod.data", "cod.model", "cod.orders"},
        {"lxml", "tftpy", "dnslib", "ldaptor"},
    ),
    "cod.policy": ({"cod.policy", "cod.orders", "cod.quantity", *LEAVES}, set()),
    "cod.sim": ({"cod.sim", "cod.policy", "cod.site.coherence", "cod.svg", *LEAVES}, {"pydantic"}),
    "cod.store": (
        {"cod.store", "cod.filters", "cod.data", *LEAVES},
        {"sqlalchemy", "alembic"},
    ),
    "cod.core": (
        {
            "cod.filters",
            "cod.core",
            "cod.policy",
            "cod.store",
            "cod.notice_texts",
            "cod.orders",
            "cod.quantity",
            *LEAVES,
        },
        set(),
    ),
    "cod.pool": ({"cod.store"}, {"twisted", "sqlalchemy"}),
    "cod.flows": (
        {
            "cod.filters",
            "cod.core",
            "cod.policy",
            "cod.store",
            "cod.notice_texts",
            "cod.orders",
            "cod.quantity",
            *LEAVES,
        },
        set(),
    ),
    "cod.images": (
        {"cod.images", "cod.wire.manifest", "cod.wire.capture", "cod.model"},
        {"zstandard"},
    ),
    "cod.childprocess": (set(), {"twisted"}),
    "cod.periodic": ({"cod.pool"}, {"twisted"}),
    "cod.claimkeeper": ({"cod.flows", "cod.pool"}, set()),
    "cod.tokenbucket": (set(), set()),
    "cod.net": (
        {
            "cod.net",
            "cod.flows",
            "cod.wire",
            "cod.pool",
            "cod.periodic",
            "cod.images",
            "cod.notice_texts",
            "cod.quantity",
            "cod.security",
            "cod.tokenbucket",
            "cod.orders",
            *LEAVES,
        },
        {"twisted", "h11", "pydantic", "prometheus_client", "zope", "OpenSSL", "cryptography"},
    ),
    "cod.web": (
        {
            "cod.filters",
            "cod.machine_lists",
            "cod.web",
            "cod.childprocess",
            "cod.net.notify",
            "cod.consolefiles",
            "cod.data",
            "cod.quantity",
            "cod.svg",
            "cod.flows",
            "cod.wire",
            "cod.pool",
            "cod.images",
            "cod.notice_texts",
            "cod.security",
            "cod.periodic",
            "cod.tokenbucket",
            *LEAVES,
        },
        {
            "twisted",
            "typing_extensions",
            "pydantic",
            "prometheus_client",
            "zope",
            "OpenSSL",
            "jinja2",
            "authlib",
            "joserfc",
            "ldap",
            "markupsafe",
        },
    ),
    "cod.workers": (
        {
            "cod.workers",
            "cod.claimkeeper",
            "cod.childprocess",
            "cod.periodic",
            "cod.flows",
            "cod.images",
            "cod.pool",
            *LEAVES,
        },
        {"twisted"},
    ),
    "cod.power": (
        {
            "cod.power",
            "cod.claimkeeper",
            "cod.childprocess",
            "cod.flows",
            "cod.pool",
            "cod.periodic",
            "cod.consolefiles",
            "cod.security",
            *LEAVES,
        },
        {"twisted", "zope", "OpenSSL", "pysnmp"},
    ),
    "cod.fileservers": (
        {
            "cod.fileservers",
            "cod.claimkeeper",
            "cod.childprocess",
            "cod.flows",
            "cod.pool",
            "cod.periodic",
            *LEAVES,
        },
        {"twisted"},
    ),
    "cod.switches": (
        {
            "cod.switches",
            "cod.power.accounts",
            "cod.power.driver",
            "cod.power.pdu",
            "cod.flows",
            "cod.pool",
            "cod.periodic",
            *LEAVES,
        },
        {"twisted", "zope", "OpenSSL", "pysnmp", "netmiko", "paramiko"},
    ),
    "cod.lab": ({"cod.lab", "cod.model", "cod.data", "cod.quantity"}, {"click", "rich"}),
    "cod.lab.servers": ({"cod.lab", "cod.client", "cod.model", "cod.data"}, {"pymysql"}),
    "cod.lab.storm": (
        {"cod.lab", "cod.wire", "cod.svg", "cod.orders", "cod.store", *LEAVES},
        {"cryptography", "rich", "sqlalchemy"},
    ),
    "cod.demo": ({"cod.demo", "cod.lab", "cod.client", "cod.data", "cod.model"}, {"rich"}),
    "cod.vcm": (
        {"cod.vcm", "cod.wire.nmp", "cod.model"},
        {"lxml", "twisted", "pydantic", "cryptography"},
    ),
    "cod.recipes": ({"cod.data"}, set()),
    "cod.site": (
        {"cod.site", "cod.policy", "cod.quantity", "cod.security", "cod.model", "cod.choices"},
        {"pydantic", "sqlalchemy"},
    ),
    "cod.doctor": (
        {
            "cod.doctor",
            "cod.client",
            "cod.quantity",
            "cod.site",
            "cod.host",
            "cod.recipes",
            "cod.security",
            "cod.power",
            "cod.switches",
            "cod.store",
            "cod.core.database",
            "cod.wire.dhcp",
            "cod.policy",
            "cod.model",
            "cod.choices",
        },
        {"cryptography", "sqlalchemy", "twisted"},
    ),
    "cod.client": ({"cod.client"}, set()),
    "cod.cli": (
        {
            "cod.cli",
            "cod.client",
            "cod.machine_lists",
            "cod.quantity",
            "cod.model",
            "cod.states",
            "cod.choices",
        },
        {"click", "rich", "yaml"},
    ),
    "cod.machine_lists": ({"cod.machine_lists", "cod.model"}, {"yaml"}),
    "trampoline": (
        {
            "trampoline",
            "cod.orders",
            "cod.wire.manifest",
            "cod.wire.capture",
            "cod.wire.chunktoken",
            "cod.wire.confd",
            "cod.wire.realmode",
        },
        set(),
    ),
    "images": (
        {
            "images",
            "trampoline.recipe",
            "trampoline.partitions",
            "trampoline.filesystems",
            "cod.images.formats",
            "cod.model",
            "cod.wire.realmode",
        },
        {"zstandard"},
    ),
    "schema": ({"cod.store"}, {"alembic", "sqlalchemy"}),
}
# May import everything; nobody imports them.
COMPOSITION = {
    "cod",
    "cod.service",
    "cod.supervisor",
    "cod.init",
    "cod.proposal",
    "cod.backup",
    "cod.logs",
    "cod.__main__",
}
# So do the modules of the server, and commands that work without its API (init, serve, token …).
LOCAL = ("cod.service.", "cod.cli.server.")
NOT_EACH_OTHER = {"cod.flows"}  # flows never import each other


def modules() -> Iterator[tuple[str, Path]]:
    for top in ("cod", "trampoline", "images", "schema"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(name: str, path: Path) -> Iterator[str]:
    """Yield the full names of what a module imports, wherever in the file the import stands."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in imports(path.read_text()):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [base])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def imports(text: str) -> list[ast.Import | ast.ImportFrom]:
    """Return a module's imports; several tests ask, and parsing is what costs."""
    return [node for node in statements(text) if isinstance(node, ast.Import | ast.ImportFrom)]


def floor_of(name: str) -> str | None:
    return next(
        (f for f in sorted(FLOORS, key=len, reverse=True) if name == f or name.startswith(f + ".")),
        None,
    )


def wrong_arrows(name: str, path: Path) -> list[str]:
    if name in COMPOSITION or name.startswith(LOCAL):
        return []
    floor = floor_of(name)
    if floor is None:
        return [f"{name} is on no floor: add it to the table here and in docs/architecture.md"]
    ours, theirs = FLOORS[floor]
    wrong = []
    for target in imported(name, path):
        top = target.split(".")[0]
        if top in sys.stdlib_module_names or target.startswith(name + "."):
            continue
        if top not in ("cod", "trampoline", "images"):
            allowed = top in theirs
        elif floor in NOT_EACH_OTHER and target.startswith(floor + "."):
            allowed = False
        else:
            allowed = any(target == f or target.startswith(f + ".") for f in ours)
            allowed = (
                allowed or target == "cod" or f"{target}." in {f[: len(target) + 1] for f in ours}
            )
        if not allowed:
            wrong.append(f"{name} imports {target}")
    return wrong


@pytest.mark.slow
def test_arrows() -> None:
    found = dict(modules())
    assert len(found) > 500
    assert [arrow for name, path in found.items() for arrow in wrong_arrows(name, path)] == []


def test_no_protocol_imports_another() -> None:
    """Each package of `cod.net` is a protocol; what several share lies beside them."""
    packages = {
        name
        for name, path in modules()
        if name.startswith("cod.net.") and path.name == "__init__.py"
    }
    assert len(packages) > 5
    for name, path in modules():
        if name.startswith("cod.net."):
            own = next(
                (package for package in packages if f"{name}.".startswith(f"{package}.")), ""
            )
            others = [
                target
                for target in imported(name, path)
                for package in packages - {own}
                if f"{target}.".startswith(f"{package}.")
            ]
            assert others == [], f"{name} imports {others}"


@pytest.mark.slow
def test_no_circles() -> None:
    """Modules import each other in one direction, type-only imports and packages on the way
    included."""
    TopologicalSorter(arrows(dict(modules()))).prepare()


def arrows(paths: dict[str, Path]) -> dict[str, set[str]]:
    """Return what each module executes by its imports: modules, and the packages that hold them."""
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        targets = set()
        for target in imported(name, path):
            while target and target not in paths:
                target = target.rpartition(".")[0]
            while target:
                if target in paths and target != name and not name.startswith(f"{target}."):
                    targets.add(target)
                target = target.rpartition(".")[0]
        found[name] = targets
    return found


def test_no_folder_is_a_drawer() -> None:
    """A folder of more than twenty modules is divided by subject; where each module is a noun of
    the API, or its page, the noun is the division."""
    counts = Counter(
        path.parent
        for name, path in modules()
        if name.startswith("cod.") and path.name != "__init__.py"
    )
    sizes = {str(folder.relative_to(ROOT)): count for folder, count in counts.items()}
    assert not {
        folder: count
        for folder, count in sizes.items()
        if count > (30 if folder in A_NOUN_EACH else 20)
    }


A_NOUN_EACH = ("cod/web/api/resources", "cod/web/portal/pages")


def test_the_check_sees_a_circle(tmp_path: Path) -> None:
    one, two, package = tmp_path / "one.py", tmp_path / "two.py", tmp_path / "__init__.py"
    one.write_text("from cod.room.two import thing\n")
    two.write_text("if TYPE_CHECKING:\n    from cod.room import one\n")
    package.write_text("")
    with pytest.raises(CycleError):
        TopologicalSorter(
            arrows({"cod.room": package, "cod.room.one": one, "cod.room.two": two})
        ).prepare()
    package.write_text("from cod.floor import door\n")
    two.write_text("")
    one.write_text("from cod.room.two import thing\n")
    paths = {"cod.room": package, "cod.room.two": two, "cod.floor.door": one}
    # who imports one module of a package runs all that the package imports
    with pytest.raises(CycleError):
        TopologicalSorter(arrows(paths)).prepare()


def test_the_page_of_the_house_names_every_floor() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    for floor in [*FLOORS, *COMPOSITION - {"cod"}]:
        path = floor.replace(".", "/")
        assert f"`{path}/`" in page or f"`{path}.py`" in page, floor


def test_the_check_sees_a_wrong_arrow(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from cod.store import nodes\nimport twisted\n")
    assert wrong_arrows("cod.policy.bad", bad) == [
        "cod.policy.bad imports cod.store.nodes",
        "cod.policy.bad imports twisted",
    ]
    bad.write_text("from cod.flows import boot\n")
    assert wrong_arrows("cod.flows.bad", bad) == ["cod.flows.bad imports cod.flows.boot"]


@pytest.mark.parametrize(
    ("room", "others"), [("http", ("api", "portal")), ("api", ("portal",)), ("signin", ("http",))]
)
def test_no_door_stands_on_the_one_above_it(room: str, others: tuple[str, ...]) -> None:
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        if name.startswith(f"cod.web.{room}")
        for target in imported(name, path)
        if target.startswith(tuple(f"cod.web.{each}" for each in others))
    ]
    assert wrong == []


def test_the_files_that_travel_in_the_ramdisk_as_packages_stay_empty() -> None:
    assert (
        (ROOT / "cod/__init__.py").read_text() == (ROOT / "cod/wire/__init__.py").read_text() == ""
    )


@pytest.mark.parametrize("floor", ["web", "net", "workers", "power", "flows"])
def test_a_transaction_is_only_passed_on(floor: str) -> None:
    """Doors may name the type of a transaction (`cod.pool.Tx`), to say what a flow is; only the
    store uses one."""
    for path in sorted((ROOT / "cod" / floor).rglob("*.py")):
        text = path.read_text()
        used = [
            node.lineno
            for node in ast.walk(ast.parse(text if re.search(r"\btx\s*\.", text) else ""))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "tx"
        ]
        assert used == [], f"{path}: lines {used}"

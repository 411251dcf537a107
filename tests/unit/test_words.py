"""Words: the field's terms in names, and one noun for a virtual cluster.

'vcluster' is the noun of the API and of what flows say; pages call it a virtual cluster
(docs/architecture.md).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from token import NAME
from tokenize import generate_tokens

import pytest

from tests import manual
from tests.sources import statements

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "web/templates").glob("*.html"))
SAYING = [
    *sorted(
        path
        for folder in ("flows", "notice_texts", "policy")
        for path in (ROOT / "cod" / folder).rglob("*.py")
    ),
]


def prose(template: str) -> Iterator[str]:
    """What a template says itself: text between tags, and texts of several words that it hands to
    macros."""
    template = re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)
    for inside in re.findall(r"\{\{.*?\}\}|\{%.*?%\}", template, flags=re.DOTALL):
        yield from (text for text in re.findall(r'"([^"]*)"', inside) if " " in text.strip())
    yield from re.findall(
        r">([^<]*)", re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", template, flags=re.DOTALL)
    )


def sentences(path: Path) -> Iterator[str]:
    """Texts in a module that are no docstrings."""
    parts = list(ast.walk(ast.parse(path.read_text())))
    # of modules, functions and attributes
    about = {id(node.value) for node in parts if isinstance(node, ast.Expr)}
    yield from (
        node.value
        for node in parts
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in about
    )


def test_pages_say_virtual_cluster() -> None:
    assert not [
        (path.name, text)
        for path in PAGES
        for text in prose(path.read_text())
        if re.search(r"\bvclusters?\b(?![./=-])", text, re.IGNORECASE)
    ]


def test_flows_say_vcluster() -> None:
    managers = re.compile("virtual cluster(?!s? manager)", re.IGNORECASE)
    found = [
        (path.name, text)
        for path in SAYING
        if "virtual" in path.read_text().lower()
        for text in sentences(path)
        if managers.search(text)
    ]
    assert not found


def test_pages_of_the_manual_begin_with_what_one_can_do() -> None:
    begin = re.compile(r"(With|After) (reading )?this page (you|a server)")
    firsts = {page.stem: page.read_text().split("\n\n")[1] for page in manual.PAGES}
    assert not {page: first for page, first in firsts.items() if not begin.match(first)}


# Names that were private metaphors, or meant several things; the rooms in docs/architecture.md have
# the present ones.
OLD_MODULES = {
    "acts",
    "apibody",
    "apicondition",
    "apirequest",
    "apirun",
    "apithing",
    "buckets",
    "census",
    "crew",
    "departures",
    "draws",
    "dues",
    "farm",
    "fitting",
    "happenings",
    "holdback",
    "inside",
    "invited",
    "keeper",
    "keeps",
    "ledger",
    "letters",
    "look",
    "marks",
    "news",
    "nmpline",
    "nmptalk",
    "outside",
    "pace",
    "papers",
    "places",
    "purge",
    "questions",
    "rations",
    "reach",
    "room",
    "scene",
    "shown",
    "stock",
    "tally",
    "thrift",
    "unsent",
    "vicinity",
    "visits",
    "wants",
    "world",
}
OLD_CLASSES = {
    "Arriving",
    "Crew",
    "Crowd",
    "Departures",
    "Door",
    "Ease",
    "Fitting",
    "Forgetful",
    "Ground",
    "Hall",
    "Happening",
    "Holdback",
    "Keeper",
    "Lenders",
    "Life",
    "Memory",
    "News",
    "Owed",
    "Papers",
    "Part",
    "Questions",
    "Ration",
    "Rations",
    "Rounds",
    "Scene",
    "Session",
    "Speaker",
    "Stock",
    "Talk",
    "Tally",
    "Terms",
    "Told",
    "Unsent",
    "Visit",
    "Wrong",
}
GENERIC = ("Claim", "Kind", "Refused", "Request", "Unusable")  # names for one thing each
# In names of the scheduler and the simulator: a request, a pool, an allocation, a victim and the
# candidates for preemption, the inventory, backfill, refusals and a VCM's outbox have their own.
OLD_WORDS = {
    "borrow",
    "holdback",
    "holdings",
    "lend",
    "lender",
    "lenders",
    "lends",
    "lent",
    "little",
    "loan",
    "loans",
    "lot",
    "lots",
    "nobodys",
    "noes",
    "owe",
    "owed",
    "stock",
    "untold",
    "wish",
    "wished",
    "wishes",
}
# a change of a switch port or of a node's power is a wish
WISHES = {"cod/core/networks", "cod/core/nodes/transitions.py"}
# Words that say nothing of a value: a reply, a notice, a known row … has its own noun.
EMPTY_WORDS = {"said", "there", "told"}
# Names of columns and of fields of the API, which others read.
COLUMNS = {
    "cod/model/machines.py": {"said", "wished_at"},
    "cod/model/switches.py": {"wished_at"},
    "cod/model/views.py": {"owed"},
    "cod/model/volumes.py": {"told"},
    "cod/web/api/resources/nodes.py": {"wished_at"},
    "cod/web/api/resources/vcms.py": {"owed"},
}
QUESTION_WORDS = re.compile(
    r"(?:How|What|Whatever|When|Where|Whether|Which|Whichever|While|Who|Whoever|Whom|Whose|Why)\b"
)
# Classes of one name that are yet to say whose they are. The list only shrinks.
DOUBLES = """
Ack Agent Answer Body Busy CalendarQuery Change Changed Connection Context DecodeError Deposit
Device Disk Done Energy Entry Error Extend Failed Fault Faults Group Hello Host Identity Job Kept
Limits Line Listener Machine Member Message Meter Named NewQuery NodeKind NodeState Notifier
Options Outdated Pace Page Partition PciDevice Peer Piece Place PlaceReply Plan Planned Pool
Progress Query Reclaim ReclaimAnswer Renew Report Request Reservation Running Sender Series Server
Settings Shown SignIn Size Snapshot Source Span Starts State SwitchSession Table Target
TimelineQuery Transfer Unknown Vcluster View Welcome _Body _Broken _Job _Jobs _Lines _Node
_Nodes _Tls _Way
"""
QUESTIONS = re.compile(r"(?:Is|Are|Was|Were|Has|Have|May|Can|Does|Do|Did|Would)\b[^.]*\?")
FRAGMENTS = re.compile(
    r"(As|Whose|That|Who|Nobody|Whether|Until|Something|Those|For|No|How|Without|Nothing|This|When|Somebody|Everything|"
    r"From|What|Whatever|Unless|Whichever|If|These|Why|Between|Both|Perhaps|Where|Meanwhile|Back|Off|Several|We|Called|"
    r"It|Its|They|The same|Of)\b"
)
PRONOUNS = re.compile(r"(?:It|Its|They|The same|Of|As|This|These|Those|That)\b")
CODE = ("cod", "trampoline", "images")


@cache
def definitions(folder: str) -> list[tuple[Path, str, str, bool | None]]:
    """Return the classes and functions of a folder: the module, name, docstring, and whether a
    function returns a value (None: a class). Several tests ask, and parsing is what costs."""
    found: list[tuple[Path, str, str, bool | None]] = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in statements(path.read_text()):
            if isinstance(node, ast.ClassDef):
                found.append((path, node.name, ast.get_docstring(node) or "", None))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                values = (
                    node.returns is not None
                    and ast.unparse(node.returns) != "None"
                    and not any(
                        word in ast.unparse(each)
                        for word in ("property", "command", "group")
                        for each in node.decorator_list
                    )
                )
                found.append((path, node.name, ast.get_docstring(node) or "", values))
    return found


@pytest.mark.slow
def test_old_names_stay_away() -> None:
    proper = {ROOT / "cod/sim/world.py", ROOT / "trampoline/burnin/pace.py"}
    there = [
        path
        for folder in ("cod", "trampoline")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path not in proper
    ]
    assert len(there) > 300
    assert not [path for path in there if path.stem in OLD_MODULES]
    assert not {
        name: path
        for folder in ("cod", "trampoline")
        for path, name, _, values in definitions(folder)
        if values is None and name in OLD_CLASSES
    }


@pytest.mark.slow
def test_a_generic_name_is_given_once() -> None:
    given = [
        name
        for path, name, _, values in definitions("cod")
        if values is None and "wire/nmp" not in str(path)
    ]
    assert {name: given.count(name) for name in GENERIC if given.count(name) > 1} == {}


@pytest.mark.slow
def test_old_words_stay_out_of_names() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {token.string}"
        for folder in ("core", "flows/scheduler", "policy", "sim")
        for path in (ROOT / "cod" / folder).rglob("*.py")
        if not any(str(path.relative_to(ROOT)).startswith(each) for each in WISHES)
        for token in generate_tokens(StringIO(path.read_text()).readline)
        if token.type == NAME and not OLD_WORDS.isdisjoint(token.string.lower().split("_"))
    }
    assert found == set()


def bound(tree: ast.AST) -> Iterator[str]:
    """Yield the names of parameters, variables and attributes that a module binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def is_old(name: str) -> bool:
    """Return whether a name is an empty word, or has an old word in it."""
    return name.strip("_") in EMPTY_WORDS or not OLD_WORDS.isdisjoint(name.lower().split("_"))


@pytest.mark.slow
def test_values_have_nouns() -> None:
    """The names of locals, parameters and attributes are what a reader meets on every line."""
    hints = re.compile("|".join(EMPTY_WORDS | OLD_WORDS), re.IGNORECASE)
    found = [
        f"{where}: {name}"
        for folder in ("cod", "trampoline")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if hints.search(text := path.read_text())  # parsing is what costs
        for where in [str(path.relative_to(ROOT))]
        for name in bound(ast.parse(text))
        if is_old(name) and name not in COLUMNS.get(where, ())
    ]
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", CODE)
def test_functions_have_more_than_an_empty_word(folder: str) -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name, _, _ in definitions(folder)
        if name.strip("_") in EMPTY_WORDS
    ]


def test_names_without_a_noun_are_found() -> None:
    planted = ast.parse(
        """
class Row:
    told: bool

    def read(self, wish, *, said=""):
        self._there = [lot for lot in wish]
        for told_at in wish:
            self.read(said=said)
"""
    )
    assert {name for name in bound(planted) if is_old(name)} == {
        "told",
        "wish",
        "said",
        "_there",
        "lot",
    }


@pytest.mark.slow
@pytest.mark.parametrize("folder", CODE)
def test_no_docstring_begins_with_a_question_word(folder: str) -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}"
        for path, name, text, _ in definitions(folder)
        if QUESTION_WORDS.match(text)
    ]
    assert not [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if QUESTION_WORDS.match(path.read_text().removeprefix('"""'))
    ]


@pytest.mark.slow
def test_a_class_has_a_name_of_its_own() -> None:
    """A reader finds the class by its name, and a search finds nothing else."""
    given = Counter(
        name
        for folder in ("cod", "trampoline")
        for _, name, _, values in definitions(folder)
        if values is None
    )
    assert {name for name, count in given.items() if count > 1} - set(DOUBLES.split()) == set()


@pytest.mark.slow
@pytest.mark.parametrize("folder", CODE)
def test_docstrings_of_functions_begin_with_a_verb(folder: str) -> None:
    """A docstring says what the function does: no question, and no noun that names a value."""
    nouns = re.compile(r"(The|A|An|What|How|Why|Who|Whose|Where|Which|It|Its|They|Of|As)\b")
    assert not [
        f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}"
        for path, name, text, values in definitions(folder)
        if values is not None
        and (QUESTIONS.match(text) or FRAGMENTS.match(text) or (values and nouns.match(text)))
    ]


def test_docstrings_of_tests_stand_alone() -> None:
    """A docstring of the tests is read without the function's name: no question, no pronoun, no
    fragment."""
    first = re.compile(rf':\n +"""((?:{PRONOUNS.pattern}|{QUESTIONS.pattern}).*)')
    assert first.search('def x() -> bool:\n    """Is it?"""')
    assert not [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for text in first.findall(path.read_text())
    ]


def test_the_eyes_are_open() -> None:
    """Else nothing would be found in what is there."""
    assert list(
        prose('<p>A {{ m.x(f, help="of the vcluster") }}<b>vcluster {# vcluster #}</b>')
    ) == ["of the vcluster", "A ", "vcluster ", ""]
    assert any("vcluster" in text for path in SAYING for text in sentences(path))

"""A key of the site file is key_about in one place, a field of its table's record: one that is
planted there is read, converted, checked, written by `cod init` and in the reference."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cod.model import SignInKeys, SignInRules, Site, VolumeKeys, VolumeRules
from cod.model.keys import DAY, Address, NotNegativeDays, SiteTable, needed, site_key
from cod.site.file import SiteFile, keys

ROOT = Path(__file__).resolve().parents[2]
FIELD = '    most: int = site_key(\n        1000,\n        "consoles that'
PLANTED = '    planted: NotNegativeDays = site_key(2 * DAY, "days of something")\n'
CHILD = """
import json, sys
from importlib.machinery import SourceFileLoader
text = sys.stdin.read()
compiled = SourceFileLoader.get_code
def get_code(self, name):
    if name != "cod.model.site.services":
        return compiled(self, name)
    return compile(text, self.path, "exec")
SourceFileLoader.get_code = get_code

from pathlib import Path
from cod import init, proposal
from cod.site import load
written = init.annotated({"subnet": proposal.EXAMPLE})
def read(line):
    text = written.replace("[console]", "[console]\\n" + line)
    try:
        return load.site(load.parse(text, Path("site.toml"))).consoles.planted
    except load.ConfigError as error:
        return error.problems
print(json.dumps({
    "reference": init.reference(),
    "written": written,
    "default": read(""),
    "read": read("planted = 3"),
    "refused": read("planted = -1"),
    "misspelt": read("plantd = 1"),
}))
"""


@pytest.mark.slow
def test_a_planted_key_takes_one_place() -> None:
    text = (ROOT / "cod/model/site/services.py").read_text()
    assert text.count(FIELD) == 1
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=text.replace(FIELD, PLANTED + FIELD),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert child.returncode == 0, child.stderr
    seen = json.loads(child.stdout)
    assert "| `planted` | `2.0` | days of something |" in seen["reference"]
    assert "# planted = 2.0" in seen["written"]
    assert (seen["default"], seen["read"]) == (2 * DAY, 3 * DAY)
    assert seen["refused"] == ["console.planted: should be at least 0, not -1"]
    assert seen["misspelt"] == ["console.plantd: no such key; did you mean 'planted'?"]


@dataclass(frozen=True, slots=True)
class Sample(SiteTable):
    """A table."""

    days: NotNegativeDays = site_key(DAY, "days")
    address: Address | None = site_key(None, "an address")
    limits: dict[int, NotNegativeDays] = site_key({}, "by number")
    text: str = needed("a text")


@pytest.mark.parametrize(
    ("said", "made"),
    [
        ({}, Sample()),
        ({"days": 2, "text": "x"}, Sample(2 * DAY, text="x")),
        ({"limits": {"3": 0.5}}, Sample(limits={3: DAY / 2})),
        ({"address": "10.0.0.1"}, Sample(address="10.0.0.1")),
    ],
)
def test_a_table_is_read_into_its_record(said: dict[str, Any], made: Sample) -> None:
    assert TypeAdapter(Sample).validate_python(said) == made


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"days": True}, "float_type"),
        ({"days": float("nan")}, "finite_number"),
        ({"limits": {"3": -1}}, "greater_than_equal"),
        ({"address": "10.0.0.256"}, "value_error"),
        ({"text": ""}, "string_too_short"),
        ({"other": 1}, "unexpected_keyword_argument"),
    ],
)
def test_what_cannot_be_is_refused(said: dict[str, Any], kind: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Sample).validate_python(said)
    assert [error["type"] for error in refused.value.errors()] == [kind]


def test_every_key_says_what_it_means() -> None:
    for key in keys(SiteFile):
        for each in keys(key.table) if key.table else [key]:
            assert each.about, f"{key.name}.{each.name}"


def test_the_site_has_the_files_own_records() -> None:
    """What the program uses is what was read; only the file's own `server` and `api` are made into
    `Settings`, and what other tables say as well is added to two."""
    held = {str(field.type).partition(" ")[0] for field in fields(Site)}
    for key in keys(SiteFile):
        kind = key.table and {SignInKeys: SignInRules, VolumeKeys: VolumeRules}.get(
            key.table, key.table
        )
        if kind and key.name not in ("server", "api", "ldap", "ldap_group", "oidc"):
            assert {kind.__name__, f"tuple[{kind.__name__},"} & held, key.name

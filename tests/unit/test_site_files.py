"""The site's documents as YAML files: what is read, with places; what is refused; what is written
is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cod.cli import site_files
from cod.cli.site_files import UnreadableDocuments, WrittenDocument, read, written


def of(tmp_path: Path, text: str, name: str = "a.yaml") -> list[WrittenDocument]:
    (tmp_path / name).write_text(text)
    return read([str(tmp_path / name)])


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(UnreadableDocuments) as error:
        of(tmp_path, text)
    return str(error.value).replace(str(tmp_path), "DIR")


def test_documents_are_read_with_the_places_of_their_values(tmp_path: Path) -> None:
    first, second = of(
        tmp_path,
        "kind: group\nname: physics\n---\n---\n# rack\nkind: block\nnodes:\n  - n1\n  - n2\n",
    )
    assert first.values == {"kind": "group", "name": "physics"}
    assert second.values == {"kind": "block", "nodes": ["n1", "n2"]}
    places = [second.place(path) for path in ("", "kind", "nodes", "nodes.1", "nodes.7", "name")]
    assert [place.rpartition(":")[2] for place in places] == ["6", "6", "7", "9", "7", "6"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("0123", "0123"),
        ("1.5", 1.5),
        ("1.0e+10", 1e10),
        ("true", True),
        ("yes", "yes"),
        ("~", None),
        ("52:54:00:12:34:56", "52:54:00:12:34:56"),
        ("12:30", "12:30"),
        ("2026-11-27", "2026-11-27"),
        ("'12'", "12"),
        ("{a: 1}", {"a": 1}),
        ("<<", "<<"),
        ("1_000", "1_000"),
    ],
)
def test_plain_values_are_those_of_json_and_texts(tmp_path: Path, text: str, value: Any) -> None:
    assert of(tmp_path, f"x: {text}\n")[0].values == {"x": value}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: &x [1]\nb: *x\n", "DIR/a.yaml:2: has an alias (*); write the value out"),
        ("a: !!python/name:os.system x\n", "DIR/a.yaml:1: has a tag (tag:yaml.org,2002:python"),
        ("a: !x 1\n", "DIR/a.yaml:1: has a tag (!x), which documents do not have"),
        ("a: 1\nb: 2\na: 3\n", "DIR/a.yaml:3: has a twice"),
        ("a: 1\n? [1]\n: 2\n", "DIR/a.yaml:2: has a key that is no text"),
        ("- a\n", "DIR/a.yaml:1: should be a document of fields, such as kind: group"),
        ("x: " + "[" * 30 + "\n", "DIR/a.yaml:1: is nested more than 20 levels deep"),
        ("a: [1\n", "DIR/a.yaml:2: is no YAML: expected ',' or ']', but got"),
        ("a: \x01\n", "DIR/a.yaml: is no YAML: unacceptable character"),
        ("a: {env: COD_NOT_SET}\n", "DIR/a.yaml:1: names the variable COD_NOT_SET, which is"),
        ("a: {file: none}\n", "DIR/a.yaml:1: names the file none: No such file or directory"),
        ("a: '" + "x" * 2**20 + "'\n", "DIR/a.yaml: has more than 1048576 bytes"),
    ],
)
def test_what_is_no_document_is_refused_with_its_line(
    tmp_path: Path, text: str, sentence: str
) -> None:
    assert sentence in refused(tmp_path, text)


def test_all_files_of_a_folder_are_read_and_all_faults_are_told(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    for name in ("b.yaml", "a.yml", "sub/c.yaml", ".git/d.yaml", "e.txt"):
        (tmp_path / name).write_text(f"name: {name}\n")
    found = [each.values["name"] for each in read([str(tmp_path)])]
    assert found == ["a.yml", "b.yaml", "sub/c.yaml"]
    (tmp_path / "a.yml").write_text("a: *x\n")
    (tmp_path / "b.yaml").write_text("a: [\n")
    with pytest.raises(UnreadableDocuments) as error:
        read([str(tmp_path), str(tmp_path / "nowhere.yaml")])
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert "nowhere.yaml: No such file" in lines[2]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnreadableDocuments, match=r"empty: has no \*.yaml file"):
        read([str(tmp_path / "empty")])


def test_a_value_is_in_a_file_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("https://hook.example/x\n")
    (tmp_path / "web.xml").write_text("<template>\n</template>\n")
    monkeypatch.setenv("COD_HOOK", "https://hook.example/y")
    [found] = of(
        tmp_path,
        "a: {file: secret}\nb: {env: COD_HOOK}\nc: {file: web.xml}\nd: {file: 3}\n"
        "e: {file: a, env: b}\n",
    )
    assert found.values == {
        "a": "https://hook.example/x",
        "b": "https://hook.example/y",
        "c": "<template>\n</template>\n",
        "d": {"file": 3},
        "e": {"file": "a", "env": "b"},
    }


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]) | st.sampled_from("\n\t :#-'"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | TEXTS
    | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    node = yaml.compose(written({"field": {"of": value, "x": 1}}), Loader=site_files._Loader)
    read_ = site_files._value(Path("-"), node, "", {})
    assert read_ == {"field": {"of": value, "x": 1}}

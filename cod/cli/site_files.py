"""The site's documents as YAML files: reading, with the place of each value, and writing.

Files are in a subset of YAML 1.2 that JSON has, too: there are no aliases and no tags, keys are
texts, and `12:30` and `yes` are texts. A value `{file: PATH}` or `{env: NAME}` stands for the text
of a file (relative paths start at the document's folder) or of an environment variable, so that
secrets need not be in the documents.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cod.cli.terminal_text import is_printable

LARGEST = 2**20  # bytes of one file, as of a body of the API
DEPTH = 20
LONGEST_TEXT = 2**18  # bytes of a file that a value names
_STRING = "tag:yaml.org,2002:str"
_MAPPING = "tag:yaml.org,2002:map"
_SEQUENCE = "tag:yaml.org,2002:seq"
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,30})")
_NUMBER = re.compile(r"-?[0-9]{0,30}\.[0-9]{1,30}([eE][+-]?[0-9]{1,3})?")


class UnreadableDocuments(Exception):
    """Documents that cannot be read, with a line for each fault: FILE:LINE and the fault."""


@dataclass(frozen=True, slots=True)
class WrittenDocument:
    """A document. `places` has FILE:LINE by the path of a value, with dots ('': the document
    itself)."""

    values: dict[str, Any]
    places: Mapping[str, str]

    def place(self, path: str) -> str:
        """Return the place of the value, or else that of the value that contains it."""
        while path and path not in self.places:
            path = path.rpartition(".")[0]
        return self.places[path]


class _Fault(Exception):
    def __init__(self, mark: Any, sentence: str) -> None:
        super().__init__(sentence)
        self.line, self.sentence = mark.line + 1, sentence


class _Loader(yaml.BaseLoader):
    """Composes nodes to a depth of at most `DEPTH`, and without aliases, by which a small file
    could become huge."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _Fault(event.start_mark, "has an alias (*); write the value out")
        self.depth += 1
        if self.depth > DEPTH:
            raise _Fault(event.start_mark, f"is nested more than {DEPTH} levels deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read(paths: Iterable[str]) -> list[WrittenDocument]:
    """Return the documents in files, and in the `*.yaml` and `*.yml` files of folders, in the order
    of their names; '-' is standard input. Raises `UnreadableDocuments` with all faults."""
    found: list[WrittenDocument] = []
    faults: list[str] = []
    for path in _files(paths, faults):
        try:
            found += _documents(path, _text(path))
        except _Fault as fault:
            faults.append(f"{path}:{fault.line}: {fault.sentence}")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            faults.append(f"{path}:{line}: is no YAML: {error.problem or error.context}")
        except UnicodeDecodeError:
            faults.append(f"{path}: is not UTF-8")
        except yaml.YAMLError as error:
            faults.append(f"{path}: is no YAML: {error}")
        except OSError as error:
            faults.append(f"{path}: {error.strerror}")
    if faults:
        raise UnreadableDocuments("\n".join(faults))
    return found


def _files(paths: Iterable[str], faults: list[str]) -> Iterator[Path]:
    for each in paths:
        path = Path(each)
        if not path.is_dir():
            yield path
            continue
        own = sorted(
            one
            for one in path.rglob("*")
            if one.suffix in (".yaml", ".yml")
            and not any(part.startswith(".") for part in one.relative_to(path).parts)
        )
        if not own:
            faults.append(f"{path}: has no *.yaml file")
        yield from own


def _text(path: Path, longest: int = LARGEST) -> str:
    if str(path) == "-":
        data = sys.stdin.buffer.read(longest + 1)
    else:
        with path.open("rb") as file:
            data = file.read(longest + 1)
    if len(data) > longest:
        raise OSError(0, f"has more than {longest} bytes")
    return data.decode()


def _documents(path: Path, text: str) -> Iterator[WrittenDocument]:
    for node in yaml.compose_all(text, Loader=_Loader):
        places: dict[str, str] = {}
        value = _value(path, node, "", places)
        if value is None:  # between two '---'
            continue
        if not isinstance(value, dict):
            raise _Fault(node.start_mark, "should be a document of fields, such as kind: group")
        yield WrittenDocument(value, places)


def _value(path: Path, node: Any, name: str, places: dict[str, str]) -> Any:
    places[name] = f"{path}:{node.start_mark.line + 1}"
    if node.tag not in (_STRING, _MAPPING, _SEQUENCE):
        raise _Fault(node.start_mark, f"has a tag ({node.tag}), which documents do not have")
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    inner = f"{name}." if name else ""
    if isinstance(node, yaml.SequenceNode):
        return [
            _value(path, each, f"{inner}{place}", places) for place, each in enumerate(node.value)
        ]
    values: dict[str, Any] = {}
    for key, each in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _Fault(key.start_mark, "has a key that is no text")
        if key.value in values:
            raise _Fault(key.start_mark, f"has {key.value} twice")
        values[key.value] = _value(path, each, f"{inner}{key.value}", places)
        places[f"{inner}{key.value}"] = f"{path}:{key.start_mark.line + 1}"
    return _referred(path, node, values) if name else values


def _scalar(node: yaml.ScalarNode) -> Any:
    text = node.value
    if node.style is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _referred(path: Path, node: Any, values: dict[str, Any]) -> Any:
    """Return the text that `{file: PATH}` or `{env: NAME}` stands for; any other value
    unchanged."""
    where, what = next(iter(values.items())) if len(values) == 1 else ("", None)
    if where not in ("file", "env") or not isinstance(what, str):
        return values
    if where == "env":
        if what not in os.environ:
            raise _Fault(node.start_mark, f"names the variable {what}, which is not set")
        return os.environ[what]
    try:
        text = _text(path.parent / what, LONGEST_TEXT)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not UTF-8"
        raise _Fault(node.start_mark, f"names the file {what}: {why}") from None
    # the newline after a secret in a file of one line does not belong to the secret
    return text.removesuffix("\n") if text.count("\n") == 1 else text


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as literal blocks."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if "\n" in text:
        style = "|" if is_printable(text) else '"'  # which alone can escape
    return dumper.represent_scalar(_STRING, text, style=style)


_Dumper.add_representer(str, _write_text)


def written(value: Any) -> str:
    """Return a value as YAML that `read` can read, without characters that a terminal would
    obey."""
    how: dict[str, Any] = {"Dumper": _Dumper, "sort_keys": False, "default_flow_style": False}
    text: str = yaml.dump(value, allow_unicode=True, width=10_000, **how)
    if not is_printable(text):
        text = yaml.dump(value, allow_unicode=False, width=10_000, **how)
    return text.removesuffix("...\n")

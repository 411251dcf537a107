"""What the layouts of all releases have in common: a document is JSON of a shape, checked
strictly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from cod.model import field_error
from cod.vcm.batch.commands import CommandFailed, NotUnderstood
from cod.vcm.slurm.view import SlurmJob, SlurmNode

LARGEST = 256 * 2**20  # bytes of one command's output
SILENT = "slurmctld does not answer"


@dataclass(frozen=True, slots=True)
class Layout:
    """How some releases of Slurm are asked, and read.

    releases  for people
    queue, nodes   commands that list all jobs, and all nodes
    node      the command that lists a node by its name, and perhaps others
    read_jobs      returns the jobs, also those that are over
    read_nodes     returns the nodes by name, without those that only say what nodes may be (FUTURE)
    """

    releases: str
    queue: tuple[str, ...]
    nodes: tuple[str, ...]
    node: Callable[[str], tuple[str, ...]]
    read_jobs: Callable[[bytes], list[SlurmJob]]
    read_nodes: Callable[[bytes], dict[str, SlurmNode]]


class Shape(BaseModel):
    """A part of a document, of which more may be said than is read."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Document(Shape):
    """What each document has."""

    errors: list[Any]


D = TypeVar("D", bound=Document)


def document(command: str, output: bytes, shape: type[D]) -> D:
    """Return a command's output as a document of this shape. Raises `NotUnderstood`, or
    `CommandFailed` where the output has errors."""
    if len(output) > LARGEST:
        raise NotUnderstood(f"{command} --json: {len(output)} bytes of output")
    try:
        # names of jobs may be any bytes
        read = shape.model_validate_json(output.decode(errors="replace"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise NotUnderstood(f"{command} --json: {where}: {field_error(first)}") from None
    if read.errors:  # with status 0, and an empty list: the controller does not answer
        raise CommandFailed(f"{SILENT}{_detail(command, read.errors[0])}")
    return read


def _detail(command: str, error: object) -> str:
    """Return what an error says beside that, '' where it says nothing."""
    fields = error if isinstance(error, dict) else {"error": error}
    text = str(fields.get("description") or fields.get("error") or "")
    return f" ({command} --json: {text})" if text and text != "Unspecified error" else ""

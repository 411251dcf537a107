"""The OpenAPI 3.1 document of the REST API, made from the table of routes; its texts are in
`openapi_texts`."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from inspect import cleandoc
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cod.web.api.event_texts import POSITION
from cod.web.api.models import Query
from cod.web.api.openapi_texts import ABOUT, ALWAYS, ERRORS, EXAMPLES, HEADERS, TAGS
from cod.web.api.resources import ROUTES
from cod.web.api.resources.server import DryRunQuery, DryRunReply, Problem
from cod.web.api.routes import CLAIMS, OWNED, Route
from cod.web.api.things import THINGS
from cod.web.http.request import PREFIX
from cod.wire.tus import PIECE_TYPE

_REF = "#/components/schemas/{model}"
_TEXT = {"type": "string"}
_SIGNED_IN: list[dict[str, list[str]]] = [{"token": []}, {"session": []}]


@cache
def document(routes: tuple[Route, ...] = ROUTES) -> dict[str, Any]:
    """Return the whole document, as JSON values."""
    paths: dict[str, dict[str, Any]] = {}
    for each in routes:
        paths.setdefault(PREFIX + each.path, {})[each.method.lower()] = _operation(each)
    paths[f"{PREFIX}/events"] = {"get": _EVENTS}
    named: set[type[BaseModel]] = {m for r in routes for m in (r.body, r.reply) if m}
    named |= {Problem, DryRunReply}
    models = sorted(named, key=lambda m: m.__name__)
    _, schemas = models_json_schema([(m, "validation") for m in models], ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cluster-on-Demand", "version": version("cod"), "description": ABOUT},
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": _SCHEMES,
            "responses": {code: _problem(about) for code, about in ERRORS.items()},
        },
        "security": _SIGNED_IN,
    }


_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "The site's, or one's own (`POST /me/tokens`)",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-cod",
        "description": (
            "A browser that is signed in; its scripts send X-CSRF-Token with all but GET"
        ),
    },
}


def _operation(route: Route) -> dict[str, Any]:
    codes = [
        *ALWAYS,
        *(["412"] if route.changes else []),
        *(["429"] if route.act or route.dear or route.changes else []),
    ]
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "description": _rights(route),
        "tags": [route.path.split("/")[1]],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_headers(route)],
        "responses": (
            _success(route)
            | {code: {"$ref": f"#/components/responses/{code}"} for code in sorted(codes)}
        ),
    }
    if route.open:
        operation["security"] = [{}, *_SIGNED_IN] if route.act is None else [{}]
    if route.body:
        operation["requestBody"] = {"required": True, "content": _json(route.body)}
    return operation | (uploads(route, operation) if route.upload else {})


def _rights(route: Route) -> str:
    """Return the description of the callers who may use the route, from the docstring of its
    claims."""
    if route.open:
        return "For those who have not signed in, too."
    rights = cleandoc(route.claims.__doc__ or "").replace("\n", " ").removeprefix(CLAIMS)
    local = " Only on the server's own UNIX socket." if route.local else ""
    return f"Rights: {rights[:1].upper()}{rights[1:]}{local}"


def _success(route: Route) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done" if route.changes else "As asked"}
    if route.reply:
        success["content"] = _json(route.reply)
    if hasattr(route.reply, "csv"):
        success["content"]["text/csv"] = {"schema": _TEXT}
    if hasattr(route.reply, "as_text"):
        success["content"]["text/plain"] = {"schema": _TEXT}
    if route.method != "GET":
        is_tagged = THINGS[route.method, route.path].path
        headers = {"ETag": "The tag of the thing as it is now, for `If-Match`"} if is_tagged else {}
        answers = {str(route.status): success | _headed(headers)}
        made = headers | {"Location": "Where the thing is"}
        for status in (201,) if route.puts else {201, 202} & {route.status}:
            found = _links(route)
            answers[str(status)] = success | _headed(made) | ({"links": found} if found else {})
        return answers
    success["headers"] = {"ETag": {"description": "A digest of this answer", "schema": _TEXT}}
    return {str(route.status): success, "304": {"description": "As `If-None-Match` has it"}}


def _links(route: Route) -> dict[str, Any]:
    """Return the links from an answer to the operation that shows the thing."""
    about = THINGS[route.method, route.path]
    path, shown = about.path, about.shown_by
    if shown is None:
        return {}
    source = "$response.body#/{}" if route.makes else "$request.path.{}"
    parameters = {}
    for given, wanted in zip(path.split("/"), shown.path.split("/"), strict=True):
        if wanted.startswith("{"):  # one value, or, as in NAME@REVISION, a text with several
            single = re.fullmatch(r"\{(\w+)\}", given)
            parameters[wanted[1:-1]] = (
                source.format(single[1])
                if single
                else re.sub(r"\{(\w+)\}", lambda found: "{" + source.format(found[1]) + "}", given)
            )
    return {
        "thing": {
            "operationId": operation_id(shown),
            "parameters": parameters,
            "description": "What was made or changed",
        }
    }


def _headed(headers: dict[str, str]) -> dict[str, Any]:
    """Return the headers of an answer, given a description of each."""
    named = {n: {"description": about, "schema": _TEXT} for n, about in headers.items()}
    return {"headers": named} if named else {}


def _headers(route: Route) -> list[dict[str, Any]]:
    bound = route.changes and THINGS[route.method, route.path].get is not None
    names = ["If-None-Match"] if route.method == "GET" or bound else []
    names += ["Idempotency-Key"] if route.is_keyed else []
    names += ["If-Match"] if bound else []
    return [_header(name, HEADERS[name], False) for name in names]


def uploads(route: Route, operation: dict[str, Any]) -> dict[str, Any]:
    """Return the additions of the tus protocol to an operation: headers, and bodies that are pieces
    of a file."""
    asked = [
        _header(name, about, required) for name, about, required in _ASKED.get(route.method, ())
    ]
    more: dict[str, Any] = {
        "parameters": [*operation["parameters"], *asked],
        "description": (
            operation["description"]
            + " By the tus protocol 1.0 for resumable uploads, see docs/uploads"
        ),
    }
    if route.method in ("POST", "PATCH"):
        content = operation.get("requestBody", {}).get("content", {})
        more["requestBody"] = {
            "required": route.method == "PATCH",
            "content": content | {PIECE_TYPE: {}},
        }
    answers = operation["responses"]
    answers[str(route.status)].setdefault("headers", {}).update(
        {name: {"description": about, "schema": _TEXT} for name, about in _HEADERS.items()}
    )
    return more | {
        "responses": answers | {code: _problem(about) for code, about in _UPLOAD_ERRORS.items()}
    }


def _header(name: str, about: str, required: bool) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": about,
        "schema": _TEXT,
    }


_ASKED = {
    "POST": (
        ("Upload-Length", "bytes of the file, instead of a body", False),
        (
            "Upload-Metadata",
            "name, group, sha256, plain, raw: values in base64, instead of a body",
            False,
        ),
    ),
    "PATCH": (
        ("Upload-Offset", "where the piece begins: as many bytes as the server has", True),
        (
            "Upload-Checksum",
            "algorithm (sha256, sha1, md5) and digest in base64 of the piece",
            False,
        ),
    ),
}
_HEADERS = {
    "Tus-Resumable": "the protocol's version",
    "Upload-Offset": "bytes that are on the server's disk",
    "Upload-Length": "bytes of the file",
    "Upload-Expires": "when the upload is given up unless more of it comes",
    "Upload-Metadata": "what was said of the file",
    "Location": "the upload that was made",
    "Repr-Digest": "sha256 of the file that has become an image (RFC 9530)",
}
_UPLOAD_ERRORS = {
    "412": "Another version of the tus protocol, or the upload is not as `If-Match` has it",
    "423": "Somebody else is sending this upload",
    "460": "The piece is not what its checksum says",
    "507": "The disk has no room for it",
}


def operation_id(route: Route) -> str:
    """Return a name for generated clients: method and path, words joined by underscores."""
    return "_".join(
        [
            route.method.lower(),
            *route.path.strip("/").replace("{", "by_").replace("}", "").split("/"),
        ]
    )


def _json(model: type[BaseModel]) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": _REF.format(model=model.__name__)}}
    if model.__name__ in EXAMPLES:
        content["example"] = EXAMPLES[model.__name__]
    return {"application/json": content}


def _problem(about: str) -> dict[str, Any]:
    return {
        "description": about,
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}},
    }


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    about = {"description": _FULL} if route.path.split("/")[1] in OWNED else {}
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        | about
        for name in names
    ]


_FULL = (
    "The full name: what a group owns has its group's name first, as in `physics/debian`, with the"
    " slash as such or as `%2F`. What the site owns has a bare name"
)


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    models = [route.query, DryRunQuery if route.can_be_tried else None]
    return [one for model in models if model for one in _parameters_of(model)]


def _parameters_of(query: type[Query]) -> list[dict[str, Any]]:
    schema = query.model_json_schema()
    found = [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "description": one.get("description", ""),
            "schema": _of_text(one, schema.get("$defs", {})),
        }
        for name, one in schema["properties"].items()
    ]
    commas = {"style": "form", "explode": False}
    return [one | commas if one["schema"].get("type") == "array" else one for one in found]


def _of_text(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter by itself. A query string has no null, so the schema has
    none."""
    kinds = [one for one in schema.get("anyOf", []) if one.get("type") != "null"]
    if len(kinds) == 1:
        schema = {
            key: value for key, value in schema.items() if key not in ("anyOf", "default")
        } | kinds[0]
    if "$ref" in schema:
        schema = schema | named[schema["$ref"].rpartition("/")[2]]
    return {
        key: value
        for key, value in schema.items()
        if key not in ("$ref", "title", "description") and not (key == "default" and value is None)
    }


_EVENTS = {
    "operationId": "get_events",
    "summary": "Follow transitions, priming progress and notices as server-sent events",
    "description": (
        "Rights: Everybody who is signed in, of what they may see. Events `transition` (a history"
        " row), `progress` and `notice`. Resume with the last id of the stream in the"
        " Last-Event-ID header or else in `after`: nothing is missed, and some events may come"
        " again, with the same `id` in their data. The stream ends when the database has lost its"
        " last commits, whose ids are given again: resume as ever."
    ),
    "tags": ["events"],
    "parameters": [
        {
            "name": "after",
            "in": "query",
            "required": False,
            "schema": {"type": "string", "pattern": POSITION},
        },
        {"name": "Last-Event-ID", "in": "header", "required": False, "schema": _TEXT},
    ],
    "responses": (
        {"200": {"description": "A stream", "content": {"text/event-stream": {}}}}
        | {
            code: {"$ref": f"#/components/responses/{code}"}
            for code in ("400", "401", "403", "405", "422", "500", "503")
        }
    ),
}

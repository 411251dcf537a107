"""The OpenAPI 3.1 document of the REST API, made from the table that serves it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cod.net.bodies import Problem
from cod.net.routes import Route
from cod.net.table import ROUTES
from cod.wire.tus import PIECE_TYPE

PREFIX = "/api/v1"
_REF = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The body is not JSON, or the request not HTTP",
    "401": "No token, or one that is not valid",
    "403": "The token may not do that",
    "404": "No such thing",
    "409": "It cannot be done in the present state",
    "413": "The body is too large",
    "415": "The body is of another media type",
    "422": "A value is not acceptable; `field` names it",
    "503": "The database does not answer",
}


def document(routes: tuple[Route, ...] = ROUTES) -> dict[str, Any]:
    """The whole document, as JSON values."""
    models = sorted({m for r in routes for m in (r.body, r.reply) if m} | {Problem}, key=lambda m: m.__name__)
    _, schemas = models_json_schema([(m, "validation") for m in models], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for each in routes:
        paths.setdefault(PREFIX + each.path, {})[each.method.lower()] = _operation(each)
    paths[f"{PREFIX}/events"] = {"get": _EVENTS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cluster-on-Demand", "version": version("cod"),
                 "description": "Times are seconds since the epoch, lengths of time seconds, sizes bytes."},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {code: _problem(about) for code, about in _ERRORS.items()},
        },
        "security": [{"token": []}, {}],
    }


def _operation(route: Route) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done" if route.changes else "As asked"}
    if route.reply:
        success["content"] = _json(route.reply)
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": {str(route.status): success}
        | {code: {"$ref": f"#/components/responses/{code}"} for code in _ERRORS},
    }
    if route.open:
        operation["security"] = [{}]
    if route.body:
        operation["requestBody"] = {"required": True, "content": _json(route.body)}
    return operation | (uploads(route, operation) if route.upload else {})


def uploads(route: Route, operation: dict[str, Any]) -> dict[str, Any]:
    """What the tus protocol adds to an operation: headers, and bodies that are pieces of a file."""
    asked = [_header(name, about, required) for name, about, required in _ASKED.get(route.method, ())]
    more: dict[str, Any] = {"parameters": [*operation["parameters"], *asked],
                            "description": "By the tus protocol 1.0 for resumable uploads, see docs/uploads.md"}
    if route.method in ("POST", "PATCH"):
        content = operation.get("requestBody", {}).get("content", {})
        more["requestBody"] = {"required": route.method == "PATCH", "content": content | {PIECE_TYPE: {}}}
    answers = operation["responses"]
    answers[str(route.status)]["headers"] = {
        name: {"description": about, "schema": {"type": "string"}} for name, about in _TOLD.items()}
    return more | {"responses": answers | {code: _problem(about) for code, about in _UPLOAD_ERRORS.items()}}


def _header(name: str, about: str, required: bool) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, "description": about, "schema": {"type": "string"}}


_ASKED = {
    "POST": (("Upload-Length", "bytes of the file, instead of a body", False),
             ("Upload-Metadata", "name, group, sha256, plain: values in base64, instead of a body", False)),
    "PATCH": (("Upload-Offset", "where the piece begins: as many bytes as the server has", True),
              ("Upload-Checksum", "algorithm (sha256, sha1, md5) and digest in base64 of the piece", False)),
}
_TOLD = {
    "Tus-Resumable": "the protocol's version",
    "Upload-Offset": "bytes that are on the server's disk",
    "Upload-Length": "bytes of the file",
    "Upload-Expires": "when the upload is given up unless more of it comes",
    "Upload-Metadata": "what was said of the file",
    "Location": "the upload that was made",
    "Repr-Digest": "sha256 of the file that has become an image (RFC 9530)",
}
_UPLOAD_ERRORS = {
    "412": "Another version of the tus protocol",
    "423": "Somebody else is sending this upload",
    "460": "The piece is not what its checksum says",
    "507": "The disk has no room for it",
}


def operation_id(route: Route) -> str:
    """A name for generated clients: method and path, words joined by underscores."""
    return "_".join([route.method.lower(), *route.path.strip("/").replace("{", "by_").replace("}", "").split("/")])


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}


def _problem(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/problem+json": {
        "schema": {"$ref": _REF.format(model="Problem")}}}}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    properties = route.query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]


_EVENTS = {
    "operationId": "get_events",
    "summary": "Follow transitions, priming progress and notices as server-sent events",
    "description": "Events `transition` (with the history row's id as event id), `progress` and `notice`. Resume with "
                   "`after` or the Last-Event-ID header; notices at least as young as that transition come again.",
    "parameters": [{"name": "after", "in": "query", "required": False, "schema": {"type": "integer", "minimum": 0}}],
    "responses": {"200": {"description": "A stream", "content": {"text/event-stream": {}}},
                  "401": {"$ref": "#/components/responses/401"}},
}

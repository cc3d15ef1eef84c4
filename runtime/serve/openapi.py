"""The routes, for programs (OpenAPI) and for people."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from headrace import __version__
from headrace.runtime.serve.endpoint import Route

REFUSED = {
    "400": "The request is not as accepted, or the model does not enable the task; the words say what to do.",
    "401": "A key is needed.",
    "413": "The body, its texts or one of them is too long.",
    "429": "Too many requests wait; Retry-After says when to come again.",
    "504": "The answer took longer than the server allows.",
}


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of some routes."""
    forms = [route.body for route in routes if route.body is not None]
    named, defined = models_json_schema(
        [(form, "validation") for form in dict.fromkeys(forms)], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for route in routes:
        about: dict[str, Any] = {
            "summary": route.says,
            "responses": {"200": {"description": "The answer."}} | {k: {"description": v} for k, v in REFUSED.items()},
        }
        if route.body is not None:
            about["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": named[route.body, "validation"]}},
            }
        elif "{" in route.path:
            about["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths[route.path.replace(":path", "")] = {route.method.lower(): about}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": defined.get("$defs", {}),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def page(routes: Sequence[Route]) -> str:
    """The same as a page, which loads nothing from elsewhere."""
    rows = "\n".join(map(_row, routes))
    return (
        "<!doctype html><meta charset=utf-8><title>Headrace</title>"
        "<style>body{font:15px sans-serif;margin:2em}td{padding:.3em 1em;vertical-align:top}</style>"
        f"<h1>Headrace {html.escape(__version__)}</h1><p>For programs: <a href=openapi.json>openapi.json</a></p>"
        f"<table>{rows}</table>"
    )


def _row(route: Route) -> str:
    fields = [] if route.body is None else [_field(name, one) for name, one in route.body.model_fields.items()]
    cells = (f"{route.method} {route.path}", route.says, ", ".join(fields))
    return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"


def _field(name: str, field: Any) -> str:
    return f"{field.alias or name}{'' if field.is_required() else '?'}"

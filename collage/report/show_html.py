"""The page of a module: one HTML file with its network, time line and candidates, which a script draws from data."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from collage.core.printable import printable
from collage.report.compare import Comparison
from collage.report.page_data import PageData, ShownModule, comparison_data, page_data
from collage.report.report import Report
from collage.report.show import headline, rows
from collage.runtime.inputs import shapes_text
from collage.schedule.program import Program

VENDORED = ("cytoscape", "dagre")
"""Libraries that the page draws with; ``page/vendor/vendor.json`` has their versions and digests."""
_SCRIPTS = ("words.js", "layout.js", "network.js", "page.js")
_IN_A_NOTEBOOK = "width:100%;height:820px;border:1px solid #8884;border-radius:8px"


def as_page(modules: Sequence[ShownModule]) -> str:
    """A whole HTML document with the modules of a file. It needs no other file, and loads nothing.

    Without scripts it shows tables.
    """
    return _document(page_data(modules), "".join(as_tables(each.report, each.program) for each in modules))


def comparison_page(one: ShownModule, other: ShownModule, found: Comparison, names: tuple[str, str]) -> str:
    """A whole HTML document with the networks of two modules beside each other, in which the differences are marked."""
    tables = "".join(as_tables(each.report, each.program) for each in (one, other))
    return _document(comparison_data(one, other, found, names), tables)


def as_notebook_view(modules: Sequence[ShownModule]) -> str:
    """The page in a frame of its own, so that neither its styles nor its scripts touch the notebook, and tables below.

    Each view adds 600 KB to the notebook, most of it the library that draws, since a frame shares nothing with others.
    Notebooks that are not trusted, and GitHub, show the tables only.
    """
    frame = f'<iframe sandbox="allow-scripts" title="Collage" style="{_IN_A_NOTEBOOK}" srcdoc="{{}}"></iframe>'
    tables = "".join(as_tables(each.report, each.program) for each in modules)
    return (
        f"<div>{frame.format(escape(as_page(modules)))}"
        f"<details><summary>{_html(modules[0].report.model)} as a table</summary>{tables}</details></div>"
    )


def as_tables(report: Report, program: Program) -> str:
    """The headline and the regions of a module as a piece of HTML without scripts and styles."""
    head = "".join(f"<th>{each}</th>" for each in ("#", "backend", "operators", "ONNX nodes", "us", "share"))
    body = "".join(
        f"<tr><td>{row.number}</td><td>{_html(row.where_and_how)}</td><td>{_html(row.ops)}</td>"
        f"<td>{_html(row.nodes)}</td><td>{row.cost}</td><td>{row.percent}</td></tr>"
        for row in rows(program)
    )
    return (
        f"<p><b>{_html(report.model)}</b> ({_html(shapes_text(program))}): {_html(headline(report))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _document(data: PageData, tables: str) -> str:
    scripts = _scripts()
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in digests)
    parts = {
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}",
        "title": _html(data.model),
        "style": _text("page.css"),
        "static": tables,
        "data": _json(data.to_json()),
        "scripts": "\n".join(f"<script>{each}</script>" for each in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _text("page.html"))


@cache
def _scripts() -> tuple[str, ...]:
    """The scripts of the page, each with the licence of its library if it is one of those."""
    libraries = (f"/*\n{_text(f'vendor/{name}.LICENSE')}*/\n{_text(f'vendor/{name}.min.js')}" for name in VENDORED)
    return *libraries, *map(_text, _SCRIPTS)


@cache
def _text(name: str) -> str:
    return files("collage.report").joinpath(f"page/{name}").read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON within an element of HTML. Infinity and NaN, which JSON lacks, are null."""
    text = json.dumps(_plain(value), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    """The value without infinities, and with texts that change no writing direction."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _html(text: str) -> str:
    return escape(printable(text))

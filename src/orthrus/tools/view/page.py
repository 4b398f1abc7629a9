"""The page of `orthrus view`: one HTML text that loads nothing.

In: what it shows, as data. Out: the text. Its scripts and styles are allowed by their hashes alone, and data
never stands where a browser would read it as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import ViewData

SCRIPTS = ("dagre.min.js", "uplot.min.js", "view-text.js", "view-model.js", "view-layout.js", "view-tree.js",
           "view-canvas.js", "view-map.js", "view-colours.js", "view-plots.js", "view-panel.js",
           "view-table.js", "view-page.js")
STYLES = ("uplot.min.css", "view.css")


def page(data: ViewData) -> str:
    """The whole HTML text for `data`."""
    scripts = [_without_map(_asset(name)) for name in SCRIPTS]
    style = "\n".join(_asset(name) for name in STYLES)
    policy = "; ".join([
        "default-src 'none'", "script-src " + " ".join(map(_hash, scripts)), "style-src " + _hash(style),
        "worker-src blob:", "base-uri 'none'", "form-action 'none'"])
    parts = {
        "POLICY": html.escape(policy), "TITLE": html.escape(data.model), "STYLE": style,
        "DATA": json_text(data.plain()),
        "SCRIPTS": "\n".join(f'<script id="{name}">{script}</script>'
                             for name, script in zip(SCRIPTS, scripts, strict=True)),
    }
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda found: parts[found[1]], _asset("view.html"))


def json_text(data: Any) -> str:
    """JSON that may stand inside a script element: no `<`, `>` or `&`, and nothing but ASCII."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (files("orthrus.tools.view") / "assets" / name).read_text("utf-8")


def _without_map(script: str) -> str:
    return re.sub(r"\n//# sourceMappingURL=\S+", "", script)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"

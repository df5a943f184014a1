"""Pages from templates. Whatever a run or a person wrote is text on them, never markup and never a control code."""

from __future__ import annotations

import base64
import re
from typing import Any

from rlfw.report import text


def filled(template: str, *, escaped: bool, **values: Any) -> str:
    """A template beside this file with ``values`` in it, ``escaped`` for HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    def shown(value: Any) -> Any:
        return text.printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    def breakable(name: str) -> str:
        """A name with places to break: after =, comma and underscore, never within a word."""
        told = str(escape(text.printable_lines(name)))
        return Markup(re.sub("([=,_])", r"\1<wbr>", told))

    def data(image: bytes) -> str:
        return Markup(base64.b64encode(image).decode())

    pages = Environment(
        loader=PackageLoader("rlfw.report", "."),
        autoescape=escaped,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters.update(data=data, breakable=breakable, number=text.number, cell=_cell)
    return pages.get_template(template).render(**values)


def _cell(shown: str) -> str:
    """For a table of Markdown: no bar, and nothing that a renderer takes for HTML."""
    for mark, told in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("\n", " ")):
        shown = shown.replace(mark, told)
    return shown

"""Tables whose rows stand by themselves on a narrow screen, each figure with its name, also where no script runs."""

from __future__ import annotations

import html
import re

from markupsafe import Markup

_TABLE = re.compile(r"(?<=<div class=\"scroll\" tabindex=\"0\">\n)<table(?! class=\"decision\").*?</table>", re.DOTALL)
_PART = re.compile(r"<(?P<tag>table|thead|tbody|tr|th|td)\b(?P<rest>[^>]*)>")
_TITLE = re.compile(r"<th scope=\"col\"[^>]*>(.*?)</th>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_ROLES = {"table": "table", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "td": "cell"}


def stacked(page: str) -> Markup:
    """The page of a template, whose tables in a box of their own with titles above the columns are ready for style.css.

    A style that lays cells out as blocks takes from a table what it is; the roles give that back.
    """
    return Markup(_TABLE.sub(lambda found: _named(found[0]), page))  # noqa: S704 - escaped by the template that made it


def _named(table: str) -> str:
    titles = [_TAG.sub("", title).strip() for title in _TITLE.findall(table)]
    # Once for each column, where a name in every cell would weigh more than the figures.
    names = ";".join(f"--c{column}:{_quoted(title)}" for column, title in enumerate(titles, start=1))

    def part(found: re.Match[str]) -> str:
        tag, rest = found["tag"], found["rest"]
        role = _ROLES.get(tag) or ("columnheader" if 'scope="col"' in rest else "rowheader")
        if tag == "table":
            rest = rest.replace('class="', 'class="stack ') if "class=" in rest else f'{rest} class="stack"'
            rest += f' style="{names}"'
        return f'<{tag}{rest} role="{role}">'

    return _PART.sub(part, table) if titles else table


def _quoted(title: str) -> str:
    """A string of CSS in an attribute of HTML."""
    plain = html.unescape(title).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{html.escape(plain, quote=False)}'".replace('"', "&quot;")

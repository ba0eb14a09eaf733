"""Tables that a narrow screen lays out row by row keep names and roles, whether a script runs or not."""

import html
import re

from harness.analysis.stacked import stacked

BOX = '<div class="scroll" tabindex="0">\n<table{}>{}</table>\n</div>'
HEAD = '<thead><tr><th scope="col">Run as</th><th scope="col" class="words">p99 <span>ms</span></th></tr></thead>'
ROW = '<tr><th scope="row">mps</th><td class="words">5 &lt; 6</td></tr>'


def test_every_figure_has_the_title_of_its_column_and_every_part_its_role():
    assert stacked(BOX.format(' class="scaling"', f"{HEAD}<tbody>{ROW}{ROW}</tbody>")) == BOX.format(
        ' class="stack scaling" style="--c1:\'Run as\';--c2:\'p99 ms\'" role="table"',
        '<thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">Run as</th>'
        '<th scope="col" class="words" role="columnheader">p99 <span>ms</span></th></tr></thead><tbody role="rowgroup">'
        + 2
        * ('<tr role="row"><th scope="row" role="rowheader">mps</th><td class="words" role="cell">5 &lt; 6</td></tr>')
        + "</tbody>",
    )


def test_a_title_stays_one_string_of_css():
    (titles,) = re.findall(
        'style="([^"]*)"', stacked(BOX.format("", '<thead><tr><th scope="col">a&#39;s \\ "&lt;b"</th></tr></thead>'))
    )
    assert html.unescape(titles) == r"""--c1:'a\'s \\ "<b"'"""


def test_the_decision_and_what_has_no_titles_stay_as_they_are():
    for table in (
        BOX.format(' class="decision"', HEAD),
        BOX.format("", f"<tbody>{ROW}</tbody>"),
        f"<table>{HEAD}</table>",
    ):
        assert stacked(table) == table

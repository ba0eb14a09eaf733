"""Ten pages say what they said: who changes a word that users read sees all of its places, and reads them once."""

from tests.support.cases import every
from tests.support.golden_pages import GOLDEN, PAGES, rendered


@every(PAGES)
def test_a_page_reads_as_it_did(name):
    golden = (GOLDEN / name).read_text(encoding="utf-8")

    assert rendered(name) == golden, "read the difference; if it is meant: python -m tests.support.golden_pages"


def test_every_golden_page_is_made_by_a_command():
    assert {path.name for path in GOLDEN.iterdir()} == set(PAGES)

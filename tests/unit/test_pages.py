"""The pages that are made from the code are what the code makes of them today."""

from scripts.pages import DOCS, PAGES
from tests.support.cases import every


@every(PAGES)
def test_a_page_is_what_the_code_says(name):
    text = (DOCS / name).read_text()

    assert text == PAGES[name](text), "run: python -m scripts.pages"


def test_every_page_that_names_the_command_is_made_by_it():
    assert {path.name for path in DOCS.glob("**/*.md") if "python -m scripts.pages" in path.read_text()} == set(PAGES)

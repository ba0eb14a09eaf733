"""Writes the pages."""

from scripts.pages import DOCS, PAGES

for name, made in PAGES.items():
    (DOCS / name).write_text(made((DOCS / name).read_text(encoding="utf-8")), encoding="utf-8")

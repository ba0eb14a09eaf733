"""What the docs site needs beyond `mkdocs.yml`: README.md as its home, and a copy of each file that a link leads to outside docs/."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)#:\s]+)")


def place(file: Path) -> str:
    """Where a file of the repository is in the site: what is in docs/ at the top, all else where the repository has it."""
    return file.relative_to(ROOT).as_posix().removeprefix("docs/")


def links(page: Path) -> list[Path]:
    """The files of the repository that a page in Markdown links to."""
    named = [(page.parent / target).resolve() for target in LINK.findall(page.read_text())]
    return [file for file in named if file.is_file()]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md, and from there on whatever a page links to."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:  # grows on the way
        for file in [page, *links(page)]:
            if files.get_file_from_path(place(file)) is None:
                files.append(File.generated(config, place(file), abs_src_path=str(file)))
                if file.suffix == ".md":
                    pages.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs names them
    """Lead every link to where its file is in the site; in the repository the page stays as it is."""
    source = Path(str(page.file.abs_src_path))
    here = posixpath.dirname(place(source))

    def moved(link: re.Match[str]) -> str:
        file = (source.parent / link[1]).resolve()
        return f"]({posixpath.relpath(place(file), here or '.')}" if file.is_file() else link[0]

    return LINK.sub(moved, markdown)


def on_post_page(output: str, **_: object) -> str:
    """Name the theme's search, which a screen reader would otherwise call a dialog and no more."""
    search = 'data-md-component="search" role="dialog"'
    return output.replace(search, f'{search} aria-label="Search"')


on_post_template = on_post_page  # of the page for a wrong address

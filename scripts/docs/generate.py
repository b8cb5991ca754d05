"""Write the generated pages of the documentation: ``python -m scripts.docs.generate FOLDER``.

Pages that other pages link to are kept in the repository, so that the links lead somewhere on GitHub, too. A test holds
them to what the code says (``tests/unit/docs/test_site.py``). The pages of the API are of use on the site only.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.docs.api_pages import api_pages
from scripts.docs.cli_page import cli_page
from scripts.docs.errors import errors_page
from scripts.docs.options_page import options_page

__all__ = ["KEPT", "kept_pages", "pages"]

KEPT = Path("docs/reference")
"""Where the pages are that the repository has."""


def pages() -> Iterator[tuple[str, str]]:
    """Names of files, and what they hold."""
    yield from kept_pages()
    yield from api_pages()


def kept_pages() -> Iterator[tuple[str, str]]:
    yield "options.md", options_page()
    yield "errors.md", errors_page()
    yield "command-line.md", cli_page()


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in api_pages():
        (folder / name).write_text(text)
    KEPT.mkdir(exist_ok=True)
    for name, text in kept_pages():
        (KEPT / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

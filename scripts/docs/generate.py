"""Write the generated pages of the documentation: ``python -m scripts.docs.generate FOLDER``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.docs.api_pages import api_pages
from scripts.docs.cli_page import cli_page
from scripts.docs.errors import errors_page
from scripts.docs.options_page import options_page

__all__ = ["pages"]


def pages() -> Iterator[tuple[str, str]]:
    """Names of files, and what they hold."""
    yield "options.md", options_page()
    yield "errors.md", errors_page()
    yield "command-line.md", cli_page()
    yield from api_pages()


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in pages():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

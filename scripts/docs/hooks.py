"""What mkdocs calls while it builds the site (mkdocs.yml, ``hooks``)."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

GENERATED = Path("build/docs-reference")
"""Where :mod:`scripts.docs.generate` writes."""
_FEWEST_WORDS = 20
_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):<code>~?")
_logger = logging.getLogger("mkdocs.hooks.lakemerge")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, as the folder ``reference``."""
    found = sorted((Path(config.config_file_path).parent / GENERATED).glob("*.md"))
    if not found:
        raise SystemExit(f"{GENERATED} has no pages: build the site with `make docs`")
    for path in found:
        files.append(File.generated(config, f"reference/{path.name}", content=path.read_text()))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Take away the roles of docstrings, and warn about an empty page. A warning fails a strict build."""
    words = re.sub(r"<[^>]*>", " ", html).split()
    if len(words) < _FEWEST_WORDS:
        _logger.warning("%s is empty: it has %d words", page.file.src_uri, len(words))
    return _ROLE.sub("<code>", html)

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
PLOTS = Path("benchmarks/results")
"""Pictures that pages show from outside the folder of the pages, as ``../benchmarks/results/NAME.svg``."""
_ON_SITE = "assets/results"
_FEWEST_WORDS = 20
_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):<code>~?")
_PAGE_NAME = re.compile(r"\bdocs/([a-z/-]+\.md)")
_FETCHED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*""")
_logger = logging.getLogger("mkdocs.hooks.lakemerge")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the API, in the folder ``reference``, and the plots."""
    found = sorted((Path(config.config_file_path).parent / GENERATED).glob("*.md"))
    if not found:
        raise SystemExit(f"{GENERATED} has no pages: build the site with `make docs`")
    for path in found:
        files.append(File.generated(config, f"reference/{path.name}", content=path.read_text()))
    for path in sorted((Path(config.config_file_path).parent / PLOTS).glob("*.svg")):
        files.append(File.generated(config, f"{_ON_SITE}/{path.name}", content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show plots from the site. Their links are those that lead to them in the repository."""
    return markdown.replace(f"](../{PLOTS}/", f"]({_ON_SITE}/")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of docstrings' references, and warn about an empty page. A warning fails a strict build."""
    words = re.sub(r"<[^>]*>", " ", html).split()
    if len(words) < _FEWEST_WORDS:
        _logger.warning("%s is empty: it has %d words", page.file.src_uri, len(words))
    if page.file.src_uri.startswith("reference/"):
        html = _PAGE_NAME.sub(lambda found: _link(found[1], page, files), _ROLE.sub("<code>", _without_marks(html)))
    return html


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn about what a page would fetch from another place."""
    for found in _FETCHED.findall(output):
        _logger.warning("%s fetches from the network: %s", page.file.src_uri, found)
    return output


def _without_marks(html: str) -> str:
    """The page without the marks that reStructuredText has before code, and Markdown does not."""
    return html.replace("<p>::</p>", "").replace("::</p>", ":</p>")


def _link(name: str, page: Page, files: Files) -> str:
    """To the page that a docstring names as a file of the project."""
    target = files.get_file_from_path(name)
    if target is None:
        _logger.warning("%s names docs/%s, which is not there", page.file.src_uri, name)
        return name
    return f'<a href="{target.url_relative_to(page.file)}">{name}</a>'

"""What mkdocs does for temperance's site beyond Markdown: pages from the registries, pictures, formulas.

The site loads nothing from a network: formulas become MathML here, fonts are the reader's own, and
`docs/javascripts/iframe-worker.js` stands in for the one script that the theme would fetch.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

from api_pages import api_pages  # noqa: E402  (needs the scripts on the path)
from method_pages import commands_page, page_path, pages  # noqa: E402
from method_pictures import shown, style  # noqa: E402
from temperance.cli.list_methods import KINDS  # noqa: E402

# Pages that live outside docs, and where they are on the site.
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """`registry: KIND` in the navigation stands for the pages of that kind."""
    made = dict(pages())
    paths = {kind: [path for path in made if path.startswith(f"reference/{kind}/")] for kind in KINDS}
    config.nav = _with_pages(config.nav, paths)
    return config


def _with_pages(nav: Any, paths: dict[str, list[str]]) -> Any:
    if isinstance(nav, list):
        return [_with_pages(each, paths) for each in nav]
    if isinstance(nav, dict):
        return {title: _with_pages(each, paths) for title, each in nav.items()}
    return paths[nav.removeprefix("registry:")] if nav.startswith("registry:") else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    made = {**dict(pages(shown)), **dict(api_pages())}
    made |= {path: _moved((ROOT / name).read_text()) for name, path in OUTSIDE.items()}
    made["changelog.md"] = "---\nsearch: {exclude: true}\n---\n\n" + made["changelog.md"]  # it mentions everything
    made |= {"reference/commands.md": commands_page(), "stylesheets/pictures.css": style()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def _moved(text: str) -> str:
    """A page of the root, whose links to the docs begin there."""
    return text.replace("](docs/", "](")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the entries of tables to their pages, and links that leave the docs to the site's own copy."""
    here = page.file.src_uri
    for name, path in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name}", f"]({path}")

    def linked(table: re.Match[str]) -> str:
        def row(found: re.Match[str]) -> str:
            target = page_path(table[1], found[1])
            return f"| [{found[1]}]({posixpath.relpath(target, posixpath.dirname(here))}) |"

        return re.sub(r"^\| ([a-z][a-z0-9-]*) \|(?! what it is)", row, table[0], flags=re.MULTILINE)

    kinds = "|".join(KINDS)
    markdown = re.sub(rf"<!-- table: ({kinds})(?: \S+)? -->.*?<!-- end -->", linked, markdown, flags=re.DOTALL)
    return re.sub(r"\$\$\n(.*?)\n\$\$", lambda found: formula(found[1]), markdown, flags=re.DOTALL)


def formula(latex: str) -> str:
    """A formula as MathML, which every current browser sets without a script."""
    lines = [convert(line, display="block") for line in latex.split("\\\\\n")]
    return f'<div class="formula">{"".join(lines)}</div>'


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a page that loads something from a network."""
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    for path in Path(config.site_dir).rglob("*.html"):
        if found := loads.search(path.read_text()):
            raise PluginError(f"{path.relative_to(config.site_dir)} loads from a network: {found[0]}")

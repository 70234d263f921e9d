"""A site of the papers: the README as its first page, and what docs/README.md lists, in its order.

    python docs/site.py build/site

Pages need no server and no network, their search included. What Sphinx warns of, a link without a target above all,
ends with an error. Needs docs/requirements.txt.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("LICENSE", "CODE_OF_CONDUCT.md", "SECURITY.md", "docs/conformance", "gateway/contract/backend.py")
"""What pages link to that is not listed."""
CONFIGURATION: dict[str, Any] = {
    "project": "tensorgate",
    "extensions": ["myst_parser"],
    "root_doc": "index",
    "myst_heading_anchors": 3,
    "html_theme": "furo",
    "html_title": "tensorgate",
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "highlight_language": "none",
    "suppress_warnings": ["misc.highlighting_failure"],  # of JSON with comments, and output that is cut
}


def sections(index: Path) -> Iterator[tuple[str, list[str]]]:
    """A heading of the list, and the pages below it, by their paths from the root."""
    for part in re.split(r"^## ", index.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        links = re.findall(r"\]\(([^):]+\.md)\)", text)
        yield title, [os.path.normpath(f"docs/{link}") for link in links]


def stage(folder: Path) -> None:
    """Lay the papers out as in the repository, the README's table of contents added."""
    for each in (*BESIDE, "docs/README.md"):
        copy(each, folder)
    for paper in folder.rglob("*.md"):
        paper.write_text(f"---\norphan: true\n---\n{paper.read_text(encoding='utf-8')}", encoding="utf-8")
    for picture in (ROOT / "docs").glob("*.*g"):  # png, jpg, svg
        copy(f"docs/{picture.name}", folder)
    front = [(ROOT / "README.md").read_text(encoding="utf-8")]
    for title, pages in sections(ROOT / "docs/README.md"):
        named = "\n".join(str(PurePosixPath(page).with_suffix("")) for page in pages)
        front.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n:maxdepth: 1\n\n{named}\n```")
        for page in pages:
            copy(page, folder)
    (folder / "index.md").write_text("\n\n".join(front), encoding="utf-8")


def copy(name: str, folder: Path) -> None:
    source, target = ROOT / name, folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a site of the papers.")
    parser.add_argument("target", type=Path, help="the folder to write, replaced as a whole")
    target = parser.parse_args().target
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch, patch_docutils(), docutils_namespace():
        papers = Path(scratch) / "papers"
        papers.mkdir()
        stage(papers)
        site = Sphinx(
            srcdir=papers,
            confdir=None,
            outdir=target,
            doctreedir=Path(scratch) / "trees",
            buildername="html",
            confoverrides=CONFIGURATION,
            status=None,
            warningiserror=True,
        )
        site.build(force_all=True)
        if site.statuscode:
            return site.statuscode
    print(f"wrote {target / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

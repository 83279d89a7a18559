"""site.py SOURCE PROGRAM PACKAGE: the site of the documentation is built, complete, and needs no other place.

With WEIR_TEST_LONG=1 source files are highlighted too, and Chromium runs the search, if it is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

source, program, package = (Path(argument) for argument in sys.argv[1:])
sys.path.insert(0, str(source / "docs" / "site"))
try:
    import pages
except ModuleNotFoundError as error:
    print(f"waived: Python has no module {error.name}")
    sys.exit(77)

is_long = os.environ.get("WEIR_TEST_LONG") == "1"


def build(out: Path) -> None:
    command = [sys.executable, source / "docs/site/build.py", out, "--program", program, "--python", package]
    result = subprocess.run([*command, *([] if is_long else ["--quick"])], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def damaged(folder: Path, name: str, old: str, new: str) -> list[str]:
    """Returns what the check says about a small site when a text in one of its files is replaced."""
    files = {
        "index.html": '<main id="main"><a href="a/b.html#c">b</a><a href="https://example.org">far</a></main>',
        "a/b.html": '<link href="../site.css"><p id="c"><a href="../index.html">up</a></p>',
        "site.css": "* { color: red; }",
        "search-index.js": 'x = [["index.html","",""],["a/b.html#c","",""]];',
    }
    assert old in files[name], (name, old)
    files[name] = files[name].replace(old, new, 1)
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return pages.check(folder)


def test_navigation(out: Path) -> None:
    """Every page of docs/ is in the list of all pages, and in the navigation of any page."""
    for name in ("all-pages.html", "allocator.html"):
        links = pages.Links((out / name).read_text()).links
        for file in pages.pages_of_docs():
            assert pages.Site.path_of(file) in links, (name, file)


def test_headers(out: Path) -> None:
    """Every public header has a page in the reference, and a page of docs/ that names it links to that."""
    links = pages.Links((out / "all-pages.html").read_text()).links
    for file in (*(source / "include").rglob("*.h*"), *(source / "compute" / "include").rglob("*.h*")):
        assert pages.Site.header_page(file.relative_to(source).as_posix()) in links, file.name
    links = pages.Links((out / "cpp.html").read_text()).links
    assert {"cpp-weir.html", "cpp-offline.html", "cpp-error.html", "cpp-error.html#weir::result",
            "cpp-weir.html#weir::buffer"} <= set(links), links
    text = (out / "cpp-weir.html").read_text()
    for name in ("weir::buffer", "weir::basic_buffer", "weir::pinned_memory_resource", "weir::copy_async"):
        assert f'<h3 id="{name}">' in text or f'<span id="{name}">' in text, name
    assert "weir_host_free" not in text and "pinned_source {" not in text, "a body or namespace detail is in the reference"


def test_check_finds_damage(folder: Path) -> None:
    assert damaged(folder, "index.html", "far", "far") == []
    for old, new, expected in (
        ("</main>", '<a href="nowhere.html">x</a></main>', "the link nowhere.html leads nowhere"),
        ("</main>", '<a href="a/b.html#d">x</a></main>', "a/b.html has no anchor d"),
        ("</main>", '<a href="/a/b.html">x</a></main>', "the link /a/b.html leads nowhere"),
        ("</main>", '<img src="https://example.org/x.png"></main>', "loads https://example.org/x.png"),
        ("</main>", '<p id="main"></p></main>', "the anchor main is used twice"),
    ):
        assert damaged(folder, "index.html", old, new) == [f"index.html: {expected}"], expected
    assert damaged(folder, "index.html", "a/b.html#c", "#main") == ["a/b.html: no link leads to this page"]
    assert damaged(folder, "site.css", "* {", "@import 'x'; * {") == ["site.css: loads @import"]
    assert damaged(folder, "search-index.js", "b.html#c", "b.html#d") == ["search-index.js: there is no a/b.html#d"]
    assert damaged(folder, "search-index.js", "index.html", "a/b.html") == ["search-index.js: index.html is missing"]


def test_search_in_a_browser(out: Path) -> None:
    browser = shutil.which("chromium")
    if not is_long or not browser:
        return
    for query, target in (("weir_malloc", "c-memory.html#weir_malloc"), ("moving%20pages", "fragmentation.html")):
        with tempfile.TemporaryDirectory() as home:
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}", "--dump-dom",
                       "--virtual-time-budget=5000", f"file://{out}/index.html?q={query}"]
            page = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        results = re.search(r'<div class="results".*?</ol>', page, re.DOTALL)
        assert results and f"/{target}" in results[0], f"{query}: the results lack {target}"


with tempfile.TemporaryDirectory() as folder:
    site = Path(folder) / "docs"
    build(site)
    test_navigation(site)
    test_headers(site)
    test_check_finds_damage(Path(folder) / "small")
    test_search_in_a_browser(site)

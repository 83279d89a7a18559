"""Builds the documentation as a static site: build.py OUT --program WEIR --python FOLDER

The site needs no network and no server. `make docs` runs this; docs/c/building.md says what it is made of.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import sys
from pathlib import Path

import c_headers
import c_reference
import commands
import cpp_headers
import cpp_reference
import pages
import python_package
import python_reference
from pages import ROOT, Page, Site


def read_groups(site: Site) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the groups of docs/README.md, the pages in the table below each heading, and those of compute's index."""
    groups = []
    text = (ROOT / "docs" / "README.md").read_text()
    parts = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    for title, part in (*parts, ("Compute", (ROOT / "compute" / "docs" / "README.md").read_text())):
        files = re.findall(r"^\| \[[^\]]*\]\(([^)#]+\.md)\)", part, re.MULTILINE)
        links = []
        for file in files:
            path = site.path_of(file.removeprefix("../"))
            if path in site.pages:
                links.append((path, site.pages[path].title))
        if links:
            groups.append((title, links))
    return groups


def list_of_pages(site: Site) -> Page:
    """Returns the page that lists all pages: the way to find things without JavaScript."""
    body = ["<h1>All pages</h1>\n"]
    for title, links in site.groups:
        body.append(f"<h2>{html.escape(title)}</h2>\n<ul>\n")
        body.extend(f'<li><a href="{path}">{html.escape(text)}</a></li>\n' for path, text in links)
        body.append("</ul>\n")
    page = Page("all-pages.html", "All pages", "".join(body))
    page.entries.append(("", page.title, "the list of all pages"))
    return page


def index_of_names(site: Site) -> Page:
    """Returns the page that lists every name of the reference."""
    body = ["<h1>All names</h1>\n<p>Every call, type, constant, option and variable of the reference.</p>\n"]
    kinds = (("C", lambda name: name.startswith("weir_")), ("Constants and macros of C", lambda name: name.startswith("WEIR_")),
             ("C++", lambda name: name.startswith("weir::")), ("Python", lambda name: name.startswith("weir.")))
    for title, is_kind in kinds:
        names = sorted(name for name in site.symbols if is_kind(name) and "#" in site.symbols[name])
        body.append(f"<h2>{title}</h2>\n<ul>\n")
        body.extend(f'<li><a href="{site.symbols[name]}"><code>{html.escape(name)}</code></a></li>\n' for name in names)
        body.append("</ul>\n")
    page = Page("all-names.html", "All names", "".join(body))
    page.entries.append(("", page.title, "the index of all names"))
    return page


def build(out: Path, program: str, is_quick: bool) -> Site:
    site = Site(out, is_quick)
    for file in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *pages.pages_of_docs()]:
        site.add_markdown(file)
    for file in ("SECURITY.md",):
        if (ROOT / file).exists():
            site.add_markdown(file)
    written = list(site.pages.values())

    headers = c_headers.read_all(ROOT)
    cpp = cpp_headers.read_all(ROOT)
    modules = python_package.read_package()
    c_reference.add_symbols(site, headers)
    cpp_reference.add_symbols(site, cpp)
    python_reference.add_symbols(site, modules)
    found = commands.add_pages(site, program)
    c_reference.add_pages(site, headers)
    cpp_reference.add_pages(site, cpp)
    python_reference.add_pages(site, modules)
    for page in written:
        site.resolve(page)
    site.finish_folders()

    project = [(site.path_of(file), title) for file, title in (
        ("README.md", "Weir"), ("docs/README.md", "Contents"), ("CONTRIBUTING.md", "Contributing"), ("CHANGELOG.md", "Changes"),
        ("SECURITY.md", "Security")) if site.path_of(file) in site.pages]
    site.groups = [("The project", project), *read_groups(site)]
    site.groups.append(("Reference: C", [(c_reference.page_path(header), header.path) for header in headers]))
    site.groups.append(("Reference: C++", [(cpp_reference.page_path(header), header.path) for header in cpp]))
    site.groups.append(("Reference: Python", [(python_reference.page_path(module.name), module.name) for module in modules]))
    site.groups.append(("Reference: commands", [
        *((command.path, command.name) for command in found),
        ("environment-reference.html", "Environment variables"), ("settings-reference.html", "Settings")]))
    site.groups.append(("Indexes", [("all-pages.html", "All pages"), ("all-names.html", "All names")]))
    site.add(index_of_names(site))
    site.add(list_of_pages(site))
    return site


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--program", required=True, help="the program weir")
    parser.add_argument("--python", required=True, help="the folder with the built Python package")
    parser.add_argument("--quick", action="store_true", help="do not highlight source files, for tests")
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.python)
    site = build(arguments.out, arguments.program, arguments.quick)
    # Pages that no longer exist do not stay. Only a folder that this program wrote is removed.
    if arguments.out.exists():
        if any(arguments.out.iterdir()) and not (arguments.out / "search-index.js").exists():
            sys.exit(f"{arguments.out} exists and is not a site that was built here: remove it, or choose another folder")
        shutil.rmtree(arguments.out)
    arguments.out.mkdir(parents=True)
    site.write()
    problems = [*site.problems, *pages.check(arguments.out)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    size = sum(path.stat().st_size for path in arguments.out.rglob("*") if path.is_file())
    print(f"{len(site.pages)} pages, {size / 1e6:.1f} MB: {arguments.out}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())

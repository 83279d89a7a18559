"""The reference of the C++ headers: a page for each, with its classes and functions."""

from __future__ import annotations

import html
import re

from c_headers import Declaration, Group, Header, file_of
from cpp_headers import Class, every
from pages import Heading, Page, Site, anchored, code_html, text_of

KINDS = {"function": "function", "class": "class", "struct": "struct", "enum": "enum", "type": "type"}


def page_path(header: Header) -> str:
    return f"cpp-{header.path[5:-4].replace('/', '-')}.html"


def anchor_of(name: str) -> str:
    """Returns the anchor of a name; an operator has characters that an anchor cannot have."""
    return re.sub(r"[^\w:~]", lambda match: f"-{ord(match[0]):x}", name)


def add_symbols(site: Site, headers: list[Header]) -> None:
    for header in headers:
        for _, declaration in every(header):
            for name in declaration.names:
                site.symbols.setdefault(name, f"{page_path(header)}#{anchor_of(name)}")


def code(site: Site, declarations: list[Declaration], path: str) -> str:
    """Returns declarations as one block of code, in which the names of the C reference are links."""
    def link(match: re.Match) -> str:
        target = site.symbols.get(match[0])
        return f'<a href="{site.relative(target, path)}">{match[0]}</a>' if target else match[0]

    lines = [f"{one.source} // {one.comment}" if one.comment else one.source for one in declarations]
    marked = re.sub(r"\b(?:weir_\w+|WEIR_\w+)\b(?![^<]*>)", link, code_html("\n".join(lines), "cpp"))
    return f'<pre tabindex="0"><code>{marked}</code></pre>\n'


def anchors_of(page: Page, declarations: list[Declaration], text: str, used: set[str]) -> list[str]:
    """Enters declarations into the search index, and returns their anchors. Overloads share the first one."""
    fresh = []
    for declaration in declarations:
        for name in declaration.names:
            anchor = anchor_of(name)
            if anchor not in used:
                used.add(anchor)
                fresh.append(anchor)
                page.entries.append((anchor, name, f"{KINDS[declaration.kind]}. {declaration.comment or text}"))
    return fresh


def marks(anchors: list[str]) -> str:
    return "".join(f'<span id="{anchor}"></span>' for anchor in anchors)


def group_html(site: Site, group: Group, page: Page, used: set[str]) -> str:
    text = site.comment_html(group.text, page.path, "cpp") if group.text else ""
    if group.heading:
        anchor = "section-" + re.sub(r"\W+", "-", group.heading.lower()).strip("-")
        page.headings.append(Heading(2, anchor, html.escape(group.heading)))
        page.entries.append((anchor, group.heading, group.text))
        return f'<h2 id="{anchor}">{html.escape(group.heading)}</h2>\n{text}'
    first, *others = anchors_of(page, group.declarations, group.text, used) or [""]
    title = ", ".join(f"<code>{html.escape(name)}</code>" for name in dict.fromkeys(group.names))
    anchor = f' id="{first}"' if first else ""
    if first:
        page.headings.append(Heading(3, first, title))
    parts = [f"{marks(others)}<h3{anchor}>{title}</h3>\n{code(site, group.declarations, page.path)}{text}"]
    for declaration in group.declarations:
        for members in declaration.members if isinstance(declaration, Class) else []:
            parts.append(f"<div>{marks(anchors_of(page, members.declarations, members.text, used))}</div>\n")
            parts.append(code(site, members.declarations, page.path))
            if members.text:
                parts.append(site.comment_html(members.text, page.path, "cpp"))
    return "".join(parts)


def add_pages(site: Site, headers: list[Header]) -> None:
    for header in headers:
        path = page_path(header)
        page = Page(path, header.path, "", file_of(header.path))
        source = site.relative(site.add_source(file_of(header.path)), path)
        body = [f"<h1>{header.path}</h1>\n", site.comment_html(header.text, path, "cpp"),
                f'<p class="where">Declared in <a href="{source}">{file_of(header.path)}</a>.</p>\n']
        page.entries.append(("", header.path, text_of(body[1])))
        used: set[str] = set()
        body.extend(group_html(site, group, page, used) for group in header.groups)
        page.body = anchored("".join(body))
        site.add(page)

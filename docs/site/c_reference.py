"""The reference of the C calls: a page for each public header."""

from __future__ import annotations

import html
import re

from c_headers import Declaration, Group, Header, file_of
from pages import Heading, Page, Site, anchored, code_html, text_of

KINDS = {"function": "function", "struct": "struct", "enum": "enum", "type": "type", "macro": "macro", "map": "macro",
         "entry": "entry of the driver table"}


def page_path(header: Header) -> str:
    return f"c-{header.path[5:-2].replace('/', '-')}.html"


def anchor_of(header: Header, name: str) -> str:
    # Entries of the driver table have names such as Init, which a heading may have, too.
    return f"entry-{name}" if header.path == "weir/driver_entries.h" else name


def add_symbols(site: Site, headers: list[Header]) -> None:
    """Enters all names first, so that pages can link to later ones."""
    for header in headers:
        path = page_path(header)
        for group in header.groups:
            for declaration in group.declarations:
                for name in declaration.names:
                    known = site.symbols.get(name)
                    # The definition, not a declaration without fields.
                    if known is None or declaration.kind == "struct":
                        anchor = anchor_of(header, name)
                        site.symbols[name] = f"{path}#{anchor}"
                for value in declaration.values:
                    site.symbols[value.name] = f"{path}#{value.name}"


def linked_code(site: Site, source: str, page: str, own: list[str]) -> str:
    """Returns highlighted C in which the names of other declarations are links."""
    def link(match: re.Match) -> str:
        target = None if match[1] in own else site.symbols.get(match[1])
        return f'<a href="{site.relative(target, page)}">{match[1]}</a>' if target else match[1]

    marked = code_html(source, "c")
    return re.sub(r"\b(weir_\w+|WEIR_\w+)\b(?![^<]*>)", link, marked)


def table(columns: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>\n'


def declaration_html(site: Site, header: Header, declaration: Declaration, path: str) -> str:
    parts = []
    if declaration.kind == "map":
        columns = declaration.columns or [""] * (len(declaration.rows[0]) - 1)
        rows = [[html.escape(cell) if column == "text" else f"<code>{html.escape(cell)}</code>"
                 for column, cell in zip(columns, row)] for row in declaration.rows]
        summary = f"Expands <code>X({', '.join(columns)})</code> {len(rows)} times"
        parts.append(f"<details><summary>{summary}</summary>\n{table(columns, rows)}</details>\n")
    elif declaration.values:
        rows = [[f'<code id="{value.name}">{value.name}</code>', html.escape(value.number),
                 site.comment_html(value.text, path).removeprefix("<p>").removesuffix("</p>\n") if value.text else ""]
                for value in declaration.values]
        parts.append(table(["name", "value", "meaning"], rows))
    else:
        parts.append(f'<pre tabindex="0"><code>{linked_code(site, declaration.source, path, declaration.names)}</code></pre>\n')
    if declaration.kind == "entry":
        symbol, since, need = declaration.rows[0]
        version = f"{int(since) // 1000}.{int(since) % 1000 // 10}"
        kind = "required" if need == "REQUIRED" else "optional: NULL if the device does not support it"
        parts.append(f'<p class="where">CUDA\'s <code>{symbol}</code>, since {version}; {kind}</p>\n')
    if declaration.comment:
        parts.append(site.comment_html(declaration.comment, path))
    return "".join(parts)


def group_html(site: Site, header: Header, group: Group, page: Page, used: set[str]) -> str:
    path = page.path
    if group.heading:
        anchor = "section-" + re.sub(r"\W+", "-", group.heading.lower()).strip("-")
        page.headings.append(Heading(2, anchor, html.escape(group.heading)))
        page.entries.append((anchor, group.heading, group.text))
        return f'<h2 id="{anchor}">{html.escape(group.heading)}</h2>\n{site.comment_html(group.text, path)}'
    parts = []
    names = group.names
    if names:
        fresh = [name for name in dict.fromkeys(names) if anchor_of(header, name) not in used]
        used.update(anchor_of(header, name) for name in fresh)
        first, *others = fresh or names
        marks = "".join(f'<span id="{anchor_of(header, name)}"></span>' for name in others if name in fresh)
        title = ", ".join(f"<code>{name}</code>" for name in dict.fromkeys(names))
        anchor = f' id="{anchor_of(header, first)}"' if fresh else ""
        parts.append(f"{marks}<h3{anchor}>{title}</h3>\n")
        if fresh:
            page.headings.append(Heading(3, anchor_of(header, first), title))
    # Prototypes with one comment are shown together.
    pending: list[str] = []

    def flush() -> None:
        if pending:
            parts.append(f'<pre tabindex="0"><code>{linked_code(site, chr(10).join(pending), path, group.names)}</code></pre>\n')
            pending.clear()

    for declaration in group.declarations:
        if declaration.kind in ("function", "type", "macro") and not declaration.comment:
            pending.append(declaration.source)
            continue
        flush()
        parts.append(declaration_html(site, header, declaration, path))
    flush()
    if group.text:
        parts.append(site.comment_html(group.text, path))
    for declaration in group.declarations:
        kind = KINDS[declaration.kind]
        text = group.text or declaration.comment
        for name in declaration.names:
            page.entries.append((anchor_of(header, name) if anchor_of(header, name) in used else "", name, f"{kind}. {text}"))
        for value in declaration.values:
            page.entries.append((value.name, value.name, value.text or f"{value.number}"))
    return "".join(parts)


def add_pages(site: Site, headers: list[Header]) -> None:
    for header in headers:
        path = page_path(header)
        page = Page(path, header.path, "", file_of(header.path))
        source = site.relative(site.add_source(file_of(header.path)), path)
        body = [f"<h1>{header.path}</h1>\n", site.comment_html(header.text, path),
                f'<p class="where">Declared in <a href="{source}">{file_of(header.path)}</a>.</p>\n']
        page.entries.append(("", header.path, text_of(body[1])))
        used: set[str] = set()
        body.extend(group_html(site, header, group, page, used) for group in header.groups)
        page.body = anchored("".join(body))
        site.add(page)

"""The reference of the Python package: a page for each public module."""

from __future__ import annotations

import html
import re

from pages import Heading, Page, Site, anchored, code_html
from python_package import Item, Module


def split_parameters(text: str) -> list[str]:
    parts, depth, quoted = [""], 0, ""
    for c in text:
        if quoted or c in "\"'":
            quoted = "" if c == quoted else quoted or c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if c == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def fold(text: str) -> str:
    """Puts the parameters of a long signature on lines of their own."""
    if len(text) <= 90 or "(" not in text:
        return text
    start, depth = text.index("("), 0
    for end in range(start, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if depth == 0:
            break
    lines = "".join(f"    {part},\n" for part in split_parameters(text[start + 1 : end]))
    return f"{text[:start]}(\n{lines}{text[end:]}"


def markdown_of(text: str) -> str:
    """Returns a docstring in which the sections Args, Returns and Raises are lists."""
    lines, section = [], False
    for line in text.split("\n"):
        if re.fullmatch(r"(Args|Arguments|Returns|Raises|Yields|Attributes|Keys|Example|Examples):", line):
            section = not line.startswith("Example")
            lines.extend(["", line, ""])
        elif section and re.match(r"    \S", line):
            lines.append(f"- {line.strip()}")
        elif section and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            section = section and not line.strip()
            lines.append(line)
    return "\n".join(lines)


def page_path(module: str) -> str:
    return f"python-{module}.html"


def add_symbols(site: Site, modules: list[Module]) -> None:
    for module in modules:
        path = page_path(module.name)
        site.symbols.setdefault(module.name, path)
        for item in module.items:
            if item.elsewhere:
                continue
            full = f"{module.name}.{item.name}"
            site.symbols[full] = f"{path}#{full}"
            for member in item.members:
                site.symbols[f"{full}.{member.name}"] = f"{path}#{full}.{member.name}"
    for module in modules:
        for item in module.items:
            if item.elsewhere:
                target = site.symbols.get(item.elsewhere)
                if target:
                    site.symbols.setdefault(f"{module.name}.{item.name}", target)


def signature_html(name: str, item: Item) -> str:
    lines = item.signature.split("\n") if item.signature else [""]
    word = "class " if item.kind == "class" else ""
    code = "\n".join(fold(f"{word}{name}{line}") for line in lines)
    return f'<pre tabindex="0"><code>{code_html(code, "python")}</code></pre>\n'


def add_pages(site: Site, modules: list[Module]) -> None:
    for module in modules:
        path = page_path(module.name)
        page = Page(path, module.name, "")
        body = [f"<h1>{module.name}</h1>\n", site.comment_html(markdown_of(module.text), path, "python")]
        page.entries.append(("", module.name, module.text))
        others = [item for item in module.items if item.elsewhere]
        for item in module.items:
            if item.elsewhere:
                continue
            full = f"{module.name}.{item.name}"
            title = f"<code>{html.escape(item.name)}</code>"
            page.headings.append(Heading(2, full, title))
            body.append(f'<h2 id="{full}">{title}</h2>\n{signature_html(full, item)}')
            body.append(site.comment_html(markdown_of(item.text), path, "python"))
            page.entries.append((full, full, item.text))
            for member in item.members:
                anchor = f"{full}.{member.name}"
                body.append(f'<h3 id="{anchor}"><code>{html.escape(f"{item.name}.{member.name}")}</code></h3>\n')
                body.append(signature_html(member.name, member))
                body.append(site.comment_html(markdown_of(member.text), path, "python"))
                page.entries.append((anchor, anchor, member.text))
        if others:
            page.headings.append(Heading(2, "names-of-other-modules", "Names of other modules"))
            body.append('<h2 id="names-of-other-modules">Names of other modules</h2>\n<ul>\n')
            for item in others:
                target = site.symbols.get(item.elsewhere)
                link = f'<a href="{site.relative(target, path)}"><code>{item.name}</code></a>' if target else f"<code>{item.name}</code>"
                body.append(f"<li>{link}: described in <code>{item.elsewhere.rpartition('.')[0] or item.elsewhere}</code></li>\n")
            body.append("</ul>\n")
        page.body = anchored("".join(body))
        site.add(page)

"""Reads the public headers: declarations, and the comments that are their contracts.

The headers are formatted by clang-format, so a declaration starts in the first column of text at depth 0 and ends with
a semicolon. A comment directly above a declaration belongs to it, and to the declarations that follow without an empty
line. tests/docs/reference.sh compares the names that are found here with the symbols of the built libraries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Value:
    """An enumerator: its name, its number if that is known, and its comment."""

    name: str
    number: str
    text: str


@dataclass
class Declaration:
    """A function, struct, enum, typedef or macro."""

    kind: str
    names: list[str]
    source: str
    line: int
    comment: str = ""  # a comment at its end
    values: list[Value] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)  # of an X-macro
    rows: list[list[str]] = field(default_factory=list)


@dataclass
class Group:
    """Declarations that share a comment; a heading or a paragraph has none."""

    text: str
    line: int
    declarations: list[Declaration] = field(default_factory=list)
    heading: str = ""

    @property
    def names(self) -> list[str]:
        return [name for declaration in self.declarations for name in declaration.names]

    def description_of(self, declaration: Declaration) -> str:
        """Returns what the header says about a declaration of this group; "" if it says nothing."""
        inside = declaration.kind in ("struct", "enum") and "/*" in declaration.source
        return self.text or declaration.comment or ("its fields have comments" if inside else "")


@dataclass
class Header:
    path: str
    text: str
    groups: list[Group]


def plain(comment: str) -> str:
    """Returns the text of a comment without its frame."""
    body = comment.strip()[2:-2]
    first, *others = body.split("\n")
    lines = [first.strip(), *(re.sub(r"^\s*\* ?", "", line) for line in others)]
    return "\n".join(line.rstrip() for line in lines).strip("\n").strip()


def pieces(text: str):
    """Yields (kind, text, first line, last line) of comments, directives and declarations at depth 0."""
    at, line = 0, 1
    while at < len(text):
        if text[at] in " \t\n":
            line += text[at] == "\n"
            at += 1
            continue
        if text.startswith("/*", at):
            end, kind = text.index("*/", at) + 2, "comment"
        elif text[at] == "#":
            end, kind = at, "directive"
            while True:
                end = text.find("\n", end)
                end = len(text) if end < 0 else end
                if text[end - 1] != "\\":
                    break
                end += 1
        else:
            end, kind = end_of_declaration(text, at), "declaration"
        part = text[at:end]
        last = line + part.count("\n")
        yield kind, part, line, last
        at, line = end, last


def end_of_declaration(text: str, at: int) -> int:
    depth, body = 0, False
    entry = text.startswith("WEIR_DRIVER_ENTRY", at)
    while at < len(text):
        if text.startswith("/*", at):
            at = text.index("*/", at) + 2
            continue
        c = text[at]
        if c == '"':
            at = re.compile(r'"(\\.|[^"\\])*"').match(text, at).end()
            continue
        if c in "({[":
            body = body or (c == "{" and depth == 0 and bool(re.search(r"\)\s*$", text[:at])))
            depth += 1
        elif c in ")}]":
            depth -= 1
            if depth == 0 and ((body and c == "}") or entry):
                return at + 1
        elif c == ";" and depth == 0:
            return at + 1
        at += 1
    raise ValueError(f"a declaration does not end: {text[:80]}")


def strip_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


def split_arguments(text: str) -> list[str]:
    """Splits at commas outside of strings and parentheses."""
    parts, depth, current, quoted = [], 0, "", False
    for i, c in enumerate(text):
        if c == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        if not quoted and c in "({":
            depth += 1
        elif not quoted and c in ")}":
            depth -= 1
        if c == "," and depth == 0 and not quoted:
            parts.append(current.strip())
            current = ""
        else:
            current += c
    return [*parts, current.strip()]


def map_rows(define: str) -> list[list[str]]:
    """Returns the arguments of each X(...) of a list macro, and the comment behind it."""
    body = re.sub(r"\\\n", "\n", define)
    rows = []
    for match in re.finditer(r"^\s*X\((.*)\)[ \t]*(?:/\*(.*?)\*/)?[ \t]*$", body, re.MULTILINE):
        parts = [part[1:-1].replace('\\"', '"') if part.startswith('"') else part for part in split_arguments(match[1])]
        rows.append([*parts, (match[2] or "").strip()])
    return rows


def evaluate(text: str, known: dict[str, int]) -> int | None:
    """Returns the value of a constant expression of numbers and names."""
    text = re.sub(r"(?<=[0-9a-fA-F])(?:[uU]?[lL]{0,2})\b", "", text)
    words = {word: known[word] for word in re.findall(r"[A-Za-z_]\w*", text) if word in known}
    if not re.fullmatch(r"[\w\s()<>|+*~-]+", text):
        return None
    try:
        return int(eval(text, {"__builtins__": {}}, words))  # a header of this project
    except (NameError, SyntaxError, TypeError):
        return None


def enum_values(source: str, maps: dict[str, list[list[str]]], entries: list[str]) -> list[Value]:
    body = source[source.index("{") + 1 : source.rindex("}")]
    values: list[Value] = []
    known: dict[str, int] = {}
    following: int | None = 0

    def add(name: str, expression: str, text: str) -> None:
        nonlocal following
        number = evaluate(expression, known) if expression else following
        if number is not None:
            known[name] = number
        following = None if number is None else number + 1
        values.append(Value(name, expression if number is None else str(number), text))

    template = re.search(r"#define X\(([^)]*)\) (\w+)##name(?: = (\w+))?,", body)
    used = re.search(r"^\s*(\w+_MAP)\(X\)", body, re.MULTILINE)
    if template and used:
        columns = [column.strip() for column in template[1].split(",")]
        for row in maps[used[1]]:
            cells = dict(zip(columns, row))
            text = cells.get("text", "")
            add(template[2] + cells["name"], cells[template[3]] if template[3] else "", row[-1] or text)
    elif "driver_entries.h" in body:
        for name in entries:
            add(f"WEIR_CALL_{name}", "", f"`{name}`")
    body = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", "", body, flags=re.MULTILINE)
    body = re.sub(r"^\s*\w+_MAP\(X\)\s*$", "", body, flags=re.MULTILINE)
    # (name and value, comment above, comment behind) of each enumerator.
    found: list[list[str]] = [["", "", ""]]
    for token in re.finditer(r"(?P<gap>\s*)(?:/\*(?P<comment>.*?)\*/|(?P<comma>,)|(?P<code>[^,/\s][^,/\n]*))", body, re.DOTALL):
        if token["comma"]:
            found.append(["", "", ""])
        elif token["code"]:
            found[-1][0] += token["code"]
        else:
            text = plain(f"/*{token['comment']}*/")
            same_line = "\n" not in token["gap"]
            if found[-1][0]:
                found[-1][2] = text
            elif same_line and len(found) > 1:
                found[-2][2] = text
            else:
                found[-1][1] = text
    for code, above, behind in found:
        if code.strip():
            name, _, expression = code.partition("=")
            add(name.strip(), expression.strip(), behind or above)
    return values


def declaration_of(part: str, line: int, maps: dict, entries: list[str]) -> Declaration | None:
    code = strip_comments(part)
    if part.startswith("WEIR_DRIVER_ENTRY"):
        arguments = split_arguments(re.sub(r"\s+", " ", code[code.index("(") + 1 : code.rindex(")")]))
        params = arguments[4] if len(arguments) > 4 else "()"
        inside = params.strip()[1:-1].strip()
        source = f"weir_cu_result (*{arguments[0]})(weir_driver *self{', ' if inside else ''}{inside});"
        return Declaration("entry", [arguments[0]], source.replace("* ", "*").replace("(* ", "(*"), line,
                           rows=[[arguments[1], arguments[2], arguments[3]]])
    if re.match(r"(typedef\s+)?enum\b", code):
        name = re.search(r"}\s*(\w+)\s*;", code)
        values = enum_values(part, maps, entries)
        return Declaration("enum", [name[1]] if name else [], part, line, values=values)
    if re.match(r"(typedef\s+)?(struct|union)\b[^;(]*{", code):
        name = re.search(r"}\s*(\w+)\s*;\s*$", code) or re.match(r"struct\s+(\w+)", code)
        return Declaration("struct", [name[1]], part, line)
    if code.startswith("typedef"):
        name = re.search(r"\(\s*\*\s*(\w+)\s*\)", code) or re.search(r"(\w+)\s*(?:\[[^\]]*\])?;\s*$", code)
        return Declaration("type", [name[1]], part, line)
    name = re.search(r"(\w+)\s*\(", code)
    if name:
        if "{" in code:
            part = part[: part.index("{")].rstrip() + ";"
        return Declaration("function", [name[1]], part, line)
    if code.startswith("extern"):
        return None
    raise ValueError(f"line {line}: not understood: {part[:80]}")


def read(path: Path, name: str, entries: list[str]) -> Header:
    """Reads a header."""
    text = path.read_text()
    # What C++ needs is not a part of the reference.
    bare = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    maps = {m[1]: map_rows(m[0]) for m in re.finditer(r"#define (\w+_MAP)\(X\)(?:.*\\\n)+.*", bare)}
    groups: list[Group] = []
    intro = ""
    current: Group | None = None
    last_line = -1
    for kind, part, first, last in pieces(bare):
        if kind == "comment":
            comment = plain(part)
            heading = re.fullmatch(r"-{4} (.*?) -{4}(.*)", comment, re.DOTALL)
            if not intro and not groups:
                intro, current = comment, None
            elif heading:
                groups.append(Group(heading[2].strip(), first, heading=heading[1]))
                current = None
            elif first == last_line and current and current.declarations:
                current.declarations[-1].comment = comment
            else:
                current = Group(comment, first)
                groups.append(current)
            last_line = last
            continue
        if kind == "directive":
            define = re.match(r"#define (WEIR_(?!_)\w+)(\(.*?\))?", part)
            if not define or define[1].endswith("_H") or define[1].startswith("WEIR_DRIVER_ENTRY"):
                continue
            found = Declaration("macro", [define[1]], part, first)
            if define[1] in maps:
                found.kind, found.rows = "map", maps[define[1]]
                template = re.search(rf"#define X\(([^)]*)\).*\n\s*{define[1]}\(X\)", bare)
                found.columns = [column.strip() for column in template[1].split(",")] if template else []
        else:
            found = declaration_of(part, first, maps, entries)
            if found is None:
                continue
        if current is None or first > last_line + 1:
            current = Group("", first)
            groups.append(current)
        current.declarations.append(found)
        last_line = last
    groups = [group for group in groups if group.text or group.heading or group.declarations]
    return Header(name, intro, groups)


def driver_entries(folder: Path) -> list[str]:
    text = (folder / "driver_entries.h").read_text()
    return re.findall(r"^WEIR_DRIVER_ENTRY0?\((\w+),", text, re.MULTILINE)


def public_headers(root: Path, pattern: str) -> list[tuple[Path, str]]:
    """Returns the files of the public headers, and the names by which programs include them."""
    folders = (root / "include", root / "compute" / "include")
    return [(path, path.relative_to(folder).as_posix()) for folder in folders for path in sorted(folder.rglob(pattern))]


def file_of(name: str) -> str:
    """Returns where the header with this name is in the repository."""
    return f"{'compute/' if name.startswith('weir/compute/') else ''}include/{name}"


def read_all(root: Path) -> list[Header]:
    """Reads the public headers of C; the umbrella headers have conventions, and no declarations of their own."""
    entries = driver_entries(root / "include" / "weir")
    return [read(path, name, entries) for path, name in public_headers(root, "*.h")]

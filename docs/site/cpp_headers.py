"""Reads the C++ headers: classes, their public members, functions, and the comments that are their contracts.

Like c_headers.py, it relies on clang-format, not on a parser of C++: the brace of a function's body has a space before
it, that of an initializer has none, and namespaces say at their end which they are. A comment directly above a
declaration belongs to it, and to the declarations that follow without an empty line. Namespaces called detail, private
parts, and the bodies of functions are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import c_headers
from c_headers import Declaration, Group, Header

SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', re.DOTALL)
TEMPLATE = re.compile(r"template\s*<")
CLASS = re.compile(r"(class|struct)\s+(?:\[\[.*?\]\]\s*)?([\w:]+(?:<[^{:]*?>)?)")
FUNCTION = re.compile(r"(operator\s*(?:\(\)|\[\]|[^\s\w(]+|[\w:<>, ]+?)|~?\w+(?:::~?\w+)*)\s*\(")


@dataclass
class Class(Declaration):
    """A class; its source is what comes before the brace."""

    members: list[Group] = field(default_factory=list)


def end_of_group(text: str, at: int) -> int:
    """Returns the position after the bracket that closes the one at a position."""
    depth = 0
    while at < len(text):
        skipped = SKIPPED.match(text, at)
        if skipped:
            at = skipped.end()
            continue
        depth += (text[at] in "({[") - (text[at] in ")}]")
        at += 1
        if depth == 0:
            return at
    raise ValueError("a bracket is not closed")


def without_template(code: str) -> str:
    """Removes the parameters of a template, and attributes, from the start of a declaration."""
    code = code.strip()
    while match := TEMPLATE.match(code):
        at, depth = match.end(), 1
        while depth:
            depth += (code[at] == "<") - (code[at] == ">")
            at += 1
        code = code[at:].strip()
    return re.sub(r"\[\[.*?\]\]\s*", "", code, flags=re.DOTALL)


def pieces(text: str, at: int, end: int):
    """Yields (kind, start, brace, end) of what a namespace or a class contains. The kind is comment, label, namespace,
    class or declaration; the brace is where a body starts, or -1."""
    while at < end:
        if text[at].isspace():
            at += 1
            continue
        start = at
        if text[at] == "#":
            while text[at : at + 1] not in ("\n", ""):
                at += 2 if text.startswith("\\\n", at) else 1
            continue
        if text.startswith(("//", "/*"), at):
            at = SKIPPED.match(text, at).end()
            # Lines below each other are one comment, but one behind a declaration is a comment of its own.
            behind = text[text.rfind("\n", 0, start) + 1 : start].strip()
            while not behind and (line := re.compile(r"\n[ \t]*//[^\n]*").match(text, at)):
                at = line.end()
            yield "comment", start, -1, at
            continue
        if label := re.compile(r"(public|protected|private):").match(text, at):
            at = label.end()
            yield "label", start, -1, at
            continue
        if namespace := re.compile(r"namespace\s+\w+\s*{").match(text, at):
            at = end_of_group(text, namespace.end() - 1)
            yield "namespace", start, namespace.end() - 1, at
            continue
        kind, brace = "declaration", -1
        while text[at] != ";":
            skipped = SKIPPED.match(text, at)
            if skipped:
                at = skipped.end()
            elif text[at] == "{" and text[at - 1].isspace():
                brace, at = at, end_of_group(text, at)
                if re.match(r"(class|struct|union|enum)\b", without_template(text[start:brace])):
                    kind = "class"
                else:
                    at -= 1  # the end of a function's body
                    break
            else:
                at = end_of_group(text, at) if text[at] in "({[" else at + 1
        at += 1
        yield kind, start, brace, at


def prototype(source: str) -> str:
    """Removes the initializers of a constructor."""
    at = source.find("(", len(source) - len(without_template(source))) if "(" in source else -1
    while 0 <= at < len(source):
        if source[at] in "({[":
            at = end_of_group(source, at)
        elif re.compile(r"(?<!:):(?!:)").match(source, at):
            return source[:at].rstrip()
        else:
            at += 1
    return source.rstrip().removesuffix(";")


def unindented(source: str, depth: int) -> str:
    return re.sub(rf"\n {{{2 * depth}}}", "\n", source)


def plain(comment: str) -> str:
    if comment.startswith("/*"):
        return c_headers.plain(comment)
    return "\n".join(re.sub(r"^\s*// ?", "", line).rstrip() for line in comment.split("\n"))


class Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.intro = ""

    def line_of(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def declaration(self, kind: str, start: int, brace: int, end: int, scope: str, depth: int) -> Declaration | None:
        """Returns a declaration; None for one that is not a part of the reference. Its names have their scope."""
        text, line = self.text, self.line_of(start)
        code = without_template(text[start : brace if brace >= 0 else end])
        if kind == "class":
            if code.startswith("enum"):
                name = re.match(r"enum\s+(?:class\s+)?(\w+)", code)[1]
                return Declaration("enum", [f"{scope}::{name}"], unindented(text[start:end], depth), line)
            name = f"{scope}::{CLASS.match(code)[2]}"
            if depth:  # within a class: a struct of a few fields
                return Declaration("struct", [name], unindented(text[start:end], depth), line)
            head = re.sub(r"\s*:\s*private\b.*", "", text[start:brace].rstrip(), flags=re.DOTALL)
            is_public = code.startswith("struct")
            return Class("class", [name], head, line, members=self.groups(brace + 1, end - 2, name, 1, is_public))
        if re.match(r"(class|struct|friend\s+class|static_assert)\b", code):
            return None
        if alias := re.match(r"using\s+(?:\w+::)*(\w+)\s*[=;]", code):
            return Declaration("type", [f"{scope}::{alias[1]}"], unindented(text[start:end], depth), line)
        name = FUNCTION.search(code)
        if not name:
            raise ValueError(f"line {line}: not understood: {code[:80]}")
        if "::" in name[1] and not name[1].startswith("operator"):
            return None  # the definition of a member, which its class declares
        source = prototype(text[start : brace if brace >= 0 else end])
        return Declaration("function", [f"{scope}::{name[1]}"], unindented(source, depth) + ";", line)

    def groups(self, at: int, end: int, scope: str, depth: int = 0, is_public: bool = True) -> list[Group]:
        """Reads a namespace (depth 0) or a class. What is not public ends a group and is not in any."""
        text, groups = self.text, []
        current: Group | None = None
        last = at  # the end of what was read last
        for kind, start, brace, stop in pieces(text, at, end):
            gap, last_end, last = text[last:start].count("\n"), last, stop
            if kind == "label":
                is_public, current = text[start:stop] == "public:", None
            elif not is_public:
                continue
            elif kind == "namespace":
                name = re.match(r"namespace\s+(\w+)", text[start:])[1]
                current = None
                if name != "detail":
                    groups.extend(self.groups(brace + 1, stop - 1, f"{scope}::{name}" if scope else name))
            elif kind == "comment":
                comment = plain(text[start:stop])
                heading = re.fullmatch(r"-{4} (.*?) -{4}(.*)", comment, re.DOTALL)
                if not scope and not self.intro:
                    self.intro = comment
                elif heading:
                    groups.append(Group(heading[2].strip(), self.line_of(start), heading=heading[1]))
                    current = None
                elif gap == 0 and current and current.declarations:
                    current.declarations[-1].comment = comment
                elif gap or last_end == at:
                    current = Group(comment, self.line_of(start))
                    groups.append(current)
            else:
                found = self.declaration(kind, start, brace, stop, scope, depth)
                if found is None:
                    continue
                if current is None or gap > 1:
                    current = Group("", found.line)
                    groups.append(current)
                current.declarations.append(found)
        return [group for group in groups if group.heading or group.declarations]


def read(path: Path, name: str) -> Header:
    reader = Reader(path.read_text())
    groups = reader.groups(0, len(reader.text), "")
    return Header(name, reader.intro, groups)


def read_all(root: Path) -> list[Header]:
    return [read(path, name) for path, name in c_headers.public_headers(root, "*.hpp")]


def every(header: Header):
    """Yields the group and the declaration of everything in a header, members of classes included."""
    for group in header.groups:
        for declaration in group.declarations:
            yield group, declaration
            for inner in declaration.members if isinstance(declaration, Class) else []:
                for member in inner.declarations:
                    yield inner, member

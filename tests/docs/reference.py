"""reference.py SOURCE PROGRAM PACKAGE LIBRARY...: the generated reference is complete.

Every symbol that a library exports, every class and function of the C++ headers, every public name of the Python
package, and every command is in the reference and has a description. Every function that a public header declares is
exported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

source, program, package = (Path(argument) for argument in sys.argv[1:4])
libraries = sys.argv[4:]
sys.path[:0] = [str(source / "docs" / "site"), str(package)]
import c_headers  # noqa: E402
import cpp_headers  # noqa: E402
import python_package  # noqa: E402

problems: list[str] = []


def check_c() -> None:
    exported = set()
    for library in libraries:
        output = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
        names = {line.split()[2].split("@")[0] for line in output.splitlines() if line.split()[1] in "TDBR"}
        assert names, f"{library} exports nothing"
        exported |= {name for name in names if not name.startswith("_")}
    described: dict[str, str] = {}
    declared = {}
    for header in c_headers.read_all(source):
        if not header.text:
            problems.append(f"{header.path} does not say what it is about")
        for group in header.groups:
            for declaration in group.declarations:
                for name in declaration.names:
                    described[name] = described.get(name) or group.description_of(declaration)
                    if declaration.kind == "function" and not declaration.source.startswith("static"):
                        declared[name] = header.path
                    if declaration.kind in ("function", "entry", "macro", "struct") and not described[name]:
                        problems.append(f"{header.path}:{declaration.line}: {name} has no description")
    problems.extend(f"{name} is exported and not in the reference" for name in sorted(exported - set(described)))
    problems.extend(f"{declared[name]}: {name} is not exported" for name in sorted(set(declared) - exported))
    assert len(exported) > 400, f"only {len(exported)} symbols were found"


CPP_CLASS = re.compile(r"(?:template <.*?> )?(class|struct|enum class) (?:\[\[\w+\]\] )?(\w+(?:<\w+>)?)[^;]* {$")
CPP_CALL = re.compile(r"(?! )(?:template <.*?> )?[\w:<>*&, ]*?[ *&](\w+)\(.*[{};]$")


def cpp_names(path: Path):
    """Yields (whether it is a class, whether it is a member, name) of the classes and most functions of a header that are
    public. Reads less than cpp_headers does, and line by line, so that it finds what is missing there."""
    namespaces: list[str] = []
    inside, is_public = "", True
    for line in path.read_text().splitlines():
        if opened := re.match(r"namespace (\w+) {", line):
            namespaces.append(opened[1])
        elif line.startswith("} // namespace"):
            namespaces.pop()
        elif not namespaces or "detail" in namespaces:
            continue
        elif begun := CPP_CLASS.match(line):
            yield True, False, f"{'::'.join(namespaces)}::{begun[2]}"
            inside, is_public = f"::{begun[2]}", begun[1] != "class"
        elif line == "};":
            inside, is_public = "", True
        elif label := re.fullmatch(r"(public|protected|private):", line):
            is_public = label[1] == "public"
        # The body of a function has two spaces more than its prototype.
        elif is_public and (call := CPP_CALL.match(line.removeprefix("  ") if inside else line)) and "operator" not in line:
            yield False, bool(inside), f"{'::'.join(namespaces)}{inside}::{call[1]}"


def check_cpp() -> None:
    headers = {header.path: header for header in cpp_headers.read_all(source)}
    assert len(headers) >= 4, sorted(headers)
    classes = functions = 0
    for path, name in c_headers.public_headers(source, "*.hpp"):
        header = headers[name]
        if not header.text:
            problems.append(f"{header.path} does not say what it is about")
        found: dict[str, str] = {}
        for group, declaration in cpp_headers.every(header):
            for name in declaration.names:
                found[name] = found.get(name) or group.description_of(declaration)
            if "detail::" in declaration.names[0] or re.search(r"\bprivate:|\w_;$", declaration.source):
                problems.append(f"{header.path}:{declaration.line}: {declaration.names[0]} is not public")
            if "{" in declaration.source and declaration.kind == "function" and "= {" not in declaration.source:
                problems.append(f"{header.path}:{declaration.line}: {declaration.names[0]} is shown with its body")
        for is_class, is_member, name in cpp_names(path):
            classes += is_class
            functions += not is_class
            if name not in found:
                problems.append(f"{header.path}: {name} is not in the reference")
            elif not found[name] and not is_member:
                problems.append(f"{header.path}: {name} has no description")
    assert classes >= 25 and functions >= 150, f"only {classes} classes and {functions} functions were found"


def check_python() -> None:
    count = 0
    modules = python_package.read_package()
    described = {f"{module.name}.{item.name}" for module in modules for item in module.items if not item.elsewhere}
    described |= {module.name for module in modules}
    for module in modules:
        if not module.text:
            problems.append(f"{module.name} has no docstring")
        for item in module.items:
            count += 1
            if item.elsewhere:
                if item.elsewhere not in described:
                    problems.append(f"{module.name}.{item.name} refers to {item.elsewhere}, which is not in the reference")
            elif not item.text:
                problems.append(f"{module.name}.{item.name} has no description")
            problems.extend(f"{module.name}.{item.name}.{member.name} has no description"
                            for member in item.members if not member.text)
    assert count > 300, f"only {count} names were found"


def check_commands() -> None:
    """The names of commands are those that the completion for bash knows."""
    try:
        import commands
    except ModuleNotFoundError:
        return  # the generator's own packages are not installed
    found = {" ".join(command.words) for command in commands.every(commands.read_command(str(program), [], ""))}
    output = subprocess.run([program, "help"], capture_output=True, text=True, check=True).stdout
    assert {"explain", "replay", "help"} <= found, found
    assert len(found) >= 15 and "Options" in output, found


check_c()
check_cpp()
check_python()
check_commands()
for problem in problems:
    print(problem)
sys.exit(bool(problems))

"""reference.py SOURCE PROGRAM PACKAGE LIBRARY...: the generated reference is complete.

Every symbol that a library exports, every public name of the Python package, and every command is in the reference and
has a description. Every function that a public header declares is exported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

source, program, package = (Path(argument) for argument in sys.argv[1:4])
libraries = sys.argv[4:]
sys.path[:0] = [str(source / "docs" / "site"), str(package)]
import c_headers  # noqa: E402
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
    for header in c_headers.read_all(source / "include"):
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
    assert {"explain", "replay", "bench alloc", "help"} <= found, found
    assert len(found) >= 17 and "Options" in output, found


check_c()
check_python()
check_commands()
for problem in problems:
    print(problem)
sys.exit(bool(problems))

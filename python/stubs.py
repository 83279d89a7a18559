"""Writes the stubs of an extension of the package for type checkers:

    python3 python/stubs.py FOLDER TABLE MODULE...

imports the extensions, such as weir._weir, from the folder of the package, and writes the stubs of the last one beside it.
The names, the parameters and the defaults are those of the extension; the table has their types, after the lines that
begin the stubs:

    TYPE: NAME NAME...

A name is that of a function, CLASS.MEMBER for a member, and NAME= for all parameters of that name. It may end in `*`; the
longest one that matches applies, and what has no type is Any.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import types
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

BASE_TYPE = 1 << 10  # Py_TPFLAGS_BASETYPE
NO_INSTANTIATION = 1 << 7  # Py_TPFLAGS_DISALLOW_INSTANTIATION
# What the language needs of a class, and type checkers know.
KNOWN = {"__new__", "__init__", "__repr__", "__str__", "__doc__", "__module__", "__weakref__", "__dict__", "__getattribute__"}
COMPARISONS = {"__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"}
KNOWN |= {"__delitem__", "__delattr__", "__setattr__", "__setstate__", "__get__", "__release_buffer__"}


class Table:
    def __init__(self, path: Path) -> None:
        self.head, text = path.read_text(encoding="utf-8").split("\n---\n")
        self.types: dict[str, str] = {}
        for line in re.sub(r"\n +", " ", text.strip()).split("\n"):
            kind, names = line.split(": ", 1)
            self.types.update(dict.fromkeys(names.split(), kind))

    def type_of(self, name: str) -> str | None:
        if name in self.types:
            return self.types[name]
        found = [key for key in self.types if key.endswith("*") and name.startswith(key[:-1])]
        return self.types[max(found, key=len)] if found else None


def load(folder: Path, name: str) -> types.ModuleType:
    """Imports an extension without the package, which needs its stubs."""
    *parents, last = name.split(".")
    for depth in range(1, len(parents) + 1):
        package = types.ModuleType(".".join(parents[:depth]))
        package.__path__ = []  # type: ignore[attr-defined]
        sys.modules.setdefault(package.__name__, package)
    place = folder.joinpath(*parents[1:])
    file = next(path for path in (place / (last + suffix) for suffix in EXTENSION_SUFFIXES) if path.exists())
    spec = importlib.util.spec_from_file_location(name, file)
    assert isinstance(spec, ModuleSpec) and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    setattr(sys.modules[".".join(parents)], last, module)
    spec.loader.exec_module(module)
    return module


def parameters_of(value: object, first: str, table: Table) -> str:
    """The parameters as text, after `first`, which is self, cls or nothing."""
    try:
        found = list(inspect.signature(value).parameters.values())  # type: ignore[arg-type]
    except ValueError:
        return f"{first}, *args: Any, **keywords: Any".removeprefix(", ")
    if first and found and found[0].name in ("self", "type", "cls"):
        del found[0]
    found = [one for one in found if one.name != "mod"]  # of __pow__, which only integers have
    texts = [first] if first else []
    for i, one in enumerate(found):
        kind = table.type_of(one.name + "=") or "Any"
        if one.default is None and not re.search(r"\b(Any|None|_Device|_Stream)\b", kind):
            kind += " | None"
        if one.kind is one.KEYWORD_ONLY and not any(other.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL) for other in found[:i]):
            texts.append("*")
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        texts.append(f"{stars}{one.name}: {kind}" + ("" if one.default is one.empty else f" = {one.default!r}"))
        if one.kind is one.POSITIONAL_ONLY and (i + 1 == len(found) or found[i + 1].kind is not one.POSITIONAL_ONLY):
            texts.append("/")
    return ", ".join(texts)


def members(title: str, kind: type, table: Table) -> list[str]:
    lines = []
    if not kind.__flags__ & NO_INSTANTIATION and "__new__" in vars(kind):
        lines.append(f"def __new__({parameters_of(kind, 'cls', table)}) -> Self: ...")
    for name, value in vars(kind).items():
        full = f"{title}.{name}"
        returns = table.type_of(full) or table.type_of(name) or "Any"
        if name in KNOWN or name == "__hash__" and full not in table.types or name in COMPARISONS and not table.type_of(full):
            continue
        if isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            lines += ["@property", f"def {name}(self) -> {returns}: ..."]
        elif isinstance(value, staticmethod):
            lines += ["@staticmethod", f"def {name}({parameters_of(value.__func__, '', table)}) -> {returns}: ..."]
        elif isinstance(value, types.ClassMethodDescriptorType):
            lines += ["@classmethod", f"def {name}({parameters_of(value, 'cls', table)}) -> {returns}: ..."]
        elif callable(value):
            mark = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""
            lines.append(f"def {name}({parameters_of(value, 'self', table)}) -> {returns}: ...{mark}")
    # What instances of an exception have is in no dict.
    lines += [f"{name.split('.')[1]}: {of}" for name, of in table.types.items() if name.startswith(f"{title}.")
              and issubclass(kind, BaseException)]
    return lines or ["..."]


def stubs_of(module: types.ModuleType, table: Table) -> str:
    lines = ["# Generated by stubs.py from the extension. Programs use the package.", table.head, ""]
    for name, value in vars(module).items():
        if name.startswith("__") and name != "__version__":
            continue
        if isinstance(value, type):
            base = f"({value.__base__.__name__})" if value.__base__ not in (object, None) else ""
            final = [] if value.__flags__ & BASE_TYPE else ["@final"]
            lines += [*final, f"class {name}{base}:", *(f"    {line}" for line in members(name, value, table)), ""]
        elif callable(value):
            lines.append(f"def {name}({parameters_of(value, '', table)}) -> {table.type_of(name) or 'Any'}: ...")
        else:
            lines.append(f"{name}: {table.type_of(name) or type(value).__name__}")
    return "\n".join(lines) + "\n"


def main() -> None:
    folder, table, *names = sys.argv[1:]
    modules = [load(Path(folder), name) for name in names]
    file = Path(folder).joinpath(*names[-1].split(".")[1:]).with_suffix(".pyi")
    file.write_text(stubs_of(modules[-1], Table(Path(table))), encoding="utf-8")


if __name__ == "__main__":
    main()

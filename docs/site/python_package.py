"""Reads the Python package: its public modules, with signatures and descriptions from docstrings and stubs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import types
from dataclasses import dataclass, field
from pathlib import Path

EXTENSIONS = ("_weir", "_compute")
ADAPTER = Path(__file__).resolve().parents[2] / "adapters" / "torch" / "weir_torch" / "__init__.py"


@dataclass
class Item:
    name: str
    signature: str
    text: str
    members: list["Item"] = field(default_factory=list)
    kind: str = "function"
    elsewhere: str = ""  # the full name under which it is described


@dataclass
class Module:
    name: str
    text: str
    items: list[Item] = field(default_factory=list)


def read_stubs(file: Path) -> dict[str, list[str]]:
    """Returns the signatures in a stub file, with all overloads: `name` and `Class.name`."""
    found: dict[str, list[str]] = {}

    def visit(body, prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
                result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                text = f": {ast.unparse(node.returns)}" if "property" in decorators and node.returns else (
                    f"({ast.unparse(node.args)}){result}")
                found.setdefault(prefix + node.name, []).append(text)
            elif isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.setdefault(prefix + node.target.id, []).append(f": {ast.unparse(node.annotation)}")
            elif isinstance(node, ast.If):
                visit(node.body, prefix)

    visit(ast.parse(file.read_text()).body, "")
    return found


def shorten(text: str) -> str:
    """Addresses in the text of a default value change from run to run."""
    text = re.sub(r"<(?:function|class|object|module) ?'?([\w.]+)[^>]*>", r"\1", text)
    return re.sub(r" at 0x[0-9a-f]+", "", text)


class Raw(str):
    """An annotation that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def signature_text(value: object) -> str:
    """Returns the signature as it is written in the source."""
    found = inspect.signature(value)

    def raw(annotation: object) -> object:
        return Raw(annotation) if isinstance(annotation, str) else annotation

    parameters = [one.replace(annotation=raw(one.annotation)) for one in found.parameters.values()]
    return shorten(str(found.replace(parameters=parameters, return_annotation=raw(found.return_annotation))))


def signature_of(value: object, name: str, stubs: dict[str, list[str]]) -> list[str]:
    module = getattr(value, "__module__", None) or ""
    if name in stubs and (module.endswith(EXTENSIONS) or isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType))
                          or type(value).__name__ in ("builtin_function_or_method", "method_descriptor", "classmethod_descriptor")):
        return stubs[name]
    try:
        return [signature_text(value)]
    except (TypeError, ValueError):
        return stubs.get(name, [""])


def describe_class(kind: type, name: str, stubs: dict[str, list[str]]) -> Item:
    init = stubs.get(f"{kind.__name__}.__init__") or stubs.get(f"{kind.__name__}.__new__")
    if issubclass(kind, BaseException) and "__init__" not in vars(kind):
        signature = ""
    elif kind.__module__.endswith(EXTENSIONS) and init:
        signature = re.sub(r"^\((?:self|cls)(?:, /)?(?:, )?", "(", init[0]).split(" -> ")[0]
    else:
        try:
            signature = signature_text(kind)
        except (TypeError, ValueError):
            signature = ""
    item = Item(name, signature, own_doc(kind), kind="class")
    for member, value in vars(kind).items():
        if member.startswith("_"):
            continue
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(value, (property, types.GetSetDescriptorType, types.MemberDescriptorType)) or (
                inspect.isdatadescriptor(value)):
            texts = stubs.get(f"{kind.__name__}.{member}", [""])
            hint = texts[0]
            if not hint and isinstance(value, property) and value.fget:
                result = value.fget.__annotations__.get("return", "")
                hint = f": {result}" if result else ""
            text = inspect.getdoc(value) if isinstance(value, types.MemberDescriptorType) else own_doc(value)
            item.members.append(Item(member, hint, text or "", kind="property"))
        elif callable(function):
            for text in signature_of(function, f"{kind.__name__}.{member}", stubs)[:1]:
                item.members.append(Item(member, re.sub(r"^\((?:self|cls)(?:, /)?(?:, )?", "(", text), inspect.getdoc(function) or "",
                                         kind="method"))
    return item


def own_doc(value: object) -> str:
    """Returns the docstring of an object itself, not the one of its type."""
    text = getattr(value, "__doc__", None)
    if not isinstance(value, (type, types.FunctionType, property)) and text == getattr(type(value), "__doc__", None):
        return ""
    if isinstance(value, type) and any(text is base.__doc__ for base in value.__mro__[1:]):
        return ""
    return inspect.cleandoc(text) if text else ""


def comment_above(module: types.ModuleType, name: str) -> str:
    """Returns the comment above the assignment of a constant, which has no docstring."""
    try:
        lines = inspect.getsource(module).split("\n")
    except (OSError, TypeError):
        return ""
    for i, line in enumerate(lines):
        if re.match(rf"(?:.*, )?{name}\b[^=(]*(?::[^=]*)?= ", line) and not line.startswith(" "):
            top = i
            while top and (lines[top - 1].startswith("#") or re.match(r"^[\w, ]+(?:: [\w.]+)? = ", lines[top - 1])):
                top -= 1
            return " ".join(text.lstrip("# ") for text in lines[top:i] if text.startswith("#"))
    return ""


def public_names(module: types.ModuleType) -> list[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if not name.startswith("_")
                 and getattr(value, "__module__", None) == module.__name__ and (callable(value) or isinstance(value, type))]
    return list(dict.fromkeys(names))


def read_source(name: str, file: Path) -> Module:
    """Reads a module that cannot be imported here: the names in its __all__, and their docstrings."""
    tree = ast.parse(file.read_text())
    found = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    module = Module(name, ast.get_docstring(tree) or "")
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            for public in ast.literal_eval(node.value):
                what = found.get(public)
                signature = f"({ast.unparse(what.args)})" if isinstance(what, ast.FunctionDef) else ""
                module.items.append(Item(public, signature, (ast.get_docstring(what) if what else "") or ""))
    return module


def read_package(package: str = "weir") -> list[Module]:
    """Imports the package and its public modules."""
    root = importlib.import_module(package)
    names = [package]
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not any(part.startswith("_") for part in found.name.split(".")[1:]):
            names.append(found.name)
    stubs: dict[str, list[str]] = {}
    for path in root.__path__:
        for file in sorted(Path(path).rglob("*.pyi")):
            stubs.update(read_stubs(file))
    loaded, modules = {}, []
    for name in names:
        try:
            loaded[name] = importlib.import_module(name)
        except ImportError:
            # weir.torch needs the adapter weir_torch, which is built for an installed PyTorch.
            module = read_source(name, Path(importlib.util.find_spec(name).origin))
            for item in module.items:
                item.elsewhere = f"weir_torch.{item.name}"
            modules.append(module)
    modules.append(read_source("weir_torch", ADAPTER))
    # An object is described once: in the public module that defines it, else in the package itself.
    for name, module in loaded.items():
        described = Module(name, inspect.getdoc(module) or "")
        for public in public_names(module):
            value = getattr(module, public)
            described.items.append(describe(value, public, module, loaded, stubs))
        modules.append(described)
    return sorted(modules, key=lambda described: described.name)


def describe(value: object, name: str, module: types.ModuleType, loaded: dict, stubs: dict) -> Item:
    home = getattr(value, "__module__", None)
    if isinstance(value, types.ModuleType):
        return Item(name, "", inspect.getdoc(value) or "", kind="module", elsewhere=value.__name__)
    if isinstance(home, str) and home != module.__name__ and home in loaded and (
            isinstance(value, type) or callable(value)) and name in public_names(loaded[home]):
        return Item(name, "", inspect.getdoc(value) or "", elsewhere=f"{home}.{name}")
    if module.__name__ != "weir" and home != module.__name__ and getattr(loaded["weir"], name, None) is value:
        return Item(name, "", inspect.getdoc(value) or "", elsewhere=f"weir.{name}")
    if isinstance(value, type):
        return describe_class(value, name, stubs)
    if callable(value):
        signatures = signature_of(value, name, stubs)
        return Item(name, "\n".join(signatures), inspect.getdoc(value) or "")
    text = comment_above(module, name) or own_doc(value)
    # A constant of a private module, or of compute, that the package exports.
    for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
        if not text and (found.name.startswith("_") and found.name != "_weir" or found.name == "compute"):
            text = comment_above(importlib.import_module(f"{module.__name__}.{found.name}"), name)
    return Item(name, f": {type(value).__name__}", text, kind="value")

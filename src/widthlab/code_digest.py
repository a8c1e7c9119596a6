"""Digest of the code that a stage uses: its abstract syntax, followed by name.

Starting from one function, the digest takes in every top-level definition of the package that
the function names, directly or through others: `extract` of an experiment brings the statistics
that it calls, but not the figures in the same file. Comments, layout and docstrings do not
count, and neither do other packages (a manifest records their versions).

Names are followed statically, so code of a stage must be reachable by name: registries are
literal dicts, and types that arrive as arguments are named in annotations. A test runs every
stage under a tracer and checks that nothing outside the digest was executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from widthlab.address import digest

PACKAGE = "widthlab"
ROOT = Path(__file__).resolve().parent

Definition = tuple[str, str]
"""(module, name) of a top-level definition; an empty name stands for loose statements."""


@dataclass
class Module:
    """The top-level definitions of one module, and what its imports bind."""

    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, Definition] = field(default_factory=dict)
    """Local name → (module, name); the name is empty where a whole module is bound."""
    loose: list[ast.stmt] = field(default_factory=list)
    """Statements that define nothing by name and run on import."""

    def statements(self, name: str) -> list[ast.stmt]:
        """Return the statements of a definition, or the loose ones for an empty name."""
        return self.definitions[name] if name else self.loose


@cache
def code_digest(*roots: str) -> str:
    """Return the SHA-256 of all package code that the roots ("package.module:function") use.

    Raises LookupError where a module or function does not exist.
    """
    parts = []
    for module, name in sorted(frozenset().union(*map(closure, roots))):
        parts.append(f"{module}:{name}\n{_source(module, name)}")
    return digest("\n".join(parts))


@cache
def closure(root: str) -> frozenset[Definition]:
    """Return all (module, name) definitions that `root` uses, itself included."""
    module, _, name = root.partition(":")
    if not _exists(module) or name not in _parse(module).definitions:
        raise LookupError(f"no definition {name!r} in module {module!r}")
    found: set[Definition] = set()
    pending: list[Definition] = [(module, name)]
    while pending:
        current = pending.pop()
        if current in found:
            continue
        found.add(current)
        pending.extend(_uses(*current))
    return frozenset(found)


@cache
def _uses(module: str, name: str) -> frozenset[Definition]:
    """Return the definitions that one definition refers to."""
    found: set[Definition] = {(module, "")} if name and _parse(module).loose else set()
    for node in _parse(module).statements(name):
        for word, attribute in set(_words(node)):
            found.update(_resolve(module, word, attribute))
    return frozenset(found)


def _words(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield every name in a piece of syntax, with the attribute taken of it if any."""
    owners = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name):
            owners.add(id(child.value))
            yield child.value.id, child.attr
        elif isinstance(child, ast.Name) and id(child) not in owners:
            yield child.id, None
        elif isinstance(child, ast.Constant) and str(child.value).isidentifier():
            yield str(child.value), None  # an annotation in quotes


def _resolve(module: str, word: str, attribute: str | None) -> Iterator[Definition]:
    """Yield what a name stands for in a module: a definition here or one that is imported."""
    parsed = _parse(module)
    if word in parsed.definitions:
        yield module, word
    elif word in parsed.imports:
        source, name = parsed.imports[word]
        if name or attribute:
            yield from _resolve(source, name or str(attribute), attribute if name else None)
        else:
            yield from _everything(source)
    elif _exists(f"{module}.{word}"):
        yield from _everything(f"{module}.{word}")


def _everything(module: str) -> Iterator[Definition]:
    """Yield all of a module that is handed on as a value: any of it may be used."""
    return ((module, name) for name in _parse(module).definitions)


@cache
def _parse(module: str) -> Module:
    path = _path(module)
    is_package = path.name == "__init__.py"
    parsed = Module()
    tree = _WithoutText().visit(ast.parse(path.read_text(encoding="utf-8")))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source = _absolute(module, is_package, node)
            if source.split(".")[0] != PACKAGE:
                continue
            for alias in node.names:
                whole = _exists(f"{source}.{alias.name}")
                parsed.imports[alias.asname or alias.name] = (
                    (f"{source}.{alias.name}", "") if whole else (source, alias.name)
                )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] != PACKAGE:
                    continue
                if not alias.asname:
                    raise LookupError(f"{module}: write 'from … import …' for {alias.name}")
                parsed.imports[alias.asname] = (alias.name, "")
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        names = list(_defined(statement))
        for name in names:
            parsed.definitions.setdefault(name, []).append(statement)
        if not names and not _is_type_checking(statement):
            parsed.loose.append(statement)
    return parsed


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            for child in ast.walk(target):
                if isinstance(child, ast.Name):
                    yield child.id
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign) and isinstance(
        statement.target, ast.Name
    ):
        yield statement.target.id


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_type_checking(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Name)
        and statement.test.id == "TYPE_CHECKING"
    )


@cache
def _source(module: str, name: str) -> str:
    """Return normalised source, without comments, layout and docstrings."""
    return "\n".join(ast.unparse(node) for node in _parse(module).statements(name))


class _WithoutText(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if _is_text(node) else node


def _absolute(module: str, is_package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*base, node.module] if node.module else base)


def _exists(module: str) -> bool:
    return _candidate(module) is not None


def _path(module: str) -> Path:
    path = _candidate(module)
    if path is None:
        raise LookupError(f"no module {module!r} in {ROOT}")
    return path


@cache
def _candidate(module: str) -> Path | None:
    head, *rest = module.split(".")
    if head != PACKAGE:
        return None
    base = ROOT.joinpath(*rest)
    for path in (base.with_suffix(".py") if rest else base / "__init__.py", base / "__init__.py"):
        if path.is_file():
            return path
    return None

"""Reads SGLang's source without importing it: which names, parameters and expressions it has."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """The modules below the folder of the package ``sglang``; each is parsed once."""

    def __init__(self, root: Path) -> None:
        """`root` is the folder that holds sglang's ``__init__.py``."""
        self.root = root
        self._modules: dict[str, ast.Module | None] = {}

    def module(self, file: str) -> ast.Module | None:
        """Return the module in `file`, None if there is no such file or it cannot be parsed."""
        if file not in self._modules:
            try:
                self._modules[file] = ast.parse(self.read(file))
            except (OSError, SyntaxError):
                self._modules[file] = None
        return self._modules[file]

    def read(self, file: str) -> str:
        """Return the text of `file`, or raise OSError."""
        return (self.root / file).read_text(encoding="utf-8")

    def class_(self, file: str, name: str) -> ast.ClassDef | None:
        """Return the class `name` of the top level of `file`."""
        for node in _statements(self.module(file)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
        return None

    def function(self, file: str, name: str) -> FunctionNode | None:
        """Return the function `name` of `file`, or the method for ``Class.method``."""
        owner, _, last = name.rpartition(".")
        place = self.class_(file, owner) if owner else self.module(file)
        for node in _statements(place):
            if isinstance(node, FunctionNode) and node.name == last:
                return node
        return None


def _statements(place: ast.Module | ast.ClassDef | None) -> Iterator[ast.stmt]:
    """Yield the statements of a module or class, those under ``if`` and ``try`` too."""
    pending: list[ast.stmt] = list(place.body) if place is not None else []
    while pending:
        node = pending.pop(0)
        yield node
        if isinstance(node, ast.If | ast.Try):
            pending[:0] = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]


class Part(Protocol):
    """One thing that we rely on."""

    def broken(self, source: Source) -> list[str]:
        """Return what of it `source` does not have; nothing when all is there."""


@dataclass(frozen=True)
class Function:
    """A function or ``Class.method`` with the first parameters that we count on, by position.

    Attributes:
        named: parameters that must be there in any place.
        annotated: (parameter, type as written) pairs.
        contains: expressions or statements that must occur in its body, as ``ast.unparse`` writes
            them.
        reads_only: if given, the only attributes of ``self`` that it may use.
    """

    file: str
    name: str
    parameters: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    annotated: tuple[tuple[str, str], ...] = ()
    contains: tuple[str, ...] = ()
    reads_only: frozenset[str] | None = None

    def broken(self, source: Source) -> list[str]:
        """See Part."""
        node = source.function(self.file, self.name)
        if node is None:
            return [f"{self.file}: {self.name}: expected a function of this name"]
        found = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        every = [*found, *(argument.arg for argument in node.args.kwonlyargs)]
        wrong = []
        if tuple(found[: len(self.parameters)]) != self.parameters:
            wrong.append(f"expected the parameters {_listed(self.parameters)}: {_listed(found)}")
        wrong += [f"expected a parameter {name}" for name in self.named if name not in every]
        types = {
            argument.arg: ast.unparse(argument.annotation).strip("'")
            for argument in (*node.args.posonlyargs, *node.args.args)
            if argument.annotation is not None
        }
        wrong += [
            f"expected {name}: {type_}, found {types.get(name)}"
            for name, type_ in self.annotated
            if types.get(name) != type_
        ]
        if self.contains:
            written = {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.expr | ast.stmt)}
            wrong += [f"expected {text!r} in it" for text in self.contains if text not in written]
        if self.reads_only is not None:
            more = sorted({name for name, _ in _self_attributes(node)} - self.reads_only)
            if more:
                wrong.append(
                    f"expected it to use {_listed(sorted(self.reads_only))} of self alone, "
                    f"found {_listed(more)}"
                )
        return [f"{self.file}: {self.name}: {text}" for text in wrong]


@dataclass(frozen=True)
class Attributes:
    """Names that a class has: in its body, or set on ``self`` in one of its methods."""

    file: str
    owner: str
    names: tuple[str, ...]

    def broken(self, source: Source) -> list[str]:
        """See Part."""
        node = source.class_(self.file, self.owner)
        if node is None:
            return [f"{self.file}: {self.owner}: expected a class of this name"]
        there = _class_names(node)
        if "__getattr__" in there:
            # Its names are then in a table, as words.
            there |= _words(source.module(self.file))
        return [
            f"{self.file}: {self.owner}.{name}: expected an attribute of this name"
            for name in self.names
            if name not in there
        ]


@dataclass(frozen=True)
class Spread:
    """Fields of a class that is put together from the classes of several files."""

    owner: str
    files: tuple[str, ...]
    """Paths, in which ``*`` stands for any file name; those that do not exist are passed over."""
    names: tuple[str, ...]

    def broken(self, source: Source) -> list[str]:
        """See Part."""
        there: set[str] = set()
        for pattern in self.files:
            for path in sorted(source.root.glob(pattern)):
                file = path.relative_to(source.root).as_posix()
                for node in _statements(source.module(file)):
                    if isinstance(node, ast.ClassDef):
                        there |= _class_names(node)
        return [
            f"{' or '.join(self.files)}: {self.owner}.{name}: expected a field of this name"
            for name in self.names
            if name not in there
        ]


@dataclass(frozen=True)
class Plain:
    """A class whose objects can be keys that do not keep them alive (``WeakKeyDictionary``)."""

    file: str
    owner: str

    def broken(self, source: Source) -> list[str]:
        """See Part."""
        node = source.class_(self.file, self.owner)
        if node is None:
            return [f"{self.file}: {self.owner}: expected a class of this name"]
        bad = sorted(_class_names(node) & {"__slots__", "__eq__"})
        bad += [f"@{ast.unparse(decorator)}" for decorator in node.decorator_list]
        return [f"{self.file}: {self.owner}: expected a plain class, without {n}" for n in bad]


@dataclass(frozen=True)
class Constant:
    """A name of the top level with a literal value."""

    file: str
    name: str
    value: object

    def broken(self, source: Source) -> list[str]:
        """See Part."""
        for node in _statements(source.module(self.file)):
            if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [
                self.name
            ]:
                found = ast.unparse(node.value)
                if found == repr(self.value):
                    return []
                return [f"{self.file}: {self.name}: expected {self.value!r}, found {found}"]
        return [f"{self.file}: {self.name}: expected a constant of this name"]


@dataclass(frozen=True)
class OneOf:
    """Something that has moved between releases: one of several ways must hold whole."""

    what: str
    ways: tuple[tuple[Part, ...], ...]

    def broken(self, source: Source) -> list[str]:
        """See Part."""
        results = [[text for part in way for text in part.broken(source)] for way in self.ways]
        if not all(results):
            return []
        return [
            f"{self.what}: none of the known ways is whole; {' | '.join(map('; '.join, results))}"
        ]


@dataclass(frozen=True)
class Where:
    """Something that must hold in releases that have another thing."""

    given: Part
    then: tuple[Part, ...] = field(default=())

    def broken(self, source: Source) -> list[str]:
        """See Part."""
        if self.given.broken(source):
            return []
        return [text for part in self.then for text in part.broken(source)]


def _class_names(node: ast.ClassDef) -> set[str]:
    names: set[str] = set()
    for statement in _statements(node):
        if isinstance(statement, FunctionNode):
            names.add(statement.name)
            names |= {name for name, stored in _self_attributes(statement) if stored}
        elif isinstance(statement, ast.AnnAssign):
            names.add(ast.unparse(statement.target))
        elif isinstance(statement, ast.Assign):
            names |= {ast.unparse(target) for target in statement.targets}
    return names


def _self_attributes(function: FunctionNode) -> Iterator[tuple[str, bool]]:
    """Yield each attribute of ``self`` in `function`, and whether it is assigned there."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                yield node.attr, isinstance(node.ctx, ast.Store)


def _words(module: ast.Module | None) -> set[str]:
    if module is None:
        return set()
    words = {
        node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign):
            words.add(ast.unparse(node.target))
    return words


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(names)})"

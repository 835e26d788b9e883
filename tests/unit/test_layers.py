"""Imports point down the layers of docs/design.md, which is read here, and to nothing forbidden."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
PAGE = TREE / "docs" / "design.md"

FACE = "hs_capture"
"""The package itself: it names what is public and loads it when it is used. So every module may
import it, for the names of `FACE_NAMES` alone, which load nothing."""
FACE_NAMES = {"__version__", "__file__"}

READERS_OF_THE_ENVIRONMENT = {"hs_capture.settings", "sitecustomize_shim"}
"""The start-up code runs in every interpreter, and may not import the former to read a variable."""

IMPORTERS_BY_NAME = {
    "hs_capture": "its public names, of all layers",
    "hs_capture.hooks": "its own modules",
    "hs_capture.hooks.families": "modules of SGLang",
    "hs_capture.extract.source": "pyarrow",
    "hs_capture.export.formats": "its own modules",
}
"""Modules that import what a text names, which cannot be followed here, and what that is."""


def modules_of(package: str) -> dict[str, ast.Module]:
    """Return the modules of a package, parsed, by their full names."""
    found = {}
    for path in sorted((TREE / package).rglob("*.py")):
        parts = path.relative_to(TREE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(), str(path))
    return found


MODULES = modules_of("hs_capture")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full name of all that is imported anywhere in `tree`: also in a function, and also
    for type checkers alone, since an annotation couples two modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # ruff allows relative imports, and there are none.
            assert node.level == 0, ast.unparse(node)
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_named(name: str) -> str:
    """Return the module of hs_capture that `name`, a module or something in one, is or is in."""
    return name if name in MODULES else name.rpartition(".")[0]


def names_hs_capture(name: str) -> bool:
    """Whether an imported name is one of this package."""
    return name.partition(".")[0] == "hs_capture"


def unit(module: str) -> str:
    """Return what the layers speak of: the module or package right below hs_capture."""
    return module.split(".")[1]


def layers() -> list[set[str]]:
    """Return the layers as the page lists them, the highest first: a line each of a block."""
    section = PAGE.read_text().split("\n## Layers\n", 1)[1].split("\n## ", 1)[0]
    lines = re.findall(r"^ {4}(.+)$", section, re.MULTILINE)
    return [set(line.split()) for line in lines]


def height() -> dict[str, int]:
    """Return the number of each unit's layer, the lowest being 0."""
    return {name: at for at, layer in enumerate(reversed(layers())) for name in layer}


def test_every_module_is_in_exactly_one_layer() -> None:
    listed = [name for layer in layers() for name in layer]
    assert len(layers()) > 5
    assert sorted(listed) == sorted({unit(module) for module in MODULES if module != FACE})


def test_imports_point_to_the_same_layer_or_down() -> None:
    at = height()
    up = [
        f"{module} imports {name}"
        for module, tree in MODULES.items()
        for name in imported(tree)
        if module != FACE and names_hs_capture(name) and module_named(name) != FACE
        if at[unit(module_named(name))] > at[unit(module)]
    ]
    assert up == []


def test_every_import_of_the_package_is_of_a_module_that_is_there() -> None:
    """Else the test above would judge a name that is none."""
    found = [name for tree in MODULES.values() for name in imported(tree) if names_hs_capture(name)]
    assert len(found) > 500
    assert [name for name in found if module_named(name) not in MODULES] == []


def test_the_package_itself_is_imported_for_its_version_and_place_alone() -> None:
    """What it loads when it is used would be an import that no test sees."""
    used = set()
    for module, tree in MODULES.items():
        if module == FACE:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == FACE:
                used.add(node.attr)
        names = [name for name in imported(tree) if module_named(name) == FACE and name != FACE]
        used |= {name.removeprefix(f"{FACE}.") for name in names}
    assert used == FACE_NAMES


def test_only_the_modules_that_are_known_to_import_by_a_text() -> None:
    callers = set()
    for module, tree in MODULES.items():
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        if called & {"import_module", "importlib.import_module", "__import__"}:
            callers.add(module)
    assert callers == set(IMPORTERS_BY_NAME)


def test_only_the_settings_and_the_start_up_code_read_the_environment() -> None:
    names = {"environ", "environb", "getenv", "getenvb"}
    readers = set()
    for module, tree in {**MODULES, **modules_of("sitecustomize_shim")}.items():
        # Under another name the module would not be found below.
        assert not re.search(r"import os as", ast.unparse(tree)), module
        read = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os"
        }
        read |= {name.removeprefix("os.") for name in imported(tree) if name.startswith("os.")}
        if read & {*names, "*"}:
            readers.add(module)
    assert readers == READERS_OF_THE_ENVIRONMENT


def test_only_the_hooks_import_sglang() -> None:
    importers = {
        unit(module)
        for module, tree in MODULES.items()
        if any(name.partition(".")[0] == "sglang" for name in imported(tree))
    }
    assert importers == {"hooks"}


@pytest.mark.parametrize("package", ["writer", "ring", "format"])
def test_the_writer_and_what_is_below_import_neither_torch_nor_sglang(package: str) -> None:
    """Nor does anything of ours that they import."""
    todo = [module for module in MODULES if module != FACE and unit(module) == package]
    assert todo
    reached: set[str] = set()
    while todo:
        module = todo.pop()
        if module in reached or module == FACE:
            continue
        reached.add(module)
        names = set(imported(MODULES[module]))
        heavy = {name for name in names if name.partition(".")[0] in ("torch", "sglang", "triton")}
        assert heavy == set(), module
        todo += [module_named(name) for name in names if names_hs_capture(name)]
        # Importing a module imports the packages around it.
        todo += [module.rpartition(".")[0]]

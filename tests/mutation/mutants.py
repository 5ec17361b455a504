"""The mutants of a module: mutmut's, each as the whole source with one expression changed."""

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import libcst as cst
from mutmut.mutation.file_mutation import MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode


@attrs.frozen(kw_only=True)
class Mutant:
    """One changed function. `was` and `becomes` are the lines that differ, stripped: its name in `survivors.toml`."""

    module: str
    function: str
    """Qualified name of the top-level function or method."""
    was: str
    becomes: str
    file: str
    line: int
    """Where the top-level statement that holds the function begins."""
    statement: str
    source: str = attrs.field(repr=False)
    """The whole module with the change in it."""

    @property
    def name(self) -> tuple[str, str, str]:
        """What it is known by; two changes of like lines in one function are one to a reader."""
        return (f"{self.module}.{self.function}", self.was, self.becomes)

    def compiled(self) -> Any:
        """The code of the changed function alone, as if it stood in its file. Raises `SyntaxError` if it is no code."""
        text = "\n" * (self.line - 1) + self.statement
        code = compile(text, self.file, "exec", dont_inherit=True)
        for name in self.function.split("."):
            code = next(c for c in code.co_consts if getattr(c, "co_name", None) == name)
        return code

    def arguments(self) -> ast.arguments:
        """The arguments of the changed function, with their defaults."""
        return _function(ast.parse(self.statement), self.function).args


def _function(tree: ast.Module, name: str) -> Any:
    node: Any = tree
    for part in name.split("."):
        node = next(n for n in node.body if getattr(n, "name", None) == part)
    return node


def mutants_of(module: str, path: Path) -> Iterator[Mutant]:
    """Every mutant that mutmut makes of the functions and methods of a module."""
    source = path.read_text(encoding="utf-8")
    wrapper = cst.MetadataWrapper(cst.parse_module(source))
    nothing: set[int] = set()
    visitor = MutationVisitor(mutation_operators, IgnoredCode(nothing, nothing, nothing))
    tree = wrapper.visit(visitor)
    names, owners = _names(tree)
    parts = [tree.code_for_node(s) for s in tree.body]
    before = "".join(map(tree.code_for_node, tree.header))
    for mutation in visitor.mutations:
        function = mutation.contained_by_top_level_function
        if function not in names:
            continue
        at = owners[function]
        old, new = mutation.original_node, mutation.mutated_node
        changed = tree.code_for_node(deep_replace(tree.body[at], old, new))
        start = before + "".join(parts[:at])
        was, becomes = _changed_lines(parts[at], changed)
        yield Mutant(
            module=module,
            function=names[function],
            was=was,
            becomes=becomes,
            file=str(path),
            line=start.count("\n") + 1,
            statement=changed,
            source=start + changed + "".join(parts[at + 1 :]),
        )


def _names(tree: cst.Module) -> tuple[dict[Any, str], dict[Any, int]]:
    names, owners = {}, {}
    for at, statement in enumerate(tree.body):
        if isinstance(statement, cst.FunctionDef):
            names[statement], owners[statement] = statement.name.value, at
        elif isinstance(statement, cst.ClassDef):
            for member in statement.body.body:
                if isinstance(member, cst.FunctionDef):
                    name = f"{statement.name.value}.{member.name.value}"
                    names[member], owners[member] = name, at
    return names, owners


def _changed_lines(was: str, becomes: str) -> tuple[str, str]:
    diff = list(difflib.ndiff(was.splitlines(), becomes.splitlines()))
    sides = ([line[2:].strip() for line in diff if line[0] == sign] for sign in "-+")
    one, other = map("\n".join, sides)
    return one, other

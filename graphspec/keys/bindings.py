"""Which statements of a source give a name its value, and whether they always run."""

import ast
from collections.abc import Iterator

import attrs


@attrs.frozen
class Binding:
    """One statement that gives a name its value; `always` when it runs exactly once, whatever the machine."""

    node: ast.stmt
    always: bool


def bindings(body: list[ast.stmt], always: bool = True) -> Iterator[tuple[str, Binding]]:
    """Every statement that binds a name of a module or a class, in order."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, Binding(node, always)
            if not isinstance(node, ast.ClassDef):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Global):
                        yield from ((name, Binding(inner, False)) for name in inner.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name
                yield name.partition(".")[0], Binding(node, always)
        else:
            inner_bodies = _bodies(node)
            for name in _stored(node, inner_bodies):
                yield name, Binding(node, always and not inner_bodies)
            for inner_body in inner_bodies:
                yield from bindings(inner_body, False)


def _bodies(node: ast.stmt) -> list[list[ast.stmt]]:
    parts = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    parts += [part.body for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
    return [part for part in parts if part]


def _stored(node: ast.stmt, inner_bodies: list[list[ast.stmt]]) -> Iterator[str]:
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return
    inside = {id(n) for body in inner_bodies for s in body for n in ast.walk(s)}
    for part in ast.walk(node):
        if (
            isinstance(part, ast.Name)
            and not isinstance(part.ctx, ast.Load)
            and id(part) not in inside
        ):
            yield part.id

"""What a template's syntax tree says about it: the variables that it looks at, what it writes and what it looks for."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import nodes


def outside(tree: nodes.Template, known: set[str]) -> frozenset[str]:
    """The names of the variables that a template looks at and does not set, besides those known."""
    return frozenset(_outside(tree, set(known)))


def tells_null(tree: nodes.Template) -> bool:
    """Whether a template asks if the content of something is none."""
    return any(test.name == "none" and _is_content(test.node) for test in tree.find_all(nodes.Test))


def _is_content(node: nodes.Node) -> bool:
    """Whether an expression is the content of something."""
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Getattr) and node.attr == "content"


def _outside(node: nodes.Node, bound: set[str]) -> set[str]:
    """The names that `node` may look up outside; `bound`, those that are surely set before it, gets what it sets."""
    if isinstance(node, nodes.Name):
        if node.ctx == "load":
            return {node.name} - bound
        bound.add(node.name)
        return set()
    if isinstance(node, nodes.If):
        others = [[other.test, *other.body] for other in node.elif_]
        found = _outside(node.test, bound)
        branches = [set(bound) for _ in range(len(others) + 2)]
        for block, inner in zip([node.body, *others, node.else_], branches, strict=True):
            found |= _all_outside(block, inner)
        bound |= set.intersection(*branches)
        return found
    children = list(node.iter_child_nodes())
    if isinstance(node, (nodes.Assign, nodes.For)):
        children[:2] = children[1], children[0]  # what is set comes after what it is set to
    if isinstance(node, nodes.Macro):
        bound.add(node.name)
    scoped = isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.With, nodes.Scope))
    return _all_outside(children, bound | {"loop", "caller", "varargs", "kwargs"} if scoped else bound)


def _all_outside(block: Sequence[nodes.Node], bound: set[str]) -> set[str]:
    return set().union(*(_outside(node, bound) for node in block))


def literals(tree: nodes.Template) -> tuple[str, str]:
    """(what the template writes, what it looks for): its string constants, each list joined by null characters."""
    looking = (nodes.Compare, nodes.Call, nodes.Filter, nodes.Test, nodes.Getitem)
    read = {id(const) for node in tree.find_all(looking) for const in node.find_all(nodes.Const)}
    consts = [node for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    written = [node.data for node in tree.find_all(nodes.TemplateData)]
    written += [node.value for node in consts if id(node) not in read]
    return "\0".join(written), "\0".join(node.value for node in consts if id(node) in read)

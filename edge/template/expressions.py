"""Expressions of the syntax tree as Python functions of a scope. Nothing is computed before one is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError

from edge.template import filters
from edge.template.access import call, get_attribute, item, sliced
from edge.template.operators import BINARY, COMPARE, glue
from edge.template.text import wrote
from edge.template.values import undefined
from edge.template.work import Work


class Scope:
    """Variables, in a scope around which others may stand."""

    __slots__ = ("outer", "values", "work")

    def __init__(self, work: Work, values: dict[str, Any], outer: Scope | None = None) -> None:
        self.work = work
        self.values = values
        self.outer = outer

    def inner(self) -> Scope:
        return Scope(self.work, {}, self)

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return undefined(name=name)


Expression = Callable[[Scope], Any]


def weigh(*parts: nodes.Node | None) -> int:
    """The steps that evaluating some parts of the tree takes, beside what their operations cost."""
    return sum(1 + weigh(*part.iter_child_nodes()) for part in parts if part is not None)


class Expressions:
    """Makes the functions. Raises TemplateSyntaxError for what this project's templates do not have."""

    def __init__(self) -> None:
        self._choices = 0  # how many conditions stand around this place
        self._loops = 0  # how many loops stand around it in the same macro

    def compile(self, node: nodes.Node) -> Expression:
        make = getattr(self, f"_{type(node).__name__.lower()}", None)
        if make is None:
            raise TemplateSyntaxError(f"{type(node).__name__} is not supported", node.lineno)
        made: Expression = make(node)
        return made

    def optional(self, node: nodes.Node | None) -> Expression:
        return (lambda scope: None) if node is None else self.compile(node)

    def _const(self, node: nodes.Const) -> Expression:
        value = wrote(node.value) if isinstance(node.value, str) else node.value
        return lambda scope: value

    def _templatedata(self, node: nodes.TemplateData) -> Expression:
        value = wrote(node.data)
        return lambda scope: value

    def _name(self, node: nodes.Name) -> Expression:
        name = node.name
        return lambda scope: scope.find(name)

    def _tuple(self, node: nodes.Tuple) -> Expression:
        parts = [self.compile(part) for part in node.items]
        return lambda scope: tuple([part(scope) for part in parts])

    def _list(self, node: nodes.List) -> Expression:
        parts = [self.compile(part) for part in node.items]
        return lambda scope: [part(scope) for part in parts]

    def _dict(self, node: nodes.Dict) -> Expression:
        pairs = [(self.compile(pair.key), self.compile(pair.value)) for pair in node.items]

        def make(scope: Scope) -> dict[Any, Any]:
            made = {}
            for key, value in pairs:
                name = key(scope)
                scope.work.read(name)
                made[name] = value(scope)
            return made

        return make

    def _condexpr(self, node: nodes.CondExpr) -> Expression:
        test = self.compile(node.test)
        self._choices += 1
        yes = self.compile(node.expr1)
        no = None if node.expr2 is None else self.compile(node.expr2)
        self._choices -= 1
        hint = f"the inline if-expression on line {node.lineno} evaluated to false and no else section was defined."

        def choose(scope: Scope) -> Any:
            if test(scope):
                return yes(scope)
            return undefined(hint) if no is None else no(scope)

        return choose

    def _getattr(self, node: nodes.Getattr) -> Expression:
        value, name = self.compile(node.node), node.attr
        return lambda scope: get_attribute(value(scope), name)

    def _getitem(self, node: nodes.Getitem) -> Expression:
        value, key = self.compile(node.node), self.compile(node.arg)
        if isinstance(node.arg, nodes.Slice):
            return lambda scope: sliced(scope.work, value(scope), key(scope))
        return lambda scope: item(scope.work, value(scope), key(scope))

    def _slice(self, node: nodes.Slice) -> Expression:
        start, stop, step = self.optional(node.start), self.optional(node.stop), self.optional(node.step)
        return lambda scope: slice(start(scope), stop(scope), step(scope))

    def _concat(self, node: nodes.Concat) -> Expression:
        parts = [self.compile(part) for part in node.nodes]
        return lambda scope: glue(scope.work, [part(scope) for part in parts])

    def _compare(self, node: nodes.Compare) -> Expression:
        first = self.compile(node.expr)
        rest = [(COMPARE[operand.op], self.compile(operand.expr)) for operand in node.ops]

        def compare(scope: Scope) -> Any:
            left, held = first(scope), True
            for operation, part in rest:
                right = part(scope)
                scope.work.read(left)
                scope.work.read(right)
                held = operation(left, right)
                if not held:
                    return held
                left = right
            return held

        return compare

    def _and(self, node: nodes.And) -> Expression:
        left, right = self.compile(node.left), self.compile(node.right)
        return lambda scope: left(scope) and right(scope)

    def _or(self, node: nodes.Or) -> Expression:
        left, right = self.compile(node.left), self.compile(node.right)
        return lambda scope: left(scope) or right(scope)

    def _not(self, node: nodes.Not) -> Expression:
        value = self.compile(node.node)
        return lambda scope: not value(scope)

    def _neg(self, node: nodes.Neg) -> Expression:
        value = self.compile(node.node)
        return lambda scope: -value(scope)

    def _pos(self, node: nodes.Pos) -> Expression:
        value = self.compile(node.node)
        return lambda scope: +value(scope)

    def _binary(self, node: nodes.BinExpr) -> Expression:
        left, right = self.compile(node.left), self.compile(node.right)
        operation = BINARY[node.operator]
        return lambda scope: operation(scope.work, left(scope), right(scope))

    _add = _sub = _mul = _div = _floordiv = _mod = _pow = _binary

    def _call(self, node: nodes.Call) -> Expression:
        function, arguments = self.compile(node.node), self.arguments(node)

        def run(scope: Scope) -> Any:
            args, kwargs = arguments(scope)
            return call(scope.work, function(scope), args, kwargs)

        return run

    def _filter(self, node: nodes.Filter) -> Expression:
        assert node.node is not None  # only a filter block has none, see `filter`
        value, apply = self.compile(node.node), self.filter(node)
        return lambda scope: apply(scope, value(scope))

    def filter(self, node: nodes.Filter) -> Callable[[Scope, Any], Any]:
        """What applies a filter, or those that stand in it down to the body of a block, to a value."""
        self._check(node.name, filters.FILTERS, "filter", node.lineno)
        name, arguments = node.name, self.arguments(node)
        before = self.filter(node.node) if isinstance(node.node, nodes.Filter) and _is_of_block(node.node) else None

        def apply(scope: Scope, value: Any) -> Any:
            if before is not None:
                value = before(scope, value)
            args, kwargs = arguments(scope)
            return filters.find(name)(scope.work, value, *args, **kwargs)

        return apply

    def _test(self, node: nodes.Test) -> Expression:
        self._check(node.name, filters.TESTS, "test", node.lineno)
        value, name, arguments = self.compile(node.node), node.name, self.arguments(node)

        def run(scope: Scope) -> Any:
            args, kwargs = arguments(scope)
            return filters.find_test(name)(scope.work, value(scope), *args, **kwargs)

        return run

    def _check(self, name: str, table: dict[str, Any], kind: str, line: int) -> None:
        if name not in table and not self._choices:  # behind a condition it may never be used
            raise TemplateSyntaxError(f"No {kind} named {name!r}.", line)

    def arguments(self, node: nodes.Call | nodes.Filter | nodes.Test) -> Callable[[Scope], tuple[list[Any], Any]]:
        """What gives the arguments of a call by position and by name."""
        args = [self.compile(arg) for arg in node.args]
        kwargs = [(pair.key, self.compile(pair.value)) for pair in node.kwargs]
        more = None if node.dyn_args is None else self.compile(node.dyn_args)
        named = None if node.dyn_kwargs is None else self.compile(node.dyn_kwargs)

        def evaluate(scope: Scope) -> tuple[list[Any], Any]:
            by_place = [arg(scope) for arg in args]
            by_name = {key: value(scope) for key, value in kwargs}
            if more is not None:
                given = list(more(scope))
                scope.work.spend(len(given))
                by_place += given
            if named is not None:
                by_name |= named(scope)
            return by_place, by_name

        return evaluate


def _is_of_block(node: nodes.Filter) -> bool:
    """Whether the innermost of nested filters has no value of its own."""
    inner: Any = node
    while isinstance(inner, nodes.Filter):
        inner = inner.node
    return inner is None

"""Statements of the syntax tree as Python functions that add to an output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateRuntimeError, TemplateSyntaxError

from edge.template.expressions import Expression, Expressions, Scope, weigh
from edge.template.text import wrote
from edge.template.values import Function, assign, items, output, to_text, undefined
from edge.template.work import Work

# What a statement returns: None, or how the loop around it goes on.
Signal = type[nodes.Break] | type[nodes.Continue] | None
Statement = Callable[[Scope, list[str]], Signal]
_LOOP = 10  # steps of beginning a loop
Target = Callable[[Scope, Any], None]


class Statements(Expressions):
    """Makes the functions. Raises TemplateSyntaxError for what this project's templates do not have."""

    def block(self, body: Sequence[nodes.Node]) -> Statement:
        made = [self._statement(node) for node in body]

        def run(scope: Scope, out: list[str]) -> Signal:
            for statement in made:
                signal = statement(scope, out)
                if signal is not None:
                    return signal
            return None

        return made[0] if len(made) == 1 else run

    def text(self, body: Sequence[nodes.Node], use: Callable[[Scope, list[str], str], None]) -> Statement:
        """A block whose output is a value, for which `use` is called."""
        block = self.block(body)

        def run(scope: Scope, out: list[str]) -> Signal:
            inner: list[str] = []
            signal = block(scope.inner(), inner)
            if signal is None:
                use(scope, out, output(scope.work, inner))
            return signal

        return run

    def _statement(self, node: nodes.Node) -> Statement:
        make = getattr(self, f"_do_{type(node).__name__.lower()}", None)
        if make is None:
            raise TemplateSyntaxError(f"a chat template has no {type(node).__name__.lower()} statement", node.lineno)
        made: Statement = make(node)
        return made

    def _do_output(self, node: nodes.Output) -> Statement:
        parts = [
            wrote(part.data) if isinstance(part, nodes.TemplateData) else self.compile(part) for part in node.nodes
        ]
        weight = weigh(*node.nodes)

        def run(scope: Scope, out: list[str]) -> None:
            scope.work.spend(weight)
            for part in parts:
                out.append(part if isinstance(part, str) else to_text(scope.work, part(scope)))

        return run

    def _do_if(self, node: nodes.If) -> Statement:
        weight = weigh(node.test, *(other.test for other in node.elif_))
        self._choices += 1
        branches = [(self.compile(each.test), self.block(each.body)) for each in (node, *node.elif_)]
        other = self.block(node.else_)
        self._choices -= 1

        def run(scope: Scope, out: list[str]) -> Signal:
            scope.work.spend(weight)
            for test, body in branches:
                if test(scope):
                    return body(scope, out)
            return other(scope, out)

        return run

    def _do_for(self, node: nodes.For) -> Statement:
        self._loops += 1
        walk = Walk(self, node)
        self._loops -= 1
        return lambda scope, out: walk.run(scope, out, walk.iterable(scope), 1)

    def _do_assign(self, node: nodes.Assign) -> Statement:
        value, target, weight = self.compile(node.node), self.target(node.target), weigh(node.node)

        def run(scope: Scope, out: list[str]) -> None:
            scope.work.spend(weight)
            target(scope, value(scope))

        return run

    def _do_assignblock(self, node: nodes.AssignBlock) -> Statement:
        target = self.target(node.target)
        apply = None if node.filter is None else self.filter(node.filter)

        def use(scope: Scope, out: list[str], text: str) -> None:
            target(scope, text if apply is None else apply(scope, text))

        return self.text(node.body, use)

    def _do_filterblock(self, node: nodes.FilterBlock) -> Statement:
        apply = self.filter(node.filter)
        return self.text(node.body, lambda scope, out, text: out.append(to_text(scope.work, apply(scope, text))))

    def _do_with(self, node: nodes.With) -> Statement:
        pairs = [
            (self.target(name), self.compile(value)) for name, value in zip(node.targets, node.values, strict=True)
        ]
        body = self.block(node.body)
        weight = weigh(*node.values)

        def run(scope: Scope, out: list[str]) -> Signal:
            scope.work.spend(weight)
            inner = scope.inner()
            for target, value in pairs:
                target(inner, value(scope))
            return body(inner, out)

        return run

    def _do_scope(self, node: nodes.Scope | nodes.Block) -> Statement:
        body = self.block(node.body)
        return lambda scope, out: body(scope.inner(), out)

    _do_block = _do_scope

    def _do_macro(self, node: nodes.Macro) -> Statement:
        make, name = self._macro(node, node.name), node.name

        def run(scope: Scope, out: list[str]) -> None:
            scope.values[name] = make(scope)

        return run

    def _do_callblock(self, node: nodes.CallBlock) -> Statement:
        make = self._macro(node, "caller")
        function, arguments, weight = self.compile(node.call.node), self.arguments(node.call), weigh(node.call)

        def run(scope: Scope, out: list[str]) -> None:
            scope.work.spend(weight)
            args, kwargs = arguments(scope)
            made = function(scope)
            if not isinstance(made, Function):
                raise TemplateRuntimeError("a call block calls a macro")
            out.append(to_text(scope.work, made.call(scope.work, args, {**kwargs, "caller": make(scope)})))

        return run

    def _macro(self, node: nodes.Macro | nodes.CallBlock, name: str) -> Callable[[Scope], Macro]:
        names = [arg.name for arg in node.args]
        defaults: list[Expression | None] = [None] * (len(names) - len(node.defaults))
        defaults += [self.compile(default) for default in node.defaults]
        loops, self._loops = self._loops, 0
        body = self.block(node.body)
        self._loops = loops
        used = frozenset(each.name for part in node.body for each in part.find_all(nodes.Name))
        weight = 1 + weigh(*node.defaults)
        parameters = Parameters(tuple(names), tuple(defaults), used, weight)
        return lambda scope: Macro(name, parameters, body, scope)

    def _do_break(self, node: nodes.Break | nodes.Continue) -> Statement:
        if not self._loops:
            raise TemplateSyntaxError(f"{type(node).__name__.lower()} outside of a loop", node.lineno)
        return lambda scope, out: type(node)

    _do_continue = _do_break

    def target(self, node: nodes.Node) -> Target:
        """What sets variables to a value."""
        if isinstance(node, nodes.Name):
            name = node.name
            return lambda scope, value: scope.values.__setitem__(name, value)
        if isinstance(node, nodes.NSRef):
            owner, attribute = node.name, node.attr
            return lambda scope, value: assign(scope.find(owner), attribute, value)
        assert isinstance(node, nodes.Tuple)
        parts = [self.target(part) for part in node.items]

        def unpack(scope: Scope, value: Any) -> None:
            found = items(scope.work, value)
            if len(found) != len(parts):
                raise ValueError(f"{len(found)} values cannot be set to {len(parts)} names")
            for part, each in zip(parts, found, strict=True):
                part(scope, each)

        return unpack


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a macro takes: names, a default or None for each, the names that its body uses, the steps of a call."""

    names: tuple[str, ...]
    defaults: tuple[Expression | None, ...]
    used: frozenset[str]
    weight: int


class Macro(Function):
    """A macro, or the body of a call block, in the scope where it stands."""

    def __init__(self, name: str, parameters: Parameters, body: Statement, scope: Scope) -> None:
        self.attributes = {"name": wrote(name), "arguments": parameters.names}
        self._name, self._parameters, self._body, self._scope = name, parameters, body, scope

    def call(self, work: Work, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        work.spend(self._parameters.weight)
        with work.call():
            scope = self._scope.inner()
            self._bind(scope, args, dict(kwargs))
            out: list[str] = []
            self._body(scope, out)
            return output(work, out)

    def _bind(self, scope: Scope, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        names, used = self._parameters.names, self._parameters.used
        for place, (name, default) in enumerate(zip(names, self._parameters.defaults, strict=True)):
            if place < len(args):
                scope.values[name] = args[place]
            elif name in kwargs:
                scope.values[name] = kwargs.pop(name)
            elif default is not None:
                scope.values[name] = default(scope)
            else:
                scope.values[name] = undefined(f"parameter {name!r} was not provided", name=name)
        if "caller" in used and "caller" not in names:
            scope.values["caller"] = kwargs.pop("caller", undefined("No caller defined", name="caller"))
        if "kwargs" in used:
            scope.values["kwargs"] = kwargs
        elif kwargs:
            raise TypeError(f"macro {self._name!r} takes no keyword argument {next(iter(kwargs))!r}")
        if "varargs" in used:
            scope.values["varargs"] = tuple(args[len(names) :])
        elif len(args) > len(names):
            raise TypeError(f"macro {self._name!r} takes not more than {len(names)} argument(s)")


class Walk:
    """A `for` statement."""

    def __init__(self, statements: Statements, node: nodes.For) -> None:
        self.iterable = statements.compile(node.iter)
        self._target = statements.target(node.target)
        self._test = None if node.test is None else statements.compile(node.test)
        self._body, self._other = statements.block(node.body), statements.block(node.else_)
        self._recursive = node.recursive
        self._weight = 1 + weigh(node.test)

    def run(self, scope: Scope, out: list[str], values: Any, depth: int) -> Signal:
        scope.work.spend(_LOOP)
        found = items(scope.work, values)
        if self._test is not None:
            found = [value for value in found if self._wanted(scope, value, self._test)]
        loop = Loop(found, depth, partial(self._again, scope, depth) if self._recursive else None)
        whole = False  # whether a body came to its end; as in jinja2, one that goes on or breaks off does not count
        for place, value in enumerate(found):
            scope.work.spend(1)
            inner = scope.inner()
            inner.values["loop"] = loop.at(place)
            self._target(inner, value)
            signal = self._body(inner, out)
            whole = whole or signal is None
            if signal is nodes.Break:
                break
        return None if whole else self._other(scope.inner(), out)

    def _wanted(self, scope: Scope, value: Any, test: Expression) -> bool:
        scope.work.spend(self._weight)
        inner = scope.inner()
        self._target(inner, value)
        return bool(test(inner))

    def _again(self, scope: Scope, depth: int, work: Work, values: Any) -> str:
        out: list[str] = []
        with work.call():
            self.run(scope, out, values, depth + 1)
        return output(work, out)


class Loop(Function):
    """The variable `loop`; what a recursive loop calls to walk over more."""

    def __init__(self, found: Sequence[Any], depth: int, again: Callable[..., str] | None) -> None:
        super().__init__(again or _no_recursion)
        self._found, self._depth, self._place = found, depth, 0
        self._latest: Any = None  # what `changed` was called with

    def at(self, place: int) -> Loop:
        self._place = place
        return self

    @property
    def attributes(self) -> Mapping[str, Any]:  # type: ignore[override]
        found, place, count = self._found, self._place, len(self._found)
        return {
            "index": place + 1,
            "index0": place,
            "revindex": count - place,
            "revindex0": count - place - 1,
            "first": place == 0,
            "last": place == count - 1,
            "length": count,
            "depth": self._depth,
            "depth0": self._depth - 1,
            "previtem": found[place - 1] if place else undefined("there is no previous item"),
            "nextitem": found[place + 1] if place + 1 < count else undefined("there is no next item"),
            "cycle": Function(lambda work, *values: values[place % len(values)]),
            "changed": Function(self._changed),
        }

    def _changed(self, work: Work, *values: Any) -> bool:
        work.read(values)
        before, self._latest = self._latest, values
        return bool(before != values)


def _no_recursion(*_: Any) -> str:
    raise TypeError("The loop must have the 'recursive' marker to be called recursively.")

"""Messages to a prompt: the model's own Jinja template, and the rule that control tokens come only from it.

Templates see what transformers offers them: the sandbox, `raise_exception`, `strftime_now`, `tojson`, loop controls,
the generation tag, the `*_token` variables.

How the template's control tokens are told from the same text in a message: wherever a message (or tool, or extra
variable) spells a control token, the spelling is put between two random numbers before rendering. What the template
tests, splits or trims is otherwise as it was, and a prompt without such text is rendered from the very messages. In
the rendered text, a control token beside one of the numbers came from a message and stays text; the others become ids.
A template that leaves parts of a message out can also join the rest to a control token. So messages that hold a
beginning of one are rendered once more, with every such beginning between the numbers, and must give the same ids.
Control tokens are the tokenizer's own, and ordinary added tokens in brackets that the template writes but never looks
for: it writes those as structure, while what it looks for (such as the tags around reasoning) is markup that it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from edge.errors import BundleError, OptionError, UnsupportedError
from edge.messages import Arguments, check_tools, prepare
from edge.tokenizer import ControlTokens, Tokenizer, digits

_SWITCHES = ("enable_thinking", "thinking")  # what templates call the variable that turns reasoning on and off
_NONE = ControlTokens({})
_GIVEN = ("messages", "tools", "add_generation_prompt")  # variables that are no option


class ChatTemplate:
    """A chat template. `special` holds the variables that templates expect, such as {"bos_token": "<s>"}.

    `looks_at` are the names of the variables that it looks at.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """Compile the template. Raises BundleError for one that is not valid Jinja."""
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
            self.looks_at = frozenset(_outside(tree, set(environment.globals)))
        except TemplateSyntaxError as error:
            raise BundleError(f"the chat template is not valid, line {error.lineno}: {error.message}") from error
        except (SyntaxError, RecursionError, MemoryError) as error:  # what Python cannot compile
            raise BundleError("the chat template is not valid: it is nested too deeply") from error
        self._special = dict(special)
        self._tells_null = any(test.name == "none" and _is_content(test.node) for test in tree.find_all(nodes.Test))
        self._written, self._read = _literals(tree)
        self._latest: tuple[Tokenizer, tuple[ControlTokens, ControlTokens]] | None = None

    def variables(self, thinking: bool | None, others: Mapping[str, Any], *, tools: bool = False) -> dict[str, Any]:
        """The variables that turn reasoning on or off (None: as the template has it), and others, by name.

        Nothing is asked for in vain: raises UnsupportedError for reasoning that the template cannot turn on or off and
        for tools (whether there are any) that it would leave out, OptionError for a variable that it does not look at.
        """
        if tools and "tools" not in self.looks_at:
            raise UnsupportedError("the chat template of this model takes no tools; leave them out")
        known = self.looks_at.difference(_GIVEN, self._special)
        for name in others:
            if name not in known:
                allowed = f"looks at {', '.join(sorted(known))}" if known else "has none"
                raise OptionError(f"the chat template of this model does not look at a variable {name!r}; it {allowed}")
            if name in _SWITCHES and not isinstance(others[name], bool):  # any text would count as true
                raise OptionError(f"the template variable {name} is {others[name]!r}; it must be true or false")
        if thinking is None:
            return dict(others)
        switch = next((name for name in _SWITCHES if name in known), None)
        if switch is None:
            raise UnsupportedError(
                "the chat template of this model cannot turn reasoning on or off; leave thinking out"
            )
        if others.get(switch, thinking) is not thinking:
            raise OptionError(f"thinking is {thinking} and {switch} is {others[switch]!r}; leave one of them out")
        return {**others, switch: thinking}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. Messages are mappings with a role and, mostly, content: a string, None (empty text), or
        a list of {"type": "text", "text": ...} parts, which are joined. `variables` are further ones of the template.

        Raises OptionError for messages or tools of another form, and for those that the template refuses, with its
        reason.
        """
        return self._render(self._given(messages, tools, variables), add_generation_prompt)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt as ids, starting with one bos if the tokenizer adds one; control tokens are the template's only.

        Raises OptionError as `render` does.
        """
        control, beginnings = self._control(tokenizer)
        marks = digits(), digits()
        given = self._given(messages, tools, variables, control, marks)
        parts = list(_parts(self._render(given, add_generation_prompt), control, marks))
        broken = self._given(messages, tools, variables, beginnings, marks)
        if broken != given:
            sure = _parts(self._render(broken, add_generation_prompt), control, marks)
            if [part for part, written in parts if written] != [part for part, written in sure if written]:
                raise OptionError("the chat template would join what a message says to a control token of this model")
        pieces = [control.ids[part] if written else part for part, written in parts]
        return tokenizer.with_bos(tokenizer.encode_parts(pieces, control=control))

    def _given(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
        control: ControlTokens = _NONE,
        marks: tuple[str, str] = ("", ""),
    ) -> dict[str, Any]:
        """The template's variables that come from the caller, checked, their control tokens between the two marks."""
        if tools is not None:
            check_tools(tools)
        given = {**(variables or {}), "messages": prepare(messages, null=self._tells_null), "tools": tools}
        try:
            marked: dict[str, Any] = _marked(given, control, marks)
        except RecursionError as error:
            raise OptionError("a message, tool or template variable is nested too deeply") from error
        return marked

    def _render(self, variables: Mapping[str, Any], add_generation_prompt: bool) -> str:
        if not variables["messages"]:
            raise OptionError("there is no message to answer; give at least one")
        values = {"documents": None, **self._special, **variables, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(values)
        except Exception as error:  # the template is a program of the bundle's: anything may come out of it
            message = error.message if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            raise OptionError(f"the chat template refused the messages: {message}") from error

    def _control(self, tokenizer: Tokenizer) -> tuple[ControlTokens, ControlTokens]:
        """The control tokens under this template, also with their first characters; kept for the latest tokenizer."""
        latest = self._latest
        if latest is None or latest[0] is not tokenizer:
            structure = {
                text: token
                for text, token in tokenizer.ordinary_added.items()
                # In brackets: runs of newlines and common words are added tokens too, and text whoever writes them.
                if text[0] in "<[" and text[-1] in ">]" and text in self._written and text not in self._read
            }
            ids = {**tokenizer.control.ids, **structure}
            beginnings = ControlTokens({**{text[0]: token for text, token in ids.items()}, **ids})
            self._latest = latest = (tokenizer, (ControlTokens(ids), beginnings))
        return latest[1]


class _Namespace(Namespace):
    """Jinja's namespace without the names that the interpreter itself looks up on objects."""

    def __init__(self, /, *args: Any, **attributes: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **attributes).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a chat template may not set {name!r} on a namespace")
        super().__setitem__(name, value)


class _Generation(Extension):
    """The tag around an assistant's words, of use in training only: its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": _Namespace}
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _is_content(node: nodes.Node) -> bool:
    """Whether an expression is the content of something."""
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Getattr) and node.attr == "content"


def _marked(value: Any, control: ControlTokens, marks: tuple[str, str]) -> Any:
    """`value` with each control token's spelling, in any string within, between the two marks."""
    if isinstance(value, str):
        pieces = []
        done = 0
        for start, end in control.spans(value):
            pieces += [value[done:start], marks[0], value[start:end], marks[1]]
            done = end
        return "".join([*pieces, value[done:]])
    if isinstance(value, Arguments):
        return Arguments(_marked(dict(value), control, marks), _marked(str(value), control, marks))
    if isinstance(value, Mapping):
        return {_marked(key, control, marks): _marked(item, control, marks) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(item, control, marks) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    kind = type(value).__name__
    raise OptionError(f"a message, tool or template variable holds a {kind}; only what JSON can hold is allowed")


def _parts(text: str, control: ControlTokens, marks: tuple[str, str]) -> Iterator[tuple[str, bool]]:
    """`text` without marks, cut at the control tokens that are not marked: (piece, whether it is such a token).

    One mark is enough: the template may have cut off the other.
    """
    before, after = marks
    done = 0
    for start, end in control.spans(text):
        if text.endswith(before, 0, start) or text.startswith(after, end):
            continue
        yield text[done:start].replace(before, "").replace(after, ""), False
        yield text[start:end], True
        done = end
    yield text[done:].replace(before, "").replace(after, ""), False


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


def _literals(tree: nodes.Template) -> tuple[str, str]:
    """(what the template writes, what it looks for): its string constants, each list joined by null characters."""
    looking = (nodes.Compare, nodes.Call, nodes.Filter, nodes.Test, nodes.Getitem)
    read = {id(const) for node in tree.find_all(looking) for const in node.find_all(nodes.Const)}
    consts = [node for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    written = [node.data for node in tree.find_all(nodes.TemplateData)]
    written += [node.value for node in consts if id(node) not in read]
    return "\0".join(written), "\0".join(node.value for node in consts if id(node) in read)

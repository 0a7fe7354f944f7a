"""Messages to a prompt: the model's own Jinja template, and the rule that control tokens come only from it.

Templates see what transformers offers them: the sandbox, `raise_exception`, `strftime_now`, `tojson`, loop controls,
the generation tag, the `*_token` variables.

How the template's control tokens are told from the same text in a message: wherever a message (or tool, or extra
variable) spells a control token, the spelling is put between two random numbers before rendering. What the template
tests, splits or trims is otherwise as it was, and a prompt without such text is rendered from the very messages. In
the rendered text, a control token beside one of the numbers came from a message and stays text; the others become ids.
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

from edge.errors import BundleError, OptionError
from edge.tokenizer import ControlTokens, Tokenizer, check_text, digits

_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A chat template. `special` holds the variables that templates expect, such as {"bos_token": "<s>"}.

    `takes_tools` says whether the template looks at tools at all.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """Compile the template. Raises BundleError for one that is not valid Jinja."""
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise BundleError(f"the chat template is not valid, line {error.lineno}: {error.message}") from error
        self._special = dict(special)
        self.takes_tools = any(name.name == "tools" for name in tree.find_all(nodes.Name))
        self._written, self._read = _literals(tree)
        self._latest: tuple[Tokenizer, ControlTokens] | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt as text. Messages are mappings with a role and, mostly, content: a string, None (empty text), or
        a list of {"type": "text", "text": ...} parts, which are joined.

        Raises OptionError for messages of another form, and for those that the template refuses, with its reason.
        """
        prepared = [_message(message, number) for number, message in enumerate(messages)]
        variables = _marked({**extra, "messages": prepared, "tools": tools}, ControlTokens({}), ("", ""))
        return self._render(variables, add_generation_prompt)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> list[int]:
        """The prompt as ids, starting with one bos if the tokenizer adds one; control tokens are the template's only.

        Raises OptionError as `render` does.
        """
        control = self._control(tokenizer)
        before, after = digits(), digits()
        prepared = [_message(message, number) for number, message in enumerate(messages)]
        variables = _marked({**extra, "messages": prepared, "tools": tools}, control, (before, after))
        text = self._render(variables, add_generation_prompt)
        parts = _parts(text, control, (before, after))
        pieces = [control.ids[part] if written else part for part, written in parts]
        return tokenizer.with_bos(tokenizer.encode_parts(pieces, control=control))

    def _render(self, variables: Mapping[str, Any], add_generation_prompt: bool) -> str:
        if not variables["messages"]:
            raise OptionError("there is no message to answer; give at least one")
        values = {"documents": None, **self._special, **variables, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(values)
        except Exception as error:  # the template is a program of the bundle's: anything may come out of it
            message = error.message if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            raise OptionError(f"the chat template refused the messages: {message}") from error

    def _control(self, tokenizer: Tokenizer) -> ControlTokens:
        """The control tokens under this template; kept for the latest tokenizer."""
        latest = self._latest
        if latest is None or latest[0] is not tokenizer:
            structure = {
                text: token
                for text, token in tokenizer.ordinary_added.items()
                # In brackets: runs of newlines and common words are added tokens too, and text whoever writes them.
                if text[0] in "<[" and text[-1] in ">]" and text in self._written and text not in self._read
            }
            self._latest = latest = (tokenizer, ControlTokens({**tokenizer.control.ids, **structure}))
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


def _message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A message as templates expect it: content a string, no field that is None, reasoning under each of its names."""
    role = message.get("role")
    # A plain word: templates build control tokens from roles.
    if not isinstance(role, str) or not role.replace("_", "").replace("-", "").isalnum():
        raise OptionError(
            f"message {number} has the role {role!r}; it must be a word such as system, user or assistant"
        )
    result = {key: value for key, value in message.items() if value is not None}
    if "content" in message:
        result["content"] = _text(message["content"], number)
    for key, value in result.items():
        if isinstance(value, str):
            check_text(value, f"the {key} of message {number}")
    reasoning = next((result[name] for name in _REASONING if name in result), None)
    return result if reasoning is None else {"thinking": reasoning, **result, "reasoning_content": reasoning}


def _text(content: Any, number: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise OptionError(f"message {number} has content of type {type(content).__name__}; give a string or text parts")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise OptionError(
                f'message {number} has a part {kind!r}; only {{"type": "text", "text": "..."}} is supported'
            )
    return "".join(part["text"] for part in content)


def _marked(value: Any, control: ControlTokens, marks: tuple[str, str]) -> Any:
    """`value` with each control token's spelling, in any string within, between the two marks."""
    if isinstance(value, str):
        pieces = []
        done = 0
        for start, end in control.spans(value):
            pieces += [value[done:start], marks[0], value[start:end], marks[1]]
            done = end
        return "".join([*pieces, value[done:]])
    if isinstance(value, Mapping):
        return {_marked(key, control, marks): _marked(item, control, marks) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(item, control, marks) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise OptionError(f"a message holds a {type(value).__name__}; only what JSON can hold reaches a chat template")


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


def _literals(tree: nodes.Template) -> tuple[str, str]:
    """(what the template writes, what it looks for): its string constants, each list joined by null characters."""
    looking = (nodes.Compare, nodes.Call, nodes.Filter, nodes.Test, nodes.Getitem)
    read = {id(const) for node in tree.find_all(looking) for const in node.find_all(nodes.Const)}
    consts = [node for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    written = [node.data for node in tree.find_all(nodes.TemplateData)]
    written += [node.value for node in consts if id(node) not in read]
    return "\0".join(written), "\0".join(node.value for node in consts if id(node) in read)

"""Messages to a prompt: the model's own Jinja template, and the rule that control tokens come only from it.

Templates see what transformers offers them: the sandbox, `raise_exception`, `strftime_now`, `tojson`, loop controls,
the generation tag, the `*_token` variables. They are interpreted (edge/template) within a bound of work and memory.

A template sees the very text that it is given. Its output says of each character whether the template wrote it: its own
constants, the `*_token` variables, a message's role (which is a plain word) and numbers count as that, whatever a
message, a tool or another variable holds does not. A control token becomes an id where the template wrote all of its
characters, however it put them together; anywhere else its spelling is text.
Control tokens are the tokenizer's own, and ordinary added tokens in brackets that the template writes but never looks
for: it writes those as structure, while what it looks for (such as the tags around reasoning) is markup that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from edge.bundle import TEMPLATE, Bundle
from edge.control_tokens import ControlTokens
from edge.errors import BundleError, FormatError, OptionError, UnsupportedError, found_in
from edge.messages import Arguments, check_tools, prepare
from edge.template.analysis import literals, outside, tells_null
from edge.template.template import GLOBALS, Template
from edge.template.text import plain, template_runs, wrote
from edge.template.work import STEPS, CancelledError, LimitError, Work
from edge.tokenizer import Tokenizer

_SWITCHES = ("enable_thinking", "thinking")  # what templates call the variable that turns reasoning on and off
_GIVEN = ("messages", "tools", "add_generation_prompt")  # variables that are no option
_STEPS_A_CHARACTER = 4  # beside `STEPS`, for each character and value that a template is given
DEFAULT, TOOL_USE = "default", "tool_use"
_FOLDER, _ENDING = "chat_templates/", ".jinja"  # of the templates that are not the default


class ChatTemplate:
    """A chat template. `special` holds the variables that templates expect, such as {"bos_token": "<s>"}.

    `looks_at` are the names of the variables that it looks at. Safe for concurrent use.
    """

    def __init__(self, source: str, special: Mapping[str, str], *, name: str = DEFAULT, steps: int = STEPS) -> None:
        """Compile the template. `steps` bound the work of rendering. Raises FormatError for one that is not valid."""
        title = "the chat template" if name == DEFAULT else f"the chat template {name!r}"
        try:
            self._template = Template(source)
            tree = self._template.tree
            self.looks_at = outside(tree, set(GLOBALS))
            self._tells_null = tells_null(tree)
            self._written, self._read = literals(tree)
            self._words = frozenset([*self._written.split("\0"), *self._read.split("\0")])
        except TemplateSyntaxError as error:
            raise FormatError(f"{title} is not valid, line {error.lineno}: {error.message}") from error
        except (RecursionError, MemoryError) as error:
            raise FormatError(f"{title} is not valid: it is nested too deeply") from error
        except Exception as error:  # jinja2's parser on a number of too many digits, for one
            raise FormatError(f"{title} is not valid: {error}") from error
        self._special = {key: wrote(text) for key, text in special.items()}
        self._steps = steps
        self._latest: tuple[Tokenizer, ControlTokens] | None = None

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
        cancelled: Callable[[], bool] | None = None,
    ) -> str:
        """The prompt as text. Messages are mappings with a role and, mostly, content: a string, None (empty text), or
        a list of {"type": "text", "text": ...} parts, which are joined. `variables` are further ones of the template.

        Raises OptionError for messages or tools of another form, and for those that the template refuses, with its
        reason; FormatError for a template that does not come to an end within its bounds; CancelledError (of
        edge.template.work) once `cancelled` says so.
        """
        if tools is not None:
            check_tools(tools)
        given = {**(variables or {}), "tools": tools, "add_generation_prompt": add_generation_prompt}
        nulls = [True, False] if self._tells_null and any(_is_null(message) for message in messages) else [False]
        for null in nulls:
            told = prepare(messages, null=null, named=self._words)
            try:
                return self._render({**given, "messages": told}, cancelled)
            except OptionError as error:
                # A template that asks for null content in one place may fail on it in another.
                if not null or not isinstance(error.__cause__, TypeError):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _render(self, given: Mapping[str, Any], cancelled: Callable[[], bool] | None) -> str:
        if not given["messages"]:
            raise OptionError("there is no message to answer; give at least one")
        counted = _Counted()
        try:
            values = {"documents": None, **self._special, **counted.copy(given)}
        except RecursionError as error:
            raise OptionError("a message, tool or template variable is nested too deeply") from error
        for message in values["messages"]:
            message["role"] = wrote(message["role"])
        work = Work(self._steps + _STEPS_A_CHARACTER * counted.size, cancelled=cancelled)
        try:
            return self._template.render(values, work)
        except CancelledError:
            raise
        except LimitError as error:
            raise FormatError(f"the chat template of this model was stopped: {error}") from error
        except RecursionError as error:
            raise FormatError("the chat template of this model was stopped: it nests calls too deeply") from error
        except MemoryError as error:
            raise FormatError("the chat template of this model was stopped: it needs too much memory") from error
        except Exception as error:  # the template is a program of the bundle's: anything may come out of it
            message = error.message if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            raise OptionError(f"the chat template refused the messages: {message}") from error

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> list[int]:
        """The prompt as ids, starting with one bos if the tokenizer adds one; control tokens are the template's only.

        Raises as `render` does.
        """
        control = self._control(tokenizer)
        text = self.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables, cancelled=cancelled
        )
        return tokenizer.with_bos(tokenizer.encode_fragments(list(_fragments(text, control)), control=control))

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


class ChatTemplates:
    """The chat templates of one model, by name: the one called tool_use serves where tools are given."""

    def __init__(self, sources: Mapping[str, str], special: Mapping[str, str]) -> None:
        """Raises FormatError, which names the template, for one that is not valid."""
        self.source = "\n".join(sources.values())
        self._templates = {name: ChatTemplate(source, special, name=name) for name, source in sources.items()}

    def pick(self, *, tools: bool) -> ChatTemplate:
        """Raises UnsupportedError where none serves."""
        for name in (TOOL_USE, DEFAULT) if tools else (DEFAULT,):
            if name in self._templates:
                return self._templates[name]
        raise UnsupportedError(
            f"this model has no chat template called {DEFAULT}; it has {', '.join(sorted(self._templates))}"
        )

    def variables(self, thinking: bool | None, others: Mapping[str, Any], *, tools: bool = False) -> dict[str, Any]:
        """`ChatTemplate.variables` of the template that serves."""
        return self.pick(tools=tools).variables(thinking, others, tools=tools)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> list[int]:
        """`ChatTemplate.encode` of the template that serves."""
        template = self.pick(tools=bool(tools))
        return template.encode(messages, tokenizer, tools=tools, variables=variables, cancelled=cancelled)


def check_templates(default: str | None, others: Mapping[str, str], special: Mapping[str, str]) -> ChatTemplates | None:
    """The templates of a model, compiled; None where it has none. Raises FormatError, which names the template, for
    one that is not valid."""
    sources = {**({} if default is None else {DEFAULT: default}), **others}
    return ChatTemplates(sources, special) if sources else None


def read_templates(bundle: Bundle) -> ChatTemplates | None:
    """The templates in a bundle. Raises BundleError for one that is not valid."""
    names = [name for name in bundle.manifest.files if name.startswith(_FOLDER) and name.endswith(_ENDING)]
    others = {name[len(_FOLDER) : -len(_ENDING)]: bundle.read_text(name) or "" for name in names}
    with found_in(BundleError, bundle.path):
        return check_templates(bundle.read_text(TEMPLATE), others, bundle.manifest.tokenizer.special)


class _Counted:
    """Copies what a template is given into plain lists and dicts; `size` counts the values and characters."""

    def __init__(self) -> None:
        self.size = 0

    def copy(self, value: Any) -> Any:
        self.size += 1
        if isinstance(value, str):
            self.size += len(value)
            return plain(value)
        if isinstance(value, Arguments):
            return Arguments(self.copy(dict(value)), self.copy(str(value)))
        if isinstance(value, Mapping):
            return {self.copy(key): self.copy(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(item) for item in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        kind = type(value).__name__
        raise OptionError(f"a message, tool or template variable holds a {kind}; only what JSON can hold is allowed")


def _is_null(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("content") is None


def _fragments(text: str, control: ControlTokens) -> Iterator[str | int]:
    """`text` cut at the control tokens that the template wrote: their ids, and the plain text between them."""
    whole, done = plain(text), 0
    for start, stop in template_runs(text):
        for first, last in control.spans(whole[start:stop]):
            yield whole[done : start + first]
            yield control.ids[whole[start + first : start + last]]
            done = start + last
    yield whole[done:]

"""`dsedge run`: one streamed answer, or a chat."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import edge
from edge import store
from edge.catalog import load_catalog, shipped
from edge.commands import answer, terminal
from edge.commands.complete import KvDtypeOption, all_names
from edge.errors import NotFoundError, OptionError, StorageError
from edge.kv import KvDtype, Policy
from edge.messages import check_tools
from edge.options import GenerateOptions, RuntimeOptions

if TYPE_CHECKING:
    from edge.pipeline import Pipeline, Tools

_SAMPLING = "Sampling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Answer a prompt, or chat.

    With PROMPT, or with text on stdin, one answer goes to stdout. Otherwise a chat starts.
    """

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A name that `dsedge list` shows, or a bundle's folder.", autocompletion=all_names
        ),
    ] = shipped().default
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to ask; '-' reads it from stdin.")] = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System prompt.")] = None
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, to its last space, without the chat template.")
    ] = False
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="Let the model reason first, or not. [default: as it is made]"),
    ] = None
    template_var: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A variable for the chat template, JSON or else plain text; repeatable."
        ),
    ] = None
    tools: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON list of functions that the model may call, as in the OpenAI API; its calls are shown, not made.",
        ),
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens of an answer. [default: what fits]")
    ] = None
    temperature: Annotated[float, typer.Option(metavar="X", help="0 always takes the likeliest token.")] = 0.0
    top_k: Annotated[int, typer.Option(metavar="N", help="Draw from the k likeliest tokens; 0: off.")] = 0
    top_p: Annotated[
        float, typer.Option(metavar="X", help="Draw from the likeliest tokens that hold this much probability.")
    ] = 1.0
    min_p: Annotated[
        float, typer.Option(metavar="X", help="Draw from tokens at least this likely, relative to the likeliest.")
    ] = 0.0
    repetition_penalty: Annotated[float, typer.Option(metavar="X", help="Above 1: seen tokens become less likely.")] = (
        1.0
    )
    presence_penalty: Annotated[
        float, typer.Option(metavar="X", help="Taken off the logit of a generated token, once.")
    ] = 0.0
    frequency_penalty: Annotated[float, typer.Option(metavar="X", help="Taken off the logit for every occurrence.")] = (
        0.0
    )
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=VALUE", help="Added to a token's logit; repeatable.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Makes an answer repeatable. [default: a fresh one]")
    ] = None
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Text that ends the answer; repeatable.")] = (
        None
    )
    context: Annotated[int | None, typer.Option(metavar="N", help="Tokens that the KV cache holds.")] = None
    policy: Annotated[
        str,
        typer.Option(
            metavar="error|sliding",
            help="When the context is full: refuse, or drop the oldest tokens, the system prompt first (see --sinks).",
        ),
    ] = "error"
    sinks: Annotated[int, typer.Option(metavar="N", help="First tokens that `sliding` keeps for ever.")] = 0
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads. [default: the physical cores]")] = None
    runtime: Annotated[str, typer.Option(metavar="NAME", help="Backend; see `dsedge doctor`.")] = "auto"
    device: Annotated[str, typer.Option(metavar="NAME", help="Device of the backend; see `dsedge doctor`.")] = "auto"
    kv_dtype: KvDtypeOption = "auto"
    stats: Annotated[bool, typer.Option("--stats", help="Speed and memory of each answer, on stderr.")] = False
    json: Annotated[bool, typer.Option("--json", help="The answer and its figures as one line of JSON.")] = False

    def execute(self) -> int:
        runtime, generate = self._runtime_options(), self._generate_options()
        for_template = (self.system, self.thinking, self.template_var or None, self.tools)
        if self.raw and any(value is not None for value in for_template):
            raise OptionError(
                "--raw uses no chat template, so --system, --thinking, --template-var and --tools have no place to go; "
                "leave one of them out"
            )
        tools = None if self.tools is None else _read_tools(Path(self.tools))
        chatting = self.prompt is None and sys.stdin.isatty()
        if chatting and (self.raw or self.json):
            raise OptionError("--raw and --json are for one answer; give a PROMPT, or text on stdin")
        path = _find(self.model)  # first: whoever forgets MODEL has put the prompt in its place
        prompt = None if chatting else self._read_prompt()
        with edge.load(path or _pull(self.model), runtime) as pipeline:
            if prompt is not None:
                return self._answer(pipeline, prompt, generate, tools)
            from edge.commands.chat import Chat

            return Chat(pipeline, generate, system=self._system(), tools=tools, stats=self.stats).loop()

    def _answer(self, pipeline: Pipeline, prompt: str, options: GenerateOptions, tools: Tools | None) -> int:
        system = self._system()
        messages = [] if system is None else [{"role": "system", "content": system}]
        request = prompt if self.raw else [*messages, {"role": "user", "content": prompt}]
        result = answer.stream(pipeline, request, options, raw=self.raw, tools=tools, show=not self.json)
        if self.json:
            terminal.print_json({"model": self.model, "runtime": pipeline.runtime.name, **asdict(result)})
        answer.report(result, options, stats=self.stats)
        return answer.INTERRUPTED if result.finish_reason == "cancel" else 0

    def _read_prompt(self) -> str:
        """The prompt, from the command line or from stdin. An empty one is a mistake."""
        text = _read_stdin(raw=self.raw) if self.prompt in (None, "-") else _as_utf8(self.prompt)
        if not text:
            raise OptionError("the prompt is empty; give it as an argument or on stdin")
        return text

    def _system(self) -> str | None:
        return None if self.system is None else _as_utf8(self.system)

    def _runtime_options(self) -> RuntimeOptions:
        if self.policy not in ("error", "sliding"):
            raise OptionError(f"policy is {self.policy!r}; it must be error or sliding")
        return RuntimeOptions(
            runtime=self.runtime,
            device=self.device,
            context=self.context,
            policy=cast(Policy, self.policy),
            sinks=self.sinks,
            threads=self.threads,
            kv_dtype=cast(KvDtype, self.kv_dtype),
        )

    def _generate_options(self) -> GenerateOptions:
        return GenerateOptions(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=dict(_bias(item) for item in self.logit_bias or ()),
            seed=self.seed,
            stop=tuple(_as_utf8(text) for text in self.stop or ()),
            thinking=self.thinking,
            chat_template_kwargs=dict(_variable(_as_utf8(item)) for item in self.template_var or ()),
        )


def _read_stdin(*, raw: bool) -> str:
    """The text on stdin, to the last space if `raw`, otherwise without white space around it.

    Raises OptionError where its bytes are none in the system's encoding (a code page, often), StorageError where it
    cannot be read.
    """
    if raw and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(newline="")  # on Windows, ends of lines would become others
    try:
        text = sys.stdin.read()
        text.encode("utf-8")  # bytes that stdin lets through as half a surrogate pair
    except OSError as error:
        raise StorageError(f"stdin cannot be read: {error.strerror}") from error
    except UnicodeError as error:
        raise OptionError(
            f"the text on stdin is not {sys.stdin.encoding}; convert it, or set PYTHONIOENCODING to its encoding"
        ) from error
    return text if raw else text.strip()


def _as_utf8(word: str) -> str:
    """A word of the command line as the UTF-8 that it is, under a locale that took it for something else (LC_ALL=C)."""
    if word.isascii():
        return word
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError:
        return word  # what is no text then is refused where it is used


def _find(model: str) -> Path | None:
    """The bundle's folder, or None for a model that is in the catalogue and not yet in the store."""
    if model in load_catalog().models and model not in store.names():
        return None
    return store.resolve(model)


def _pull(model: str) -> Path:
    from edge.commands.models import pull

    return pull(model)


def _variable(text: str) -> tuple[str, Any]:
    """A template's variable: `true`, `3` or `["a"]` as JSON, anything else as text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise OptionError(f"template variable {text!r} is not NAME=VALUE, such as enable_thinking=false")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _read_tools(path: Path) -> Tools:
    """The functions in a file. Raises NotFoundError or OptionError."""
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFoundError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path}: is not JSON: {error}") from error
    check_tools(tools, str(path))
    return cast("Tools", tools)


def _bias(text: str) -> tuple[int, float]:
    identity, _, value = text.partition("=")
    try:
        return int(identity), float(value)
    except ValueError as error:
        raise OptionError(f"logit bias {text!r} is not ID=VALUE, such as 42=-1.5") from error

"""`dsedge run`: one streamed answer, or a chat."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import edge
from edge import store, texts
from edge.catalog import shipped
from edge.commands import answer, fitting, given, terminal
from edge.commands.complete import (
    ComputeOption,
    DeviceOption,
    KvDtypeOption,
    KvOption,
    RuntimeOption,
    WeightsOption,
    all_names,
    among,
    one_of,
)
from edge.errors import OptionError, PromptTooLongError
from edge.kv import KvDtype
from edge.kv.policies import POLICIES
from edge.options import Compute, GenerateOptions, KvPlace, RuntimeOptions, WeightForm

if TYPE_CHECKING:
    from edge.pipeline import Pipeline, Tools

_SAMPLING = "Sampling"

_OWN = "[default: the model's own]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Answer a prompt, or chat.

    With PROMPT, or with text on stdin, one answer goes to stdout; of both, PROMPT, a blank line and the text are sent.
    Otherwise a chat starts.
    """

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A name that `dsedge list` shows, or a bundle's folder.", autocompletion=all_names
        ),
    ] = shipped().default
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to ask; the text on stdin follows it, or is all of it.")
    ] = None
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
    session: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Go on with the conversation of this file, and write it there in the end."),
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens of an answer. [default: what fits]")
    ] = None
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help=f"0 always takes the likeliest token. {_OWN}")
    ] = None
    top_k: Annotated[
        int | None, typer.Option(metavar="N", help=f"Draw from the k likeliest tokens; 0: off. {_OWN}")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(metavar="X", help=f"Draw from the likeliest tokens that hold this much probability. {_OWN}"),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(metavar="X", help=f"Draw from tokens at least this likely, relative to the likeliest. {_OWN}"),
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(metavar="X", help=f"Above 1: seen tokens become less likely. {_OWN}")
    ] = None
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
    context: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Tokens that the KV cache holds; auto: what free memory holds. [default: the model's, at most 4096]",
            autocompletion=among(["auto"]),
        ),
    ] = None
    policy: Annotated[
        str | None,
        one_of(
            [*POLICIES],
            "When the context is full: "
            + "; ".join(f"{name}: {policy.summary}" for name, policy in POLICIES.items())
            + ". [default: error; a chat drops its oldest turns]",
        ),
    ] = None
    sinks: Annotated[
        int | None,
        typer.Option(metavar="N", help="First tokens that `sliding` and `evict` keep for ever. [default: 4]"),
    ] = None
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads. [default: the physical cores]")] = None
    runtime: RuntimeOption = "auto"
    device: DeviceOption = "auto"
    kv_dtype: KvDtypeOption = "auto"
    compute: ComputeOption = "auto"
    weights: WeightsOption = "auto"
    kv: KvOption = "auto"
    stats: Annotated[bool, typer.Option("--stats", help="Speed and memory of each answer, on stderr.")] = False
    json: Annotated[bool, typer.Option("--json", help="The answer and its figures as one line of JSON.")] = False
    stream: Annotated[
        bool, typer.Option("--stream", help="With --json: a line for each piece first, as soon as it is there.")
    ] = False

    def execute(self) -> int:
        runtime, generate = self._runtime_options(), self._generate_options()
        for_template = (self.system, self.thinking, self.template_var or None, self.tools, self.session)
        if self.raw and any(value is not None for value in for_template):
            raise OptionError(
                "--raw uses no chat template, so --system, --thinking, --template-var, --tools and --session have no "
                "place to go; leave one of them out"
            )
        tools = None if self.tools is None else given.read_tools(self.tools)
        chatting = self.prompt is None and sys.stdin.isatty()
        if self.stream and not self.json:
            raise OptionError("--stream is for --json; an answer is shown as it grows without it")
        if chatting and (self.raw or self.json):
            raise OptionError("--raw and --json are for one answer; give a PROMPT, or text on stdin")
        path = _find(self.model)  # first: whoever forgets MODEL has put the prompt in its place
        prompt = None if chatting else given.read_prompt(self.prompt, raw=self.raw)
        with edge.load(path or _pull(self.model), runtime) as pipeline:
            if not pipeline.bundle.manifest.tokenizer.eos:
                terminal.note("no token is known that ends this model's turn: its answers go on until their limit")
            if prompt is not None:
                return self._answer(pipeline, prompt, generate, tools)
            return self._chat(pipeline, generate, tools)

    def _answer(self, pipeline: Pipeline, prompt: str, options: GenerateOptions, tools: Tools | None) -> int:
        from edge.commands.conversation import Conversation
        from edge.commands.kept import Kept

        conversation, turn = Conversation(self._system()), [{"role": "user", "content": prompt}]
        kept = Kept(self.session, pipeline)
        kept.read(conversation)
        request = prompt if self.raw else conversation.request(turn)
        try:
            page = answer.Lines() if self.stream else None if self.json else answer.Page()
            result = answer.stream(pipeline, request, options, raw=self.raw, tools=tools, page=page)
        except PromptTooLongError as error:
            raise fitting.too_long(error, pipeline) from error
        if result.text or result.tool_calls:
            conversation.messages += [*turn, result.to_message()]
        kept.write(conversation)
        if self.json:
            terminal.print_json({"model": self.model, "runtime": pipeline.runtime.name, **asdict(result)})
        answer.report(result, options, stats=self.stats, when_full=fitting.larger(pipeline), pipeline=pipeline)
        return answer.INTERRUPTED if result.finish_reason == "cancel" else 0

    def _chat(self, pipeline: Pipeline, options: GenerateOptions, tools: Tools | None) -> int:
        from edge.commands.chat import Chat, open_entry
        from edge.commands.kept import Kept

        drops = self.policy != "error"
        chat = Chat(pipeline, options, entry=open_entry(), system=self._system(), tools=tools, drops=drops)
        chat.stats = self.stats
        kept = Kept(self.session, pipeline)
        kept.read(chat.conversation)
        code = chat.loop()
        kept.write(chat.conversation)
        return code

    def _system(self) -> str | None:
        return None if self.system is None else texts.decode_word(self.system)

    def _runtime_options(self) -> RuntimeOptions:
        return RuntimeOptions(
            runtime=self.runtime,
            device=self.device,
            context=given.context(self.context),
            policy=self.policy or "error",
            sinks=self.sinks,
            threads=self.threads,
            kv_dtype=cast(KvDtype, self.kv_dtype),
            compute=cast(Compute, self.compute),
            weights=cast(WeightForm, self.weights),
            kv=cast(KvPlace, self.kv),
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
            logit_bias=dict(given.bias(item) for item in self.logit_bias or ()),
            seed=self.seed,
            stop=tuple(texts.decode_word(text) for text in self.stop or ()),
            thinking=self.thinking,
            chat_template_kwargs=dict(given.variable(item) for item in self.template_var or ()),
        )


def _find(model: str) -> Path | None:
    """The bundle's folder, or None for a model that a pull can get and the store lacks."""
    return None if store.to_pull(model) else store.resolve(model)


def _pull(model: str) -> Path:
    from edge.commands.models import pull

    return pull(model)

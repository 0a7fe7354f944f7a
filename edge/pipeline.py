"""An opened model, and generation in three layers: `tokens` (ids and timing), `stream` (text), `complete` (a result).

Answers of a pipeline are computed together, in steps (see edge.engine): any number of threads may read any number of
them, in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any

from edge import turns
from edge.bundle import Bundle, open_bundle
from edge.calls import control_tags, find_formats
from edge.chat import read_templates
from edge.engine import Engine, Readers
from edge.errors import BundleError, OptionError, found_in
from edge.generation import Stream, TokenRun
from edge.kv import plan_layout, policies
from edge.lifecycle import close_at_exit
from edge.options import GenerateOptions, RuntimeOptions
from edge.paths import expanded
from edge.reasoning import find_tags, is_opened
from edge.results import Request, Result
from edge.runtime import Runtime, open_runtime, widest_chunk
from edge.saving import Saved
from edge.sections import Splitter
from edge.session import common
from edge.sizing import check_memory, context_of, sequences_of
from edge.stream import TextStream
from edge.template.work import CancelledError
from edge.tokenizer import open_tokenizer

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class Pipeline:
    """An opened model: bundle, runtime, tokenizer, keys and values. A context manager that frees it all."""

    def __init__(self, bundle: Bundle, options: RuntimeOptions | None = None) -> None:
        """Raises BundleError, DeviceError or OptionError; nothing stays open then."""
        options = RuntimeOptions() if options is None else options
        if not isinstance(options, RuntimeOptions):
            raise OptionError(f"the options are of the type {type(options).__name__}; they must be RuntimeOptions")
        context = context_of(bundle, options)
        sinks = options.sinks
        if sinks is None:
            sinks = min(policies.find(options.policy).sinks, context - 1)
        layout = plan_layout(
            bundle.spec,
            context,
            chunk=widest_chunk(bundle, options),
            sinks=sinks,
            sequences=sequences_of(bundle, context, options),
            policy=options.policy,
        )
        check_memory(bundle, 0, context)
        self.bundle = bundle
        self.options = options
        self.tokenizer = open_tokenizer(bundle)
        self._padded = self.tokenizer.padded(bundle.spec.vocab_size)
        self.template = read_templates(bundle)
        source = self.template.source if self.template else ""
        self.think_tags = find_tags(source, self.tokenizer)
        self.call_formats = find_formats(source, self.tokenizer)
        self.runtime: Runtime = open_runtime(bundle, layout, options)
        try:
            reserved = self.runtime.kv_bytes if layout.storage == "memory" else 0
            check_memory(bundle, reserved, context)  # reserved only: it is taken while a context fills
            self._readers = Readers(Engine(self.runtime))
        except OptionError:
            self.runtime.close()
            raise
        close_at_exit(self._readers)

    def encode(
        self,
        prompt: Messages | str,
        options: GenerateOptions | None = None,
        *,
        raw: bool = False,
        tools: Tools | None = None,
    ) -> list[int]:
        """The ids of a prompt: messages or one user message through the template, or with `raw` the text itself.

        `tools` are function descriptions as the OpenAI API has them; of the options, those for the template count.
        Raises OptionError for what cannot be a prompt, and what `ChatTemplate.variables` raises.
        """
        return self._encode(prompt, _checked(options), raw, tools)

    def _encode(
        self,
        prompt: Messages | str,
        options: GenerateOptions,
        raw: bool,
        tools: Tools | None,
        cancelled: Callable[[], bool] | None = None,
    ) -> list[int]:
        """`encode`; raises CancelledError once `cancelled` says so, while the template renders."""
        if raw:
            if not isinstance(prompt, str) or tools or options.thinking is not None or options.chat_template_kwargs:
                raise OptionError(
                    "a raw prompt is a text; messages, tools, thinking and template variables need the model's template"
                )
            with found_in(BundleError, self.bundle.path):  # of a text that the tokenizer's own file cannot encode
                return self.tokenizer.encode_prompt(prompt)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if self.template is None:
            raise OptionError(f"{self.bundle.manifest.name} has no chat template; use it raw, as a text to continue")
        variables = self.template.variables(options.thinking, options.chat_template_kwargs, tools=bool(tools))
        with found_in(BundleError, self.bundle.path):  # of a template that does not end within its bounds
            return self.template.encode(
                messages, self.tokenizer, tools=tools or None, variables=variables, cancelled=cancelled
            )

    def _head(self, messages: Messages, ids: Sequence[int], encode: Callable[[Messages], list[int]]) -> int:
        """How many first ids are of what stands before the first turn: another conversation would have them as well."""
        start = next(iter(turns.begins(messages)), None)
        if start is None:
            return 0
        content = str(messages[start].get("content"))
        another = {"role": "user", "content": "b" if content.startswith("a") else "a"}
        return common(ids, encode([*messages[:start], another]), len(ids))

    def _fit(self, messages: Messages, encode: Callable[[Messages], list[int]]) -> tuple[list[int], int, int]:
        """The ids of messages under the policy, how many of them stay for ever, and how many turns were left out."""
        policy, ids = policies.find(self.options.policy), encode(messages)
        if not policy.sinks:
            return ids, 0, 0
        head, left_out = self._head(messages, ids, encode), 0
        if policy.turns:
            context = self.runtime.layout.context
            left_out = turns.dropped(
                messages, lambda some: len(encode(some)), context=context, total=len(ids), head=head
            )
        if left_out:
            starts = turns.begins(messages)
            ids = encode([*messages[: starts[0]], *messages[starts[left_out] :]])
        return ids, head, left_out

    def tokens(
        self,
        prompt: Sequence[int],
        options: GenerateOptions | None = None,
        *,
        cancel: threading.Event | None = None,
        pinned: int = 0,
    ) -> TokenRun:
        """Generate ids after a prompt of ids, of which a policy that drops tokens keeps the first `pinned` longest.

        Raises OptionError for an empty prompt or ids outside the vocabulary.
        """
        vocab = self.bundle.spec.vocab_size
        options = _checked(options)
        if isinstance(prompt, str) or not all(isinstance(token, Integral) for token in prompt):
            raise OptionError("a prompt of `tokens` is a list of ids; `encode` makes them, and `stream` takes a text")
        if not prompt:
            raise OptionError("the prompt is empty; at least one token is needed")
        if not all(0 <= token < vocab for token in prompt):
            raise OptionError(f"a prompt id is outside the vocabulary of {vocab}")
        wrong = set(self._padded).intersection(prompt)
        if wrong:
            raise OptionError(f"the prompt id {min(wrong)} has no token: it only fills up the model's {vocab} rows")
        return self._run(prompt, options, cancel or threading.Event(), pinned)

    def _run(
        self, prompt: Sequence[int], options: GenerateOptions, cancel: threading.Event, pinned: int = 0
    ) -> TokenRun:
        manifest = self.bundle.manifest
        request = Request(
            prompt=tuple(prompt),
            eos=manifest.tokenizer.eos,
            vocab_size=self.bundle.spec.vocab_size,
            options=options,
            cancel=cancel,
            sampling=manifest.sampling,
            padded=self._padded,
            pinned=pinned,
        )
        return TokenRun(self._readers, request)

    def stream(
        self,
        prompt: Messages | str,
        options: GenerateOptions | None = None,
        *,
        raw: bool = False,
        tools: Tools | None = None,
        cancel: threading.Event | None = None,
    ) -> Stream:
        """Generate text after messages, a user message, or with `raw` a text to continue. `encode` says what may raise.

        Reasoning is told from the answer, except in the continuation of a raw text, and so are calls where the prompt
        offers tools: by `tools`, a template variable such as `xml_tools`, or a message's field. Stop strings end all.
        """
        options, cancel = _checked(options), cancel or threading.Event()
        try:
            pinned = left_out = 0
            if raw or isinstance(prompt, str):
                ids = self._encode(prompt, options, raw, tools, cancel.is_set)
            else:
                ids, pinned, left_out = self._fit(
                    prompt, lambda messages: self._encode(messages, options, raw, tools, cancel.is_set)
                )
            run = self.tokens(ids, options, cancel=cancel, pinned=pinned)
            run.progress.dropped_turns = left_out
        except CancelledError:  # an answer that was cancelled before its first token, without a prompt
            ids = []
            run = self._run(ids, options, cancel)
        tags = None if raw else self.think_tags
        formats = self.call_formats if tools or _offers_tools(prompt, options) else ()
        spelled = {**(tags.spelled if tags else {}), **control_tags(formats, self.tokenizer)}
        splitter = Splitter(tags, formats, opened=tags is not None and is_opened(ids, tags, self.tokenizer))
        return Stream(run, TextStream(self.tokenizer, options.stop, spelled=spelled), splitter, self.runtime.layout)

    def complete(
        self,
        prompt: Messages | str,
        options: GenerateOptions | None = None,
        *,
        raw: bool = False,
        tools: Tools | None = None,
        cancel: threading.Event | None = None,
    ) -> Result:
        """Like `stream`, all at once."""
        stream = self.stream(prompt, options, raw=raw, tools=tools, cancel=cancel)
        for _ in stream:
            pass
        assert stream.result is not None
        return stream.result

    def reset(self) -> None:
        """Forget all conversations: the next prompt is prefilled whole."""
        self._readers.forget()

    def save(self, path: str | Path, prompt: Messages | Sequence[int], note: Any = None) -> int:
        """Write what has been computed of a conversation, so that it goes on from there in another process.

        `prompt` is the conversation so far, as messages or ids; `note` any JSON, which `load_session` gives back.
        Returns how many of its tokens the file holds. Raises OptionError where that is none, StorageError.
        """
        ids = prompt if not prompt or isinstance(prompt[0], Integral) else self.encode(prompt)  # type: ignore[arg-type]
        return self._readers.save(expanded(str(path)), self.bundle, ids, note)  # type: ignore[arg-type]

    def load_session(self, path: str | Path) -> Saved:
        """Read a conversation that `save` wrote: the next prompt that begins like it goes on from there.

        Raises FormatError for a damaged file, OptionError for one of another bundle, context or policy.
        """
        return self._readers.load(expanded(str(path)), self.bundle)

    def close(self) -> None:
        """Free everything, once the forward that runs right now is done. Idempotent.

        An unfinished answer, whoever reads it, ends with what there is of it and the finish reason "cancel". Answers
        that have not begun raise ClosedError.
        """
        self._readers.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked(options: GenerateOptions | None) -> GenerateOptions:
    """The options, or the default ones. Raises OptionError for what is none."""
    options = GenerateOptions() if options is None else options
    if not isinstance(options, GenerateOptions):
        raise OptionError(f"the options are of the type {type(options).__name__}; they must be GenerateOptions")
    return options


def _offers_tools(prompt: Messages | str, options: GenerateOptions) -> bool:
    """Whether tools come another way than as `tools`: in what some templates read instead."""
    messages = () if isinstance(prompt, str) else prompt
    by_variable = any(name.endswith("tools") and value for name, value in options.chat_template_kwargs.items())
    return by_variable or any(message.get("tools") or message.get("functions") for message in messages)


def load(name_or_path: str | Path, options: RuntimeOptions | None = None) -> Pipeline:
    """Open a model by its name in the store, or a bundle by its path.

    Raises NotFoundError for neither, BundleError for a damaged bundle, DeviceError where no backend can run it.
    """
    from edge.store import resolve

    return Pipeline(open_bundle(resolve(name_or_path)), options)

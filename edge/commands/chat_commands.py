"""The commands of a chat: one table, from which the help and the completions are made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge import texts
from edge.commands import answer, given, terminal
from edge.errors import OptionError, StorageError
from edge.files import write_whole
from edge.options import GenerateOptions
from edge.paths import expanded

if TYPE_CHECKING:
    from edge.commands.chat import Chat

SETTINGS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
)


class Leave(Exception):  # noqa: N818 (it is no error)
    """The person leaves the chat."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its names, the first of which the help shows; what follows it, and the values known for that."""

    names: tuple[str, ...]
    argument: str
    meaning: str
    act: Callable[[Chat, str], None]
    values: tuple[str, ...] = ()
    takes_file: bool = False


def run_command(chat: Chat, line: str) -> None:
    """Raises OptionError for a command that there is not, and what the command raises."""
    name, rest = _parted(line)
    for command in COMMANDS:
        if name in command.names:
            command.act(chat, rest)
            return
    known = ", ".join(command.names[0] for command in COMMANDS)
    raise OptionError(f"unknown command {name}; known are {known}. Text that begins with a slash: // or a space first")


def _parted(text: str) -> tuple[str, str]:
    """The first word, and what follows it."""
    name, *rest = text.split(maxsplit=1) or [""]
    return name, "".join(rest).strip()


def _help(chat: Chat, _: str) -> None:
    for command in COMMANDS:
        shown = " ".join([command.names[0], command.argument]).strip()
        others = f" ({', '.join(command.names[1:])})" if command.names[1:] else ""
        terminal.note(f"{shown:16} {command.meaning}{others}", indent=17)
    for line in HINTS:
        terminal.note(line)


def _clear(chat: Chat, _: str) -> None:
    chat.conversation.clear()
    terminal.note("the conversation starts anew")


def _system(chat: Chat, text: str) -> None:
    if text:
        chat.conversation.system = None if text == '""' else text
    system = chat.conversation.system
    terminal.note(f"system prompt: {'none' if system is None else system}")


def _set(chat: Chat, rest: str) -> None:
    """One setting of generation, or all of them shown."""
    name, text = _parted(rest)
    name = name.replace("-", "_")
    if name and name not in SETTINGS:
        raise OptionError(f"/set does not know {name!r}; it knows {', '.join(SETTINGS)}")
    if name and not text:
        raise OptionError(f"/set {name} needs a value; `/set {name} default` is as it was made")
    if name:
        chat.set_options(replace(chat.options, **{name: _value(name, text)}))
    own = chat.options.sampling(chat.pipeline.bundle.manifest.sampling)
    for shown in [name] if name else SETTINGS:
        value = getattr(own if hasattr(own, shown) else chat.options, shown)
        terminal.note(
            f"{shown}: {'default' if value is None else ', '.join(value) or 'none' if shown == 'stop' else value}"
        )


def _value(name: str, text: str) -> Any:
    default = next(field for field in fields(GenerateOptions) if field.name == name).default
    if text == "default":
        return default
    try:
        value = texts.parse_json(text)
    except ValueError:
        value = text
    return str(value) if name == "stop" else value


def _thinking(chat: Chat, word: str) -> None:
    if word not in ("on", "off"):
        raise OptionError("/thinking is followed by on or off")
    chat.set_options(replace(chat.options, thinking=word == "on"))
    terminal.note(f"thinking: {word}")


def _result(chat: Chat, text: str) -> None:
    """The result of the next call that has none; the last one goes on with the conversation."""
    left = chat.conversation.give_result(text)
    if left:
        terminal.note(f"{left} more to give")
    else:
        chat.ask(*chat.conversation.take_results())


def _retry(chat: Chat, _: str) -> None:
    before = chat.conversation.take_answer()
    if before is None:
        raise OptionError("there is no answer to give anew")
    count = len(chat.conversation.messages)
    try:
        chat.ask()
    finally:
        if len(chat.conversation.messages) == count:  # no new answer came: the old one stays
            chat.conversation.messages.append(before)


def _undo(chat: Chat, _: str) -> None:
    if not chat.conversation.undo():
        raise OptionError("there is no turn to take back")
    terminal.note("the last turn is taken back")


def _save(chat: Chat, name: str) -> None:
    path = _file("/save", name)
    if path.exists():
        terminal.note(f"{path} is there already; overwrite it? [y/N]")
        if chat.entry.read().strip().lower() not in ("y", "yes"):
            terminal.note("not saved")
            return
    saved = {"model": chat.pipeline.bundle.manifest.name, **chat.conversation.to_json()}
    try:
        write_whole(path, json.dumps(saved, ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    terminal.note(f"saved {len(chat.conversation.messages)} messages to {path}")


def _load(chat: Chat, name: str) -> None:
    path = _file("/load", name)
    data = given.read_json(path)
    try:
        chat.conversation.load(data)
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from error
    terminal.note(f"loaded {len(chat.conversation.messages)} messages from {path}")


def _file(command: str, name: str) -> Path:
    if not name:
        raise OptionError(f"{command} needs the name of a file")
    return expanded(name)


def _stats(chat: Chat, word: str) -> None:
    if word in ("on", "off"):
        chat.stats = word == "on"
        terminal.note(f"figures after every answer: {word}")
    else:
        terminal.note(answer.describe(chat.last) if chat.last else "no answer yet")


def _leave(chat: Chat, _: str) -> None:
    raise Leave


COMMANDS: tuple[Command, ...] = (
    Command(("/help", "/?"), "", "this list", _help),
    Command(("/clear", "/reset"), "", "forget the conversation; the system prompt stays", _clear),
    Command(("/retry",), "", "another answer in place of the last one", _retry),
    Command(("/undo",), "", "take the last message and its answer back", _undo),
    Command(("/system",), "TEXT", 'set the system prompt; "" removes it, nothing shows it', _system),
    Command(("/set",), "NAME VALUE", "set how answers are drawn; without a name show it", _set, SETTINGS),
    Command(("/thinking",), "on|off", "let the model reason before it answers, or not", _thinking, ("on", "off")),
    Command(("/result",), "TEXT", "what a tool that the model called gave; nothing is called by itself", _result),
    Command(("/save",), "FILE", "write the conversation to a file", _save, takes_file=True),
    Command(("/load",), "FILE", "go on with a conversation of a file", _load, takes_file=True),
    Command(("/stats",), "[on|off]", "figures of the last answer, or of every one", _stats, ("on", "off")),
    Command(("/bye", "/quit", "/exit"), "", "leave; so does Ctrl-D, or Ctrl-C twice", _leave),
)
HINTS = (
    'Alt-Enter begins a new line; so does Enter after """, until the next """ ends the text.',
    "Text that begins with a slash is entered with a space or a second slash before it.",
    "Ctrl-C stops an answer and keeps the conversation.",
)

"""A conversation that lasts in a file: `dsedge run --session FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge.commands import terminal
from edge.commands.conversation import Conversation
from edge.errors import OptionError
from edge.paths import expanded

if TYPE_CHECKING:
    from edge.pipeline import Pipeline


class Kept:
    """The file of a conversation. Without a name nothing is read or written."""

    def __init__(self, name: str | None, pipeline: Pipeline) -> None:
        self._path: Path | None = None if name is None else expanded(name)
        self._pipeline = pipeline

    def read(self, conversation: Conversation) -> None:
        """Go on where the file's conversation was, if it is there. A system prompt that was given takes its place."""
        if self._path is None or not self._path.exists():
            return
        found, system = self._pipeline.load_session(self._path), conversation.system
        try:
            conversation.load(found.note)
        except OptionError as error:
            raise OptionError(f"{self._path}: {error}") from error
        conversation.system = conversation.system if system is None else system
        terminal.note(f"going on with {len(conversation.messages)} messages of {self._path}")
        if not found.exact:
            terminal.note("another runtime or kv_dtype wrote it: keys and values are rounded as this one keeps them")

    def write(self, conversation: Conversation) -> None:
        """Write what was said, and what was computed of it. Without an answer the file stays as it is."""
        if self._path is not None and conversation.messages:
            self._pipeline.save(self._path, conversation.request(), conversation.to_json())

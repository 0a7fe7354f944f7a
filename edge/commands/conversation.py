"""What was said in a chat: a system prompt and messages in turns, of which the oldest may no longer be sent.

Turns are those of edge.turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge import turns
from edge.errors import OptionError
from edge.messages import prepare

Message = dict[str, Any]


class Conversation:
    """`messages` are all that were said; those from `first` on, where a turn begins, are still sent."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.messages: list[Message] = []
        self.results: list[Message] = []  # of the latest answer's calls, until all of them are there
        self.first = 0

    @property
    def sent(self) -> list[Message]:
        return self.messages[self.first :]

    def request(self, turn: Sequence[Message] = ()) -> list[Message]:
        """What the model gets: the system prompt, what was said, and the messages to answer."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.sent, *turn]

    def drop_oldest(self, turn: Sequence[Message] = ()) -> bool:
        """No longer send the oldest turn; False where there is none besides the one that `turn` belongs to."""
        begins = [index for index in turns.begins(self.messages) if index > self.first]
        fresh = bool(turn) and turn[0]["role"] == "user"
        if not begins and not (fresh and self.sent):
            return False
        self.first = begins[0] if begins else len(self.messages)
        return True

    def clear(self) -> None:
        self.messages.clear()
        self.results.clear()
        self.first = 0

    def undo(self) -> int:
        """Take the last turn back; how many messages it had."""
        begins = turns.begins(self.messages)
        start = begins[-1] if begins else 0
        count = len(self.messages) - start
        del self.messages[start:]
        self.results.clear()
        self.first = min(self.first, len(self.messages))
        return count

    def take_answer(self) -> Message | None:
        """Take the last answer off, for another one in its place; None where the last message is none."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return None
        self.results.clear()
        return self.messages.pop()

    def give_result(self, text: str) -> int:
        """The result of the next call that has none; how many are still to be given. Raises OptionError for none."""
        calls: Sequence[Message] = self.messages[-1].get("tool_calls", ()) if self.messages else ()
        if not calls:
            raise OptionError("no call of a tool waits for a result")
        call = calls[len(self.results)]
        self.results.append(
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}
        )
        return len(calls) - len(self.results)

    def take_results(self) -> list[Message]:
        results, self.results = self.results, []
        return results

    def to_json(self) -> dict[str, Any]:
        return {"system": self.system, "messages": self.messages}

    def load(self, data: Any) -> None:
        """Go on from what `to_json` gave, or from a list of messages. Raises OptionError for anything else."""
        saved = data if isinstance(data, Mapping) else {"messages": data}
        messages, system = saved.get("messages"), saved.get("system")
        if not isinstance(messages, list) or not (system is None or isinstance(system, str)):
            raise OptionError('holds no conversation: {"system": TEXT, "messages": [...]} or a list of messages')
        # The template checks the roles when the messages are rendered.
        roles = [str(message.get("role")) for message in messages if isinstance(message, Mapping)]
        prepare(messages, null=True, named=roles)
        if messages and messages[0]["role"] == "system":
            system, messages = str(messages[0]["content"]), messages[1:]
        self.clear()
        self.system, self.messages = system, [dict(message) for message in messages]

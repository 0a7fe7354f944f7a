"""Context policies by lists of tokens, as their modules state the rules: what each query sees."""

from __future__ import annotations


def next_of(seen: list[int]) -> int:
    """The next token of a model whose choice follows from all that its latest query sees."""
    total = 0
    for token in seen:
        total = (total * 31 + token + 1) % 1_000_003
    return total % 50


class Sliding:
    """A sequence under `error` or `sliding`: the latest `window` tokens, and the first `sinks`."""

    def __init__(self, window: int, sinks: int = 0) -> None:
        self.window, self.sinks = window, sinks
        self.tokens: list[int] = []
        self.held: list[int] = []

    def add(self, token: int) -> list[int]:
        """The positions that the next token sees."""
        self.tokens.append(token)
        first = max(0, len(self.tokens) - self.window)
        self.held = [*range(min(self.sinks, first)), *range(first, len(self.tokens))]
        return self.held


def pinned(context: int, sinks: int, wanted: int) -> Sliding:
    """`sliding` with so many pinned tokens: a block of them beyond the first costs the window two."""
    kept = max(sinks, wanted)
    return Sliding(context - max(kept, sinks + 2 * (-(-kept // 64) - 1) * 64), kept)


class Evicting:
    """A sequence under `evict` by lists: what each query sees, by the rule that edge/kv/policies/evict.py states."""

    def __init__(self, blocks: int, sinks: int) -> None:
        self.room, self.recent, self.sinks = blocks * 64, blocks // 2 * 64, sinks
        self.tokens: list[int] = []
        self.held: list[int] = []
        self.scores: dict[int, float] = {}
        self.seen: list[list[int]] = []

    def add(self, token: int) -> list[int]:
        """The positions that the next token sees."""
        position = len(self.tokens)
        if len(self.held) == self.room:
            paid = dict.fromkeys(self.held, 0.0)
            for query in range(position - 64, position):
                for key in self.seen[query]:
                    paid[key] += (self.tokens[query] * 7 + self.tokens[key] * 13) % 97 / 64
            self.scores = {key: self.scores.get(key, 0.0) / 2 + paid[key] for key in self.held}
            others = [key for key in self.held if self.sinks <= key < position - self.recent]
            going = set(sorted(others, key=lambda key: (self.scores[key], key))[:64])
            self.held = [key for key in self.held if key not in going]
        self.tokens.append(token)
        self.held.append(position)
        self.seen.append(list(self.held))
        return self.seen[-1]


def evicting(tokens: list[int], blocks: int, sinks: int) -> list[list[int]]:
    """The positions that each token sees."""
    slow = Evicting(blocks, sinks)
    return [slow.add(token) for token in tokens]


Slow = Sliding | Evicting


def alone(prompt: list[int], count: int, slow: Slow) -> list[int]:
    """What a prompt gets by itself."""
    for token in prompt:
        slow.add(token)
    for _ in range(count):
        slow.add(next_of([slow.tokens[position] for position in slow.held]))
    return slow.tokens[len(prompt) :]

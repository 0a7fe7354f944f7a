"""The engine: many answers from one model, in steps. `engine` has no threads; `readers` lets threads share it."""

from edge.engine.answer import Answer, End, Made
from edge.engine.engine import Engine, Event
from edge.engine.readers import Readers

__all__ = ["Answer", "End", "Engine", "Event", "Made", "Readers"]

"""dsedge on the device: load a bundle and generate with it.

    import edge

    with edge.load("smollm2-135m-instruct") as model:
        for piece in model.stream("What is the capital of France?"):
            print(piece, end="", flush=True)

Names are imported when first used, so that `import edge` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "load": "edge.pipeline",
    "Pipeline": "edge.pipeline",
    "Result": "edge.results",
    "Delta": "edge.sections",
    "Stats": "edge.results",
    "Stream": "edge.generation",
    "TokenEvent": "edge.results",
    "Logprob": "edge.sampling",
    "Sampling": "edge.options",
    "list_models": "edge.listing",
    "pull": "edge.listing",
    "ModelEntry": "edge.listing",
    "ToolCall": "edge.calls",
    "GenerateOptions": "edge.options",
    "RuntimeOptions": "edge.options",
    "Bundle": "edge.bundle",
    "open_bundle": "edge.bundle",
    "verify_bundle": "edge.bundle",
    "export": "edge.exporting",
    "EdgeError": "edge.errors",
    "UserError": "edge.errors",
    "InternalError": "edge.errors",
}

if TYPE_CHECKING:
    from edge.bundle import Bundle, open_bundle, verify_bundle
    from edge.calls import ToolCall
    from edge.errors import EdgeError, InternalError, UserError
    from edge.exporting import export
    from edge.generation import Stream
    from edge.listing import ModelEntry, list_models, pull
    from edge.options import GenerateOptions, RuntimeOptions, Sampling
    from edge.pipeline import Pipeline, load
    from edge.results import Result, Stats, TokenEvent
    from edge.sampling import Logprob
    from edge.sections import Delta

__all__ = [
    "Bundle",
    "Delta",
    "EdgeError",
    "GenerateOptions",
    "InternalError",
    "Logprob",
    "ModelEntry",
    "Pipeline",
    "Result",
    "RuntimeOptions",
    "Sampling",
    "Stats",
    "Stream",
    "TokenEvent",
    "ToolCall",
    "UserError",
    "export",
    "list_models",
    "load",
    "open_bundle",
    "pull",
    "verify_bundle",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'edge' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])

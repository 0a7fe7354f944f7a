"""coremltools, imported late and in one place: it takes seconds, and exports without Core ML do without it.

Only what the versions of `VERSION` have is used: the builder of MIL ops, the protocol buffers, and the translation of
a function into them, which is internal to coremltools.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from typing import Any, NamedTuple

from edge.errors import UnsupportedError

VERSION = "9.0"
_INSTALL = f'pip install "coremltools=={VERSION}"'


class Toolkit(NamedTuple):
    """The names of coremltools that the emitter uses."""

    mb: Any  # the builder: one function an op
    mil: Any  # Function, Program
    types: Any
    proto: Any  # Model_pb2, MIL_pb2, FeatureTypes_pb2
    opset: Any  # iOS 18 / macOS 15
    exporter: Any  # MILProtoExporter


def missing() -> str:
    """Why coremltools cannot be used here; "" where it can."""
    if importlib.util.find_spec("coremltools") is None:
        return f"the package coremltools is not installed: {_INSTALL}"
    found = importlib.metadata.version("coremltools")
    if found != VERSION:
        return f"coremltools {found} is installed, and version {VERSION} is needed: {_INSTALL}"
    return ""


def load() -> Toolkit:
    """Import it without its warnings on packages that are not used here. Raises UnsupportedError."""
    reason = missing()
    if reason:
        raise UnsupportedError(reason)
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    import coremltools
    from coremltools import proto
    from coremltools.converters.mil import Builder, mil
    from coremltools.converters.mil.backend.mil.load import MILProtoExporter
    from coremltools.converters.mil.mil import types

    return Toolkit(Builder, mil, types, proto, coremltools.target.iOS18, MILProtoExporter)

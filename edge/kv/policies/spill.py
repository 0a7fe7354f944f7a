"""`spill`: everything is kept, in a file that the system maps into memory, up to what the model was trained for.

The file has no name and goes with the process. Pages that memory has no room for are written to it and read again when
attention comes to them, so results are those of `error`, slower the less memory there is; what the process has to
itself does not grow.
"""

from __future__ import annotations

from edge.kv.policies.policy import Policy


class Spill(Policy):
    summary = "keep keys and values in a file that the system maps"
    storage = "file"

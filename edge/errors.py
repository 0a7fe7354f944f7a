"""Every error that dsedge raises on purpose.

EdgeError                     a message for a person: what was found, what is allowed, what to do
├── UserError                 exit code 2, HTTP 400: the caller can mend it
│   ├── OptionError           an option or argument is out of range or contradicts another
│   ├── NotFoundError         a named model, bundle or file is not there
│   ├── PromptTooLongError    a prompt that the context cannot take (carries both numbers)
│   ├── UnsupportedError      a known thing that dsedge or this backend does not do
│   ├── BusyError             as many requests wait already as may, or their keys and values take all the memory
│   │   └── PoolFullError     no block, or no sequence, of keys and values is free
│   ├── DeviceError           a requested backend or device is not usable here
│   ├── FormatError           a file or description that bundles and checkpoints share is damaged or contradictory
│   │   ├── CheckpointError   a source model is missing a part, damaged or contradictory
│   │   └── BundleError       a bundle is incomplete, damaged, hostile or of another format
│   └── StorageError          the file system refused: no space, no permission
├── GateError                 exit code 3: an export missed what its release must reach
└── InternalError             exit code 1, HTTP 500: ours to mend
    ├── NumericsError         logits are NaN or infinite
    └── ClosedError           a closed runtime or pipeline was used

A spec, a safetensors header or a layout may come from a bundle or a checkpoint. Its reader does not know which, and
raises FormatError; whoever opens the bundle or the checkpoint makes it their error with `found_in`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EdgeError(Exception):
    """Root of the tree. `str(error)` is one line fit for a terminal; `exit_code` is what the CLI returns."""

    exit_code = 1


class UserError(EdgeError):
    exit_code = 2


class OptionError(UserError):
    pass


class NotFoundError(UserError):
    pass


class PromptTooLongError(UserError):
    """A prompt of `tokens` tokens where at most `limit` fit."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {tokens} tokens and the context holds {limit}; "
            "shorten it, raise the context size, or choose another policy"
        )
        self.tokens = tokens
        self.limit = limit


class UnsupportedError(UserError):
    pass


class BusyError(UserError):
    pass


class PoolFullError(BusyError):
    pass


class DeviceError(UserError):
    pass


class FormatError(UserError):
    pass


class CheckpointError(FormatError):
    pass


class BundleError(FormatError):
    pass


class StorageError(UserError):
    pass


class GateError(EdgeError):
    exit_code = 3


class InternalError(EdgeError):
    pass


class NumericsError(InternalError):
    pass


class ClosedError(InternalError):
    pass


@contextmanager
def found_in(kind: type[FormatError], place: object = None) -> Iterator[None]:
    """Raise FormatErrors of the block as errors of the kind `kind`, which name the place; those of that kind stay."""
    try:
        yield
    except kind:
        raise
    except FormatError as error:
        raise kind(str(error) if place is None else f"{place}: {error}") from error

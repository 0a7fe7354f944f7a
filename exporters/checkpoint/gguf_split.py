"""GGUF models split over files: NAME-00001-of-00003.gguf and so on (llama.cpp's gguf-split).

The first shard holds the metadata, every shard some of the tensors. `split.no` counts from 0, `split.count` is the
number of shards and `split.tensors.count` that of all tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge.errors import CheckpointError
from exporters.checkpoint.gguf_container import GgufHeader, read_gguf_header

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_PREFIX = "split."


def read_shards(path: Path) -> list[tuple[Path, GgufHeader]]:
    """The file and its header, or for a shard of a split model all shards in order; `split.*` is taken out.

    Raises CheckpointError naming missing shards, and for shards that do not belong together; and as `read_gguf_header`.
    """
    header = read_gguf_header(path)
    count = header.metadata.get(f"{_PREFIX}count", 1)
    if type(count) is not int or not 0 <= count < 1 << 16:
        raise CheckpointError(f"{path}: split.count is {count!r}; it must be a number of files")
    if count < 2:
        return [(path, _whole(header))]
    shards = [(shard, read_gguf_header(shard)) for shard in _paths(path, count)]
    names: set[str] = set()
    for number, (shard, found) in enumerate(shards):
        _check_shard(shard, found.metadata, number, count)
        twice = names & found.tensors.keys()
        if twice:
            raise CheckpointError(f"{shard}: tensor {min(twice)!r} is in another shard too")
        names |= found.tensors.keys()
    total = shards[0][1].metadata.get(f"{_PREFIX}tensors.count", len(names))
    if total != len(names):
        raise CheckpointError(f"{path}: its shards hold {len(names)} tensors of {total}; download them again")
    return [(shard, _whole(found)) for shard, found in shards]


def _whole(header: GgufHeader) -> GgufHeader:
    return replace(header, metadata={key: header.metadata[key] for key in header.metadata if key[:6] != _PREFIX})


def _paths(path: Path, count: int) -> list[Path]:
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise CheckpointError(
            f"{path}: one of {count} shards of a split model; its name must end in -00001-of-{count:05}.gguf, so that "
            "the other shards can be found beside it"
        )
    paths = [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise CheckpointError(f"{path.parent}: {len(missing)} of {count} shards are missing: {shown}")
    return paths


def _check_shard(path: Path, metadata: Mapping[str, Any], number: int, count: int) -> None:
    found = (metadata.get(f"{_PREFIX}no"), metadata.get(f"{_PREFIX}count"))
    if found != (number, count):
        raise CheckpointError(f"{path}: says that it is shard {found[0]} of {found[1]}, not {number} of {count}")

"""What the shell completes: names of models, and the scripts that ask for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import typer

from edge import store
from edge.catalog import load_catalog
from edge.errors import OptionError
from edge.kv import KvDtype
from edge.options import Compute, KvPlace, WeightForm
from edge.runtime import EXPLICIT, RUNTIMES

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
# The variable by which a shell asks typer for completions: `_`, the command's name, `_COMPLETE`.
VARIABLE = "_DSEDGE_COMPLETE"


def store_names(incomplete: str) -> list[str]:
    return [name for name in store.names() if name.startswith(incomplete)]


def catalog_names(incomplete: str) -> list[str]:
    return [name for name in sorted(load_catalog().models) if name.startswith(incomplete)]


def all_names(incomplete: str) -> list[str]:
    return sorted({*store_names(incomplete), *catalog_names(incomplete)})


def among(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Completes one of some values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def recipe_names(incomplete: str) -> list[str]:
    # Not at the top: recipes belong to the workstation side, which most commands do without.
    from exporters.quant import recipe

    return [name for name in recipe.named() if name.startswith(incomplete)]


def one_of(values: Sequence[str], told: str) -> Any:
    """An option that takes one of these, which its help lists and the shell completes."""
    return typer.Option(metavar="|".join(values), help=told, autocompletion=among(values))


RuntimeOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Backend; see `dsedge doctor`.",
        autocompletion=among(["auto", *(name for name in RUNTIMES if name not in EXPLICIT)]),
    ),
]

BundleArgument = Annotated[
    str,
    typer.Argument(metavar="BUNDLE", help="A bundle's folder, or a name in the store.", autocompletion=store_names),
]

KvDtypeOption = Annotated[
    str, one_of(get_args(KvDtype), "How keys and values are kept; int8 takes half the memory of float16.")
]

DeviceOption = Annotated[str, typer.Option(metavar="NAME", help="Device of the backend; see `dsedge doctor`.")]

ComputeOption = Annotated[str, one_of(get_args(Compute), "What the torch backend computes products in.")]

WeightsOption = Annotated[
    str,
    one_of(
        get_args(WeightForm),
        "float16: the torch backend dequantizes all weights once, into four times the memory of int4.",
    ),
]

KvOption = Annotated[
    str,
    one_of(get_args(KvPlace), "Where the torch backend keeps keys and values; host: for models that fill the device."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Print the completion script of a shell.

    bash: write it to ~/.local/share/bash-completion/completions/dsedge, or source it in ~/.bashrc.

    zsh: write it to a file _dsedge in a folder of $fpath, before compinit runs.

    fish: write it to ~/.config/fish/completions/dsedge.fish.

    The folder may have to be made first.

    PowerShell: append it to the file of $PROFILE.
    """

    shell: Annotated[
        str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(SHELLS)}.", autocompletion=among(SHELLS))
    ]

    def execute(self) -> int:
        if self.shell not in SHELLS:
            raise OptionError(f"no completion for the shell {self.shell!r}; there is one for {', '.join(SHELLS)}")
        from edge.cli import main

        os.environ[VARIABLE] = f"source_{self.shell}"
        return main([])

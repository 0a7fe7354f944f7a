"""Errors of what bundles and checkpoints share become errors of the one or the other where it is known which."""

from __future__ import annotations

import pytest

from edge.errors import BundleError, CheckpointError, FormatError, OptionError, found_in


def test_a_shared_readers_error_becomes_that_of_the_place() -> None:
    with pytest.raises(CheckpointError, match=r"^/models/x: 5 heads$"), found_in(CheckpointError, "/models/x"):
        raise FormatError("5 heads")


def test_an_error_that_names_its_place_already_stays() -> None:
    with pytest.raises(BundleError, match=r"^/b: damaged$"), found_in(BundleError, "/models/x"):
        raise BundleError("/b: damaged")


def test_other_errors_pass() -> None:
    with pytest.raises(OptionError, match=r"^chunk$"), found_in(BundleError, "/models/x"):
        raise OptionError("chunk")

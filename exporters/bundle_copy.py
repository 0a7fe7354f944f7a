"""Copying a bundle: what its manifest lists, its signature and nothing else, checked before and after."""

from __future__ import annotations

import shutil
from pathlib import Path

from edge.bundle import MANIFEST, open_bundle, verify_bundle
from edge.bundle_files import SIGNATURE
from edge.progress import Progress
from exporters.bundle_folder import BundleFolder
from exporters.payload_writer import storage_error


def copy_bundle(source: Path, destination: Path, progress: Progress) -> None:
    """Copy what a bundle's manifest lists to `destination`, which appears whole or not at all, all sums recomputed.

    Raises BundleError for a bundle that is not whole, before or after the copy, and StorageError.
    """
    bundle = open_bundle(source)
    sizes = {name: info.size for name, info in bundle.manifest.files.items()}
    done, total = 0, sum(sizes.values())
    with BundleFolder(destination) as folder:
        signature = [SIGNATURE] if (bundle.path / SIGNATURE).is_file() else []
        for name in [*sizes, MANIFEST, *signature]:
            progress("copy", done / max(total, 1))
            try:
                (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(bundle.path / name, folder.path / name)
            except OSError as error:
                raise storage_error(error, destination, total) from error
            done += sizes.get(name, 0)
        progress("verify", 0.0)
        verify_bundle(folder.path)
        folder.commit()

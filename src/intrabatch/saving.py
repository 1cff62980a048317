"""Files written whole or not at all: a kill or a full disk leaves the previous one as it was.

Knows nothing of what is written.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .errors import WriteError

ALMOST_FULL = 2**20
"""Bytes; with less left, a failure is one of space."""


def write_whole(final: Path, write: Callable[[Path], object]) -> None:
    """Write beside the file, force it to the disk, then move it into place."""
    fresh = final.with_name(f".{final.name}.new")
    try:
        write(fresh)
        with open(fresh, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(fresh, final)
    except (OSError, RuntimeError) as error:
        reason = _reason(error, final.parent)
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        kept = "the previous one is untouched" if final.exists() else "nothing was written"
        raise WriteError(f"cannot write {final}: {reason}; {kept}") from None


def _reason(error: Exception, folder: Path) -> str:
    """What went wrong in a few words; torch reports a full disk as a position that it did not expect."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)  # Arrow's own text goes on for lines
    if shutil.disk_usage(folder).free < ALMOST_FULL:
        return os.strerror(errno.ENOSPC)
    return (str(error).splitlines() or ["unknown"])[0]

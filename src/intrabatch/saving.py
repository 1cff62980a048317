"""Files written whole or not at all: a kill or a full disk leaves the previous one as it was.

Knows nothing of what is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .errors import WriteError


def write_whole(final: Path, write: Callable[[Path], object]) -> None:
    """Write beside the file, force it to the disk, then move it into place."""
    fresh = final.with_name(f".{final.name}.new")
    try:
        write(fresh)
        with open(fresh, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(fresh, final)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        fresh.unlink(missing_ok=True)
        kept = "the previous one is untouched" if final.exists() else "nothing was written"
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or ["unknown"])[0]
        raise WriteError(f"cannot write {final}: {reason}; {kept}") from None

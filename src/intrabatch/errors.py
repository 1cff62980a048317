"""What can go wrong, drawn as a tree.

    IntrabatchError          everything a user can cause and mend; the command line prints one line and exits 2
      ConfigError            an unknown key, a wrong type, a value outside its range
      DataError              images, labels, tables, splits
        BrokenImages         files that cannot be decoded; carries the list
      WeightsError           weights that are missing, unreadable or of another architecture
      RunError               a run folder that is missing, unfinished, or from another version
        WriteError           a file that could not be written; the one before it is untouched
      DeviceError            a device that is not there, or out of memory
      NonFiniteError         a loss or gradient that is not a number; the update was not made
      EvaluationError        arrays that cannot be evaluated: NaN, lengths that differ, no positives
      MissingExtra           an optional package that this feature needs

Every message is one line: what, where, what was found, what was expected, what to do.
This module knows nothing else of the package.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class IntrabatchError(Exception):
    """Base of all errors that a user can cause and mend."""


class ConfigError(IntrabatchError):
    """A setting that is unknown, of a wrong type, or out of range."""


class DataError(IntrabatchError):
    """Images, labels or tables that cannot be used as they are."""


class BrokenImages(DataError):
    """Files that cannot be decoded. `broken` holds (name, reason) pairs."""

    def __init__(self, message: str, broken: list[tuple[str, str]]) -> None:
        super().__init__(message)
        self.broken = broken


class WeightsError(IntrabatchError):
    """Weights that are missing, unreadable, or belong to another architecture."""


class RunError(IntrabatchError):
    """A run folder that is missing, incomplete, or written by an incompatible version."""


class WriteError(RunError):
    """A file that could not be written, for a full disk say; the one before it is untouched."""


class DeviceError(IntrabatchError):
    """A device that is absent, too old, or out of memory."""


class NonFiniteError(IntrabatchError):
    """A loss or gradient that is not finite; raised before the update."""


class EvaluationError(IntrabatchError):
    """Arrays from which no honest figure can be computed."""


class MissingExtra(IntrabatchError):
    """An optional package is needed and not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs the package {package}; install it with: pip install 'intrabatch[{extra}]'")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """'; did you mean X?' when one of `choices` is close to `word`, otherwise the list of choices."""
    options = list(choices)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; choose from: {', '.join(options)}"

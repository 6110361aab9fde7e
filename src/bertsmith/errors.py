"""Errors that are not defects of bertsmith, each with its exit status.

The command line prints such an error as one line and exits with `exit_code`; in Python they are ordinary exceptions.
Any other exception is a defect and keeps its traceback.
"""

import errno


class BertsmithError(ValueError):
    """The base class of errors that a user can cause; the message says what was found, where, and what to do."""

    exit_code = 2


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: of torch on a GPU or CPU, numpy, pyarrow or Python. Does not import torch."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(name in str(error) for name in ("DefaultCPUAllocator", "bad_alloc"))


class DataError(BertsmithError):
    """Unusable input data: damaged, missing, empty, or made for something else."""

    exit_code = 65


class FolderWarning(UserWarning):
    """A choice about a model folder that its files leave open, or a setting of it that is not followed."""


class DataWarning(UserWarning):
    """A choice about a data file that its contents leave open, such as a header, or examples that were truncated."""


class UnknownWordsWarning(UserWarning):
    """Many words of a text are unknown to the tokenizer; the message has examples."""


class EqualWordsWarning(UserWarning):
    """Different words get the same vector, because an encoder reads only the first bytes of a word."""


class SkippedWarning(UserWarning):
    """Something of a run was skipped or lost, such as a damaged checkpoint; --quiet does not hide it."""


class PeerLostError(BertsmithError):
    """Another process of the same run ended; that process reports the reason."""

    exit_code = 69

    def __init__(self, message: str, *, stop_requested: bool = False) -> None:
        super().__init__(message)
        self.stop_requested = stop_requested  # SIGTERM arrived before the loss was noticed


class StorageError(BertsmithError):
    """A disk failure: full, read-only, I/O error; the message names path, operation and bytes."""

    exit_code = 74


class StoppedError(BertsmithError):
    """The work was interrupted; finished work is kept, and the same command resumes it."""

    exit_code = 75


class ConfigError(BertsmithError):
    """A setting is unknown, of the wrong type or out of range."""

    exit_code = 78


class MetricError(ConfigError):
    """A metric of the user's own that raises an error or does not return a number."""

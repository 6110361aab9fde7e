"""What can go wrong through no fault of ours, each kind with its exit status.

The command line prints such an error as one line and leaves with `exit_code`; from Python they are ordinary
exceptions. Anything else that is raised is a defect of bertsmith and keeps its traceback.
"""


class BertsmithError(ValueError):
    """A mistake in how bertsmith was called: the message says what was found, where, and what to do."""

    exit_code = 2


class DataError(BertsmithError):
    """The input data cannot be used: broken, missing, empty, or made for something else."""

    exit_code = 65


class PeerLostError(BertsmithError):
    """Another process that this one works together with has gone; why, is that one's to say."""

    exit_code = 69

    def __init__(self, message: str, *, stop_requested: bool = False) -> None:
        super().__init__(message)
        self.stop_requested = stop_requested  # whether SIGTERM arrived before the loss was noticed


class StorageError(BertsmithError):
    """The disk failed us: full, read-only, I/O error; the message names path, operation and bytes."""

    exit_code = 74


class StoppedError(BertsmithError):
    """The work was interrupted, everything finished is kept, and the same command goes on from there."""

    exit_code = 75


class ConfigError(BertsmithError):
    """A setting is unknown, of the wrong type or out of range."""

    exit_code = 78

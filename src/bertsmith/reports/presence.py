"""Is somebody at work in a folder? Asked without touching the lock, so that asking never keeps anybody out."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCKS = Path("/proc/locks")  # Linux: every lock that this process may see, with device and inode


def is_held(folder: str | Path) -> bool:
    """Whether a process holds `folder` as `Disk.lock` does.

    Where the system lists no locks, a shared lock is tried for a moment: it never waits for anybody.
    """
    try:
        status = os.stat(folder)
        lines = LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return _refused(folder)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in lines:
        words = line.split()
        if "FLOCK" in words and "->" not in words:
            where, _, inode = words[-3].rpartition(":")
            # folders of layered file systems have devices of their own, which the list does not know
            if inode == str(status.st_ino) and (where == device or os.major(status.st_dev) == 0):
                return True
    return False


def _refused(folder: str | Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        os.close(descriptor)

"""The sandboxed child process that reads pickled weights: a pickle on standard input, safetensors on standard output.

torch's restricted unpickler runs in a process that cannot open files or sockets or write to disk, and has limited
memory and time. Only `importers` starts it.
"""

from __future__ import annotations

import io
import os
import resource
import sys
from typing import Any

import torch

from bertsmith.model_io.safetensors_files import NAMES, file_chunks

MARGIN = 512 << 20  # bytes of memory beyond the weights
SECONDS = 60  # of CPU time, plus one per 16 MiB


def limit(size: int) -> None:
    """Limits the resources of this process."""
    limits = {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CPU: SECONDS + (size >> 24),
        resource.RLIMIT_AS: _address_space() + 3 * size + MARGIN,
        resource.RLIMIT_NOFILE: 0,  # open files stay open, no file or socket can be opened
    }
    for what, maximum in limits.items():
        resource.setrlimit(what, (maximum, maximum))


def _address_space() -> int:
    """Bytes of address space in use; macOS neither reports nor limits it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 1 << 46


def import_everything() -> None:
    """Reads both file formats of torch once, so that every module is imported before the limits apply."""
    for new in (True, False):
        file = io.BytesIO()
        torch.save({"weight": torch.nn.Parameter(torch.ones(2))}, file, _use_new_zipfile_serialization=new)
        file.seek(0)
        list(file_chunks(named_tensors(torch.load(file, map_location="cpu", weights_only=True))))


def named_tensors(state: Any, *, max_bytes: int = 1 << 20) -> dict[str, torch.Tensor]:
    """The floating-point tensors of a state dict; a ValueError where it is not one or needs over `max_bytes`."""
    if not isinstance(state, dict) or not state:
        raise ValueError("it is not a state dict")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            raise ValueError(f"{str(name)[:60]!r} is not a dense tensor")
    found = {name: value.detach() for name, value in state.items() if value.dtype in NAMES}
    total = sum(value.numel() * value.element_size() for value in found.values())
    if total > max_bytes:
        raise ValueError(f"its tensors need {total:,} bytes")
    return found


def main() -> None:
    """Writes safetensors to standard output, or a one-line error to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)  # libraries that print do not corrupt the output
    torch.set_num_threads(1)
    size = os.fstat(0).st_size
    import_everything()
    limit(size)
    try:
        state = torch.load(sys.stdin.buffer, map_location="cpu", weights_only=True)
        # tied tables are stored once and have two names
        for chunk in file_chunks(named_tensors(state, max_bytes=2 * size + MARGIN)):
            while chunk:
                chunk = chunk[os.write(output, chunk) :]
    except Exception as error:  # torch raises many types on malformed files
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        print(" ".join(lines)[:300] or type(error).__name__, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()

"""The child process that reads a pickled file of weights: file on standard input, safetensors on standard output.

torch's restricted unpickler is the fence; should it ever have a hole, this process can open no file and no socket,
write to no disk, and has bounded memory and time. Started by `importing`; nothing else runs it.
"""

from __future__ import annotations

import io
import os
import resource
import sys
from typing import Any

import torch

from bertsmith.model_io.safetensors_files import NAMES, file_chunks

MARGIN = 512 << 20  # bytes of memory beyond what the weights themselves need
SECONDS = 60  # of processor time, and one more for each 16 MiB


def limit(size: int) -> None:
    """Takes away from this process what reading weights does not need."""
    limits = {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CPU: SECONDS + (size >> 24),
        resource.RLIMIT_AS: _address_space() + 3 * size + MARGIN,
        resource.RLIMIT_NOFILE: 0,  # open files stay open, but there is never another: no file, no socket
    }
    for what, most in limits.items():
        resource.setrlimit(what, (most, most))


def _address_space() -> int:
    """Bytes of address space in use; macOS does not tell, and does not enforce a limit either."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 1 << 46


def rehearse() -> None:
    """Reads both kinds of file that torch has written once, so that everything is imported before the doors shut."""
    for new in (True, False):
        file = io.BytesIO()
        torch.save({"weight": torch.nn.Parameter(torch.ones(2))}, file, _use_new_zipfile_serialization=new)
        file.seek(0)
        list(file_chunks(named_tensors(torch.load(file, map_location="cpu", weights_only=True))))


def named_tensors(state: Any, *, most: int = 1 << 20) -> dict[str, torch.Tensor]:
    """The floating-point tensors of a state dict; a ValueError where it is none or needs more than `most` bytes."""
    if not isinstance(state, dict) or not state:
        raise ValueError("it holds no weights by name")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            raise ValueError(f"{str(name)[:60]!r} is no tensor")
    found = {name: value.detach() for name, value in state.items() if value.dtype in NAMES}
    total = sum(value.numel() * value.element_size() for value in found.values())
    if total > most:
        raise ValueError(f"its tensors would fill {total:,} bytes")
    return found


def main() -> None:
    """Reads standard input, answers on standard output, or says in one line on standard error why not."""
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever libraries print does not get among the weights
    torch.set_num_threads(1)
    size = os.fstat(0).st_size
    rehearse()
    limit(size)
    try:
        state = torch.load(sys.stdin.buffer, map_location="cpu", weights_only=True)
        # tied tables are stored once and named twice
        for chunk in file_chunks(named_tensors(state, most=2 * size + MARGIN)):
            while chunk:
                chunk = chunk[os.write(answer, chunk) :]
    except Exception as error:  # whatever torch raises on a hostile file is one answer: no
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        print(f"{type(error).__name__}: {' '.join(lines)[:300]}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()

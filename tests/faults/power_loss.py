"""All disk states that a power loss can leave, computed from the record of a `RecordingDisk`.

kill -9 does not test fsync, since written data is still in the page cache; this does. The model is stricter than real
file systems: an fsync makes a file's contents durable but not its name, the sync of a folder makes names durable but
not contents, and there is no other ordering.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.faulty_disks import Operation


@dataclass(frozen=True, slots=True)
class DiskState:
    """A possible state after a power loss: `files` holds contents by path, None for a folder.

    `after` is the number of issued operations, the largest one if several lead to the same files.
    """

    after: int
    files: dict[str, bytes | None]

    def materialise(self, folder: Path) -> None:
        """Writes the files to `folder`, which is empty."""
        for name, contents in sorted(self.files.items()):
            if contents is None:
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(contents)


@dataclass(slots=True, eq=False)
class _Node:
    """A file or a folder as the running system sees it, and its durable part."""

    folder: bool
    entries: dict[str, _Node] = field(default_factory=dict)
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, data); None truncates the file to 0
    length: int = 0
    durable: int = 0  # number of writes covered by an fsync

    def variants(self) -> list[bytes]:
        """Possible contents on disk: unsynced writes kept, lost, torn, reordered, or only their length."""
        sure, risky = self.writes[: self.durable], self.writes[self.durable :]
        count = len(risky)
        if count <= 4:
            kept = [list(chosen) for size in range(count + 1) for chosen in itertools.combinations(risky, size)]
        else:
            kept = [risky[:end] for end in range(count + 1)]
            kept += [risky[:gone] + risky[gone + 1 :] for gone in range(count)]
        for end, (offset, data) in enumerate(risky):
            if data is not None:
                kept.append([*risky[:end], (offset, data[: len(data) // 2])])
        kept.append([(offset, data and bytes(len(data))) for offset, data in risky])
        return list(dict.fromkeys(_replayed(sure + chosen) for chosen in kept))


def _replayed(writes: Sequence[tuple[int, bytes | None]]) -> bytes:
    contents = bytearray()
    for offset, data in writes:
        if data is None:
            contents.clear()
        else:
            contents.extend(bytes(max(0, offset + len(data) - len(contents))))
            contents[offset : offset + len(data)] = data
    return bytes(contents)


Change = tuple[_Node, str, _Node | None]  # folder, name, node


@dataclass(slots=True, eq=False)
class _Renaming:
    """Atomic name changes, and the folders whose sync they depend on."""

    changes: list[Change]
    awaits: list[_Node]


class _Model:
    """A file system below `root` that replays operations and tracks what is not yet durable."""

    def __init__(self, root: Path) -> None:
        self.root, self.top = root, _Node(folder=True)
        self.names: list[_Renaming] = []

    def _find(self, path: Path) -> _Node:
        node = self.top
        for name in path.relative_to(self.root).parts:
            node = node.entries[name]
        return node

    def _change(self, *changes: Change) -> None:
        for folder, name, node in changes:
            if node is None:
                del folder.entries[name]
            else:
                folder.entries[name] = node
        self.names.append(_Renaming(list(changes), [folder for folder, _, _ in changes]))

    def follow(self, operation: Operation) -> None:
        path = operation.path
        if operation.kind in ("fsync", "write"):
            node = self._find(path)
            if operation.kind == "fsync":
                node.durable = len(node.writes)
            else:
                node.writes.append((node.length, operation.data))
                node.length += len(operation.data)
        elif operation.kind == "sync_folder":
            synced = self._find(path)
            for renaming in self.names:
                renaming.awaits = [folder for folder in renaming.awaits if folder is not synced]
        else:
            self._follow_name(operation, self._find(path.parent), path.name)

    def _follow_name(self, operation: Operation, folder: _Node, name: str) -> None:
        if operation.kind == "create" and name in folder.entries:
            node = folder.entries[name]
            node.writes.append((0, None))
            node.length = 0
        elif operation.kind in ("create", "mkdir"):
            self._change((folder, name, _Node(folder=operation.kind == "mkdir")))
        elif operation.kind == "rename":
            assert operation.target is not None
            there = self._find(operation.target.parent)
            self._change((folder, name, None), (there, operation.target.name, folder.entries[name]))
        else:
            self._change((folder, name, None))

    def states(self, limit: int, chance: random.Random) -> Iterator[dict[str, bytes | None]]:
        """Any subset of unsynced name changes lost, times any variant of each file; at most `limit`, sampled."""
        risky = [renaming for renaming in self.names if renaming.awaits]
        lost: Iterator[Sequence[_Renaming]] = itertools.chain.from_iterable(
            itertools.combinations(risky, size) for size in range(len(risky) + 1)
        )
        if 2 ** len(risky) > limit:
            lost = iter([[renaming for renaming in risky if chance.random() < 0.5] for _ in range(limit)])
        for without in lost:
            tree = self._tree(without)
            choices = [node.variants() if not node.folder else [None] for node in tree.values()]
            count = 1
            for choice in choices:
                count *= len(choice)
            picks: Iterator[tuple[bytes | None, ...]] = itertools.product(*choices)
            if count > limit:
                picks = iter([tuple(map(chance.choice, choices)) for _ in range(limit)])
            yield from (dict(zip(tree, pick, strict=True)) for pick in picks)

    def _tree(self, without: Sequence[_Renaming]) -> dict[str, _Node]:
        entries: dict[int, dict[str, _Node]] = {}
        for renaming in self.names:
            for folder, name, node in renaming.changes if renaming not in without else ():
                if node is None:
                    entries.setdefault(id(folder), {}).pop(name, None)
                else:
                    entries.setdefault(id(folder), {})[name] = node
        tree: dict[str, _Node] = {}
        waiting = [("", self.top)]
        while waiting:
            prefix, folder = waiting.pop()
            for name, node in entries.get(id(folder), {}).items():
                tree[prefix + name] = node
                if node.folder:
                    waiting.append((f"{prefix}{name}/", node))
        return tree


def power_loss_states(
    operations: Sequence[Operation], root: Path, *, first: int = 0, limit: int = 4096, seed: int = 0
) -> list[DiskState]:
    """Every disk state below `root`, initially empty, if the power is lost after `first` or more of `operations`.

    Above `limit` states at one point, `limit` of them are sampled.
    """
    model, chance = _Model(root), random.Random(seed)
    found: dict[tuple[tuple[str, bytes | None], ...], int] = {}
    for after in range(len(operations) + 1):
        if after:
            model.follow(operations[after - 1])
        if after >= first:
            for files in model.states(limit, chance):
                found[tuple(sorted(files.items()))] = after
    return [DiskState(after, dict(files)) for files, after in found.items()]

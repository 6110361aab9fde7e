"""The names of classes, whose numbers stand in batches."""

from __future__ import annotations

from collections import Counter

from bertsmith.errors import ConfigError


def numbered(count: int) -> tuple[str, ...]:
    """Names for classes that have none, as transformers calls them."""
    return tuple(f"LABEL_{number}" for number in range(count))


def check_names(labels: tuple[str, ...], *, least: int = 2) -> None:
    """Raises a ConfigError unless these can be the names of classes."""
    if len(labels) < least:
        raise ConfigError(f"labels={list(labels)}: there must be at least {least}")
    if len(set(labels)) < len(labels):
        twice = Counter(labels).most_common(1)[0][0]
        raise ConfigError(f"labels has {twice!r} more than once: every class needs a name of its own")
    if "" in labels:
        raise ConfigError(f"labels[{labels.index('')}] is empty: every class needs a name")

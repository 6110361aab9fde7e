"""Reruns one campaign against the server, with the command printed by its failure."""

from __future__ import annotations

import sys
from typing import Any

from faults import server_campaigns


def value_of(text: str) -> Any:
    """A number, a boolean or a string."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def main(name: str, *options: str) -> int:
    given = dict(option.split("=", 1) for option in options)
    outcome = getattr(server_campaigns, name)(**{option: value_of(text) for option, text in given.items()})
    print(outcome, *outcome.failures, sep="\n")
    return 1 if outcome.failures or outcome.landed != outcome.requested else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Experiments on the mechanisms of the Transformer.

    python -m bench.transformer scale [-o FOLDER]
    python -m bench.transformer layers [--device cuda] [--width 256] [--lengths 64,128,…] [--repeats 5] [-o FOLDER]
    python -m bench.transformer heads [--steps 300] [-o FOLDER]

`scale`: the softmax of attention with and without the division by √d_k. `layers`: time and memory of a self-attention,
a recurrent and a convolutional layer by the length of the text. `heads`: the attention of every head of a toy
translation model that it trains. Each prints a table, and with -o writes its figures as SVG.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.transformer import heads, layers, scale


def main(arguments: list[str] | None = None) -> None:
    """Runs one experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for module in (scale, layers, heads):
        command = commands.add_parser(module.__name__.rpartition(".")[2])
        command.add_argument("-o", "--output", type=Path)
        module.add_options(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
    options.run(options)


if __name__ == "__main__":
    main()

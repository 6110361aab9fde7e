"""Word vectors of a file or of a model folder as the token table of a new model. V tokens, E width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model
from bertsmith.model_io.run_folder import find_model_folder
from bertsmith.model_io.vector_files import read_vectors
from bertsmith.tokenizers.tokenizer import Tokenizer


@torch.no_grad()
def load_vectors(model: Model, source: str, tokenizer: Tokenizer) -> list[str]:
    """Copies the vectors of the tokenizer's tokens into the token table; returns notes for the user.

    `source`: a file (word2vec, GloVe or fastText's .vec), or a model folder. Tokens without a vector get zeros where
    the table is not trained (McCann et al. 2017, §2), and else keep their new vectors.
    """
    table = model.encoder.token_embeddings
    if table is None:
        raise ConfigError(f"vectors={source}: the encoder has no token table")
    tokens = tokenizer.tokens()
    found, vectors = _vectors(source, tokens)
    if vectors.shape[1] != table.shape[1]:
        widths = f"vectors of {vectors.shape[1]} numbers, the token table {table.shape[1]}"
        known = [name for name in ("embedding_width", "width") if hasattr(model.encoder.config, name)]
        advice = f": write encoder.{known[0]}={vectors.shape[1]}" if known else ""
        raise ConfigError(f"vectors={source} has {widths}{advice}")
    if not found:
        raise DataError(f"vectors={source} has none of the {len(tokens):,} tokens of the vocabulary: is it cased?")
    fixed = not isinstance(table, torch.nn.Parameter)
    if fixed:
        table.zero_()
    table[found] = vectors.to(table.dtype)
    others = "have zeros" if fixed else "start with new vectors"
    return [f"{len(found):,} of {len(tokens):,} tokens have a vector in {source}; the others {others}"]


def _vectors(source: str, tokens: list[str]) -> tuple[list[int], Tensor]:
    """The ids of the tokens that have a vector, and their vectors [n, E]."""
    numbers = {token: number for number, token in enumerate(tokens)}
    if not Path(source).is_dir():
        file = read_vectors(Path(source), wanted=numbers.keys())
        return [numbers[word] for word in file.words], torch.from_numpy(np.concatenate(file.parts))
    folder = find_model_folder(source)
    model, theirs, _ = open_model(folder)
    if model.encoder.token_embeddings is None:
        raise ConfigError(f"vectors={source}: its encoder has no token table")
    special = set(theirs.special_ids)
    rows = [(number, token) for number, token in enumerate(theirs.tokens()) if number not in special]
    shared = [(number, numbers[token]) for number, token in rows if token in numbers]
    table = getattr(model.encoder, "word_table", lambda words: model.encoder.token_embeddings[:words])(len(theirs.tokens()))
    return [own for _, own in shared], table[[number for number, _ in shared]]

"""Word vectors of a file or of a model folder in the token table of a model. V tokens, E width."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import check_target, open_model, save_model
from bertsmith.model_io.run_folder import find_model_folder
from bertsmith.model_io.vector_files import read_vectors
from bertsmith.objectives.translation import Translation
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.words import Words


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
    numbers = {token: number for number, token in enumerate(tokens)}
    words, vectors = _all_vectors(source, wanted=numbers.keys())
    found = [numbers[word] for word in words]
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


def extend_vocabulary(
    source: str | Path, vectors: str, output: str | Path, *, limit: int = 0, overwrite: bool = False
) -> dict[str, Any]:
    """Writes a translation model whose encoder also knows the words of a file of vectors or of a model folder.

    Its own word vectors must be fixed ones from the same vectors. `limit`: of the first words of the file; 0: all.
    """
    check_target(Path(output), replace=overwrite)
    model, tokenizer, _ = open_model(source)
    encoder: Any = model.encoder
    if not hasattr(encoder, "add_words"):
        raise ConfigError(f"{source} is not a recurrent translation model: pass one, such as of the recipe cove/quick")
    if isinstance(encoder.token_embeddings, torch.nn.Parameter):
        raise ConfigError(
            f"{source} has trained word vectors, to which others cannot be added: train a model with vectors={vectors} "
            "encoder.fixed_embeddings=true"
        )
    if not isinstance(tokenizer, Words):
        raise ConfigError(f"{source} has a {tokenizer.kind} tokenizer: words can only be added to one of kind words")
    if tokenizer.target is not None:
        raise ConfigError(f"{source} has two vocabularies: words can only be added where source and target share one")
    tokens = tokenizer.tokens()
    words, rows = _all_vectors(vectors, limit=limit)
    if rows.shape[1] != encoder.token_embeddings.shape[1]:
        widths = f"vectors of {rows.shape[1]} numbers, {source} of {encoder.token_embeddings.shape[1]}"
        raise ConfigError(f"vectors={vectors} has {widths}: pass the vectors that it was trained with")
    known, rules = set(tokens), tokenizer.word_rules
    kept = [number for number, word in enumerate(words) if word not in known and list(rules(word)) == [word]]
    encoder.add_words(rows[kept], after=len(tokens))
    for head in model.objectives.values():
        if isinstance(head, Translation):
            head.keep_tokens(len(encoder.target_embeddings))
    added = [words[number] for number in kept]
    larger = Words([*tokens, *added], word_rules=rules, max_length=tokenizer.max_length)
    save_model(model, larger, output, facts={"words added from": Path(vectors).name}, replace=overwrite)
    return {"model": str(output), "words": larger.vocab_size, "added": len(added)}


def _all_vectors(source: str, *, wanted: Container[str] | None = None, limit: int = 0) -> tuple[list[str], Tensor]:
    """The words and vectors [n, E] of a file, or of the vocabulary of a model folder; `wanted`: these words only."""
    if not Path(source).is_dir():
        file = read_vectors(Path(source), wanted=wanted, limit=limit)
        return file.words, torch.from_numpy(np.concatenate(file.parts))
    model, tokenizer, _ = open_model(find_model_folder(source))
    encoder: Any = model.encoder
    if encoder.token_embeddings is None:
        raise ConfigError(f"vectors={source}: its encoder has no token table")
    tokens, special = tokenizer.tokens(), tokenizer.special_ids
    table = encoder.word_table(len(tokens)) if hasattr(encoder, "word_table") else encoder.token_embeddings
    kept = [
        number for number, token in enumerate(tokens) if number not in special and (wanted is None or token in wanted)
    ][: limit or None]
    return [tokens[number] for number in kept], table[kept]

"""Exports word vectors as files of word2vec (text or binary) and GloVe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError
from bertsmith.model_io.model_folder import open_model
from bertsmith.model_io.vector_files import vector_chunks
from bertsmith.system.durable import Disk


def export_vectors(
    model: str | Path, output: str | Path, *, form: str, tokenizer: str | Path | None = None, disk: Disk | None = None
) -> dict[str, Any]:
    """Writes the vectors of all words but special tokens, in the order of the vocabulary.

    `form`: word2vec, word2vec-binary or glove.
    """
    loaded, words, _ = open_model(model, tokenizer=tokenizer, ignore_heads=True)
    encoder: Any = loaded.encoder
    if encoder.direction != "none":
        raise BertsmithError(f"{model} has no word vectors: its vectors depend on the context; embed texts instead")
    kept = [number for number in range(words.vocab_size) if number not in words.special_ids]
    table = encoder.word_table(words.vocab_size)[kept].numpy()
    chunks = vector_chunks([words.id_to_token(number) for number in kept], table, form)
    written = (disk or Disk()).write_file(output, chunks)
    return {"file": str(output), "format": form, "words": len(kept), "width": encoder.width, "bytes": written.bytes}

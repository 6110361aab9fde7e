"""Texts from files, and their embeddings written to npy, jsonl or parquet files."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus import Corpus, ReadOptions, empty_corpus_error
from bertsmith.data.text_files import OpenFile, check_source, text_blocks
from bertsmith.errors import BertsmithError, StorageError
from bertsmith.inference.predictor import Predictor
from bertsmith.system.durable import Disk
from bertsmith.system.progress import Progress

CHUNK = 256  # texts embedded at a time


def read_texts(path: str, reading: ReadOptions, *, limit: int | None = None) -> list[str]:
    """The texts of a file, at most `limit`; an error if there are none."""
    corpus = Corpus([path], reading)
    texts = [document.text for document in islice(corpus, limit)]
    if not texts:
        raise empty_corpus_error(corpus)
    return texts


def read_text(source: str, reading: ReadOptions) -> str:
    """The contents of a file, or the source itself if it is a text; a path that does not exist is an error."""
    if not os.path.isfile(source):
        return check_source(source)
    with closing(OpenFile(Path(source))) as file:
        return "".join(text_blocks(file, encoding=reading.encoding, errors=reading.errors))


def parse_layers(text: str) -> tuple[int, ...]:
    """`-4,-3,-2,-1` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BertsmithError(f"--layers {text}: expected comma-separated numbers, such as -1 or -4,-3,-2,-1") from None


def check_new_file(output: Path | None) -> None:
    """Raises where the results of a command cannot be written to a new file, before anything is computed."""
    if output is not None and output.exists():
        raise BertsmithError(f"{output} already exists: choose another -o, or remove it first")
    if output is not None and not output.parent.is_dir():
        raise StorageError(f"the folder {output.parent} of {output} does not exist: choose another -o, or make it")


def embed_source(
    model: str | Path,
    source: str,
    output: Path | None,
    *,
    options: Mapping[str, Any],
    reading: ReadOptions,
    limit: int | None = None,
    device: str = "auto",
    quiet: bool = False,
    **opening: Any,
) -> dict[str, Any]:
    """Embeds a text, or the texts of a file, into `output`, or into the result without an output.

    `options`: keywords of `Predictor.embed`; `opening`: keywords of `open_model`.
    """
    if output is not None and output.suffix not in FORMATS:
        raise BertsmithError(f"{output} has an unknown file type: choose {', '.join(FORMATS)}")
    check_new_file(output)
    texts = (
        read_texts(source, reading, limit=limit) if os.path.isfile(source) else [check_source(source, output=output)]
    )
    chunks = _EmbeddingChunks(Predictor.open(model, device=device, **opening), texts, options, quiet=quiet)
    result: dict[str, Any] = {"texts": len(texts)}
    if output is None:
        result["vectors"] = np.concatenate(list(chunks)).tolist()
    else:
        Disk().write_file(output, FORMATS[output.suffix](texts, chunks))
        result["output"] = str(output)
    return result | {"width": chunks.width, "truncated": chunks.truncated}


class _EmbeddingChunks:
    """Embeddings of texts, one chunk at a time [texts, D], with a progress bar."""

    def __init__(self, predictor: Predictor, texts: Sequence[str], options: Mapping[str, Any], *, quiet: bool) -> None:
        self.predictor, self.texts, self.options, self.quiet = predictor, texts, options, quiet
        self.truncated = 0
        self.width = predictor.embedding_width(**{name: options[name] for name in ("pooling", "layers", "combine")})

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        with Progress("embedding", total=sum(map(len, self.texts)), quiet=self.quiet) as progress:
            characters = 0
            for start in range(0, len(self.texts), CHUNK):
                texts = self.texts[start : start + CHUNK]
                embeddings = self.predictor.embed(texts, **self.options)
                self.truncated += len(embeddings.truncated)
                characters += sum(map(len, texts))
                progress.update(characters, texts=start + len(texts))
                yield embeddings.vectors


def _encode_npy(texts: Sequence[str], chunks: _EmbeddingChunks) -> Iterator[bytes]:
    header = io.BytesIO()
    array = {"descr": "<f4", "fortran_order": False, "shape": (len(texts), chunks.width)}
    np.lib.format.write_array_header_1_0(header, array)
    yield header.getvalue()
    for vectors in chunks:
        yield vectors.astype("<f4").tobytes()


def _encode_jsonl(texts: Sequence[str], chunks: _EmbeddingChunks) -> Iterator[bytes]:
    remaining = iter(texts)
    for vectors in chunks:
        for vector in vectors:
            line = {"text": next(remaining), "vector": [float(f"{value:.7g}") for value in vector.tolist()]}
            yield json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _encode_parquet(texts: Sequence[str], chunks: _EmbeddingChunks) -> Iterator[bytes]:
    import pyarrow.parquet  # slow to import

    schema = pyarrow.schema([("text", pyarrow.string()), ("vector", pyarrow.list_(pyarrow.float32(), chunks.width))])
    buffer = io.BytesIO()
    start = 0
    with pyarrow.parquet.ParquetWriter(buffer, schema) as writer:
        for vectors in chunks:
            column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), chunks.width)
            names = pyarrow.array(list(texts[start : start + len(vectors)]))
            writer.write_table(pyarrow.Table.from_arrays([names, column], schema=schema))
            start += len(vectors)
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


FORMATS = {".npy": _encode_npy, ".jsonl": _encode_jsonl, ".parquet": _encode_parquet}

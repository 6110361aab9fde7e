"""Texts from a file, vectors into a file: npy, jsonl or parquet, streamed through the durable room."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from bertsmith.data.corpus import ReadOptions
from bertsmith.errors import BertsmithError
from bertsmith.inference.encoder_outputs import Combine, Pooling
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.sources import is_file, read_texts
from bertsmith.system.durable import Disk
from bertsmith.system.progress import Progress

CHUNK = 256  # texts embedded at a time
FORMATS = (".npy", ".jsonl", ".parquet")


@dataclass(frozen=True)
class EmbeddingOptions:
    """How vectors are made of a model's layers; see `Predictor.embed`."""

    pooling: str | None = None
    layers: tuple[int, ...] = (-1,)
    combine: str = "mean"
    normalize: bool | None = None


def layer_numbers(text: str) -> tuple[int, ...]:
    """`-4,-3,-2,-1` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BertsmithError(f"--layers {text}: write numbers with commas between, such as -1 or -4,-3,-2,-1") from None


def embed_source(
    model: str | Path,
    source: str,
    output: Path | None,
    *,
    wish: EmbeddingOptions,
    reading: ReadOptions,
    limit: int | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """Embeds a text, or the texts of a file; vectors go to `output`, or into the result where there is none."""
    if output is not None and output.suffix not in FORMATS:
        raise BertsmithError(f"{output} has no known ending: {', '.join(FORMATS)}")
    if output is not None and output.exists():
        raise BertsmithError(f"{output} is already there: choose another -o, or remove it first")
    texts = read_texts(source, reading, limit=limit) if is_file(source) else [source]
    predictor = Predictor.open(model, device=device)
    found = _Progressing(predictor, texts, wish, quiet=quiet)
    facts: dict[str, Any] = {"texts": len(texts)}
    if output is None:
        facts["vectors"] = np.concatenate(list(found)).tolist()
    else:
        Disk().write_file(output, _written(output.suffix, texts, found))
        facts["output"] = str(output)
    return facts | {"width": found.width, "cut": len(found.cut)}


class _Progressing:
    """Vectors of texts, chunk by chunk [texts, D], while progress is shown."""

    def __init__(self, predictor: Predictor, texts: Sequence[str], wish: EmbeddingOptions, *, quiet: bool) -> None:
        self.predictor, self.texts, self.wish, self.quiet = predictor, texts, wish, quiet
        self.cut: list[int] = []
        several = wish.combine == "concat" and (wish.pooling or predictor.sentence_settings.pooling) != "pooled"
        self.width = predictor.model.encoder.width * (len(wish.layers) if several else 1)

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        wish = self.wish
        with Progress("embedding", total=sum(map(len, self.texts)), quiet=self.quiet) as progress:
            done = 0
            for start in range(0, len(self.texts), CHUNK):
                texts = self.texts[start : start + CHUNK]
                found = self.predictor.embed(
                    texts,
                    pooling=cast(Pooling | None, wish.pooling),
                    layers=wish.layers,
                    combine=cast(Combine, wish.combine),
                    normalize=wish.normalize,
                )
                self.cut += [start + place for place in found.truncated]
                done += sum(map(len, texts))
                progress.update(done, texts=start + len(texts))
                yield found.vectors


def _written(suffix: str, texts: Sequence[str], found: _Progressing) -> Iterable[bytes]:
    if suffix == ".npy":
        return _as_npy(len(texts), found)
    return _as_jsonl(texts, found) if suffix == ".jsonl" else _as_parquet(texts, found)


def _as_npy(count: int, found: _Progressing) -> Iterator[bytes]:
    head = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (count, found.width)}
    np.lib.format.write_array_header_1_0(head, shape)
    yield head.getvalue()
    for vectors in found:
        yield vectors.astype("<f4").tobytes()


def _as_jsonl(texts: Sequence[str], found: _Progressing) -> Iterator[bytes]:
    place = 0
    for vectors in found:
        for vector in vectors:
            line = {"text": texts[place], "vector": [float(f"{value:.7g}") for value in vector.tolist()]}
            yield json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            place += 1


def _as_parquet(texts: Sequence[str], found: _Progressing) -> Iterator[bytes]:
    kind = pyarrow.schema([("text", pyarrow.string()), ("vector", pyarrow.list_(pyarrow.float32(), found.width))])
    sink = io.BytesIO()
    place = 0
    with pyarrow.parquet.ParquetWriter(sink, kind) as writer:
        for vectors in found:
            column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), found.width)
            named = pyarrow.array(list(texts[place : place + len(vectors)]))
            writer.write_table(pyarrow.Table.from_arrays([named, column], schema=kind))
            place += len(vectors)
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()

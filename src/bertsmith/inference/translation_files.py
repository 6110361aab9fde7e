"""Files of texts to translate, line by line, and of their references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.data.corpus import ReadOptions, format_by_extension
from bertsmith.data.formats import json_fields, json_records, lines_of, table_rows
from bertsmith.data.parallel import FIELDS_OPTION, SOURCE, TABLES, TARGET, PairOptions, ParallelCorpus
from bertsmith.data.text_files import OpenFile, one_line, printable, text_blocks
from bertsmith.errors import BertsmithError, DataError
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.text_files import check_new_file
from bertsmith.metrics.translation import translation_scores
from bertsmith.system.durable import Disk
from bertsmith.system.progress import Progress

CHUNK = 1024  # texts translated at a time


class SourceTexts(NamedTuple):
    """Texts to translate, and their references where they are known."""

    sources: list[str]
    references: list[str] | None = None


def read_sources(
    source: str | Path,
    reference: str | Path | None,
    reading: ReadOptions,
    *,
    fields: tuple[str, str] | None = None,
    limit: int | None = None,
) -> SourceTexts:
    """The lines of a file, empty ones included, and of its reference; or two columns of a table (tsv, csv, jsonl).

    A table with only a source column has no references.
    """
    path = Path(source)
    is_table = format_by_extension(path) in TABLES
    if is_table and reference is not None:
        raise BertsmithError(f"{source} is a table, which has the references in a column: leave out --reference")
    if is_table and (sources := _sources_alone(path, reading, fields)) is not None:
        return SourceTexts(list(islice(sources, limit)))
    if reference is None and not is_table:
        return SourceTexts(list(islice(_lines(path, reading), limit)))
    paths = [path] if reference is None else [path, Path(reference)]
    pairs = [
        text.text.split("\n") for text in islice(ParallelCorpus(paths, reading, PairOptions(fields=fields)), limit)
    ]
    return SourceTexts([one for one, _ in pairs], [other for _, other in pairs])


def _sources_alone(path: Path, reading: ReadOptions, fields: tuple[str, str] | None) -> Iterator[str] | None:
    """The texts of a table that has no references; None if it has them, or if `fields` names their column."""
    kind, name = format_by_extension(path), printable(path)
    with closing(OpenFile(path)) as file:
        blocks = text_blocks(file, encoding=reading.encoding, errors=reading.errors)
        if kind == "jsonl":
            names = list(next(json_records(blocks, name=name), (0, {}, False))[1])
        else:
            names = [column.strip() for column in next(table_rows(blocks, name=name, tabs=kind == "tsv"), (0, []))[1]]
    if fields is not None or TARGET in names or not (SOURCE in names or len(names) == 1):
        return None
    return _column(path, reading, names)


def _column(path: Path, reading: ReadOptions, names: list[str]) -> Iterator[str]:
    """The texts of the column `source`, or of the only one, which then has no header."""
    kind, name = format_by_extension(path), printable(path)
    with closing(OpenFile(path)) as file:
        blocks = text_blocks(file, encoding=reading.encoding, errors=reading.errors)
        if kind == "jsonl":
            for _, (text,) in json_fields(blocks, [SOURCE], name=name, option=FIELDS_OPTION):
                yield one_line(text or "")
            return
        index = names.index(SOURCE) if SOURCE in names else 0
        rows = table_rows(blocks, name=name, tabs=kind == "tsv")
        for _, row in islice(rows, int(SOURCE in names), None):
            yield one_line(row[index])


def _lines(path: Path, reading: ReadOptions) -> Iterator[str]:
    with closing(OpenFile(path)) as file:
        blocks = text_blocks(file, encoding=reading.encoding, errors=reading.errors)
        for _, line in lines_of(blocks, printable(path)):
            yield line.strip()


def translate_file(
    predictor: Predictor,
    texts: SourceTexts,
    output: Path | None,
    *,
    options: Mapping[str, Any],
    quiet: bool = False,
) -> dict[str, Any]:
    """Translates all texts; one line each in `output` where it is given. With references, also BLEU and chrF."""
    check_new_file(output)
    if output is not None and options.get("n_best", 1) > 1:
        raise BertsmithError(f"{output} gets one translation of each text: leave out --n-best, or print with --json")
    if not any(texts.sources):
        raise DataError("no text to translate: every line is empty")
    if texts.references is not None:
        translation_scores(["a"], ["a"])  # an error now where sacrebleu is missing
    results = list(_translated(predictor, texts.sources, options, quiet=quiet))
    facts: dict[str, Any] = {"texts": len(results), "truncated": sum("truncated" in one[0] for one in results)}
    best = [" ".join(one[0]["text"].split("\n")) for one in results]
    if output is None:
        facts["translations"] = results if options.get("n_best", 1) > 1 else [one[0] for one in results]
    else:
        Disk().write_file(output, (f"{text}\n".encode("utf-8", "replace") for text in best))
        facts["output"] = str(output)
    return facts | (translation_scores(best, texts.references) if texts.references is not None else {})


def _translated(
    predictor: Predictor, sources: Sequence[str], options: Mapping[str, Any], *, quiet: bool
) -> Iterator[list[dict[str, Any]]]:
    with Progress("translating", total=sum(map(len, sources)), quiet=quiet) as progress:
        characters = 0
        for start in range(0, len(sources), CHUNK):
            some = sources[start : start + CHUNK]
            for one in predictor.translate(some, **options):
                yield one if isinstance(one, list) else [one]
            characters += sum(map(len, some))
            progress.update(characters, texts=start + len(some))

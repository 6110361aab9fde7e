"""Imports models into model folders: pickled weights, checkpoints of Google, OpenAI and ELMo, word vectors, folders.

Pickled weights are read by a sandboxed child process (`unpickling`), whose output is untrusted like any other file.
Every imported folder is opened once more to verify it.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertsmith.errors import DataError
from bertsmith.model_io.elmo_hdf5 import is_elmo, read_elmo, words_tokenizer
from bertsmith.model_io.folder_tokenizer import MAX_BYTES, check_fits, read_tokenizer
from bertsmith.model_io.loading import Loader, Weights
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import CONFIG, FolderFacts, check_target, chosen_heads, open_model, save_model
from bertsmith.model_io.native import UNKNOWN_ROWS
from bertsmith.model_io.openai_checkpoint import OpenAICheckpoint, is_openai_checkpoint, tokenizer_files
from bertsmith.model_io.run_folder import find_model_folder
from bertsmith.model_io.safetensors_files import INDEX, WEIGHTS, WeightFiles
from bertsmith.model_io.sentence_transformers import MODULES, encoder_folder, read_sentence_settings, sentence_files
from bertsmith.model_io.tensorflow_checkpoint import TensorFlowCheckpoint
from bertsmith.model_io.unpickling import MARGIN
from bertsmith.model_io.untrusted_files import MEBIBYTE, ConfigReader, UntrustedFile, exists, read_json, shown
from bertsmith.model_io.vector_files import import_vectors
from bertsmith.system.durable import PARTIAL, Disk
from bertsmith.tokenizers.folder import read_vocabulary
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.wordpiece import WordPiece, infer_rules

PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
GOOGLE_CONFIG, GOOGLE_VOCABULARY = "bert_config.json", "vocab.txt"
MAX_SECONDS = 600  # plus one per 16 MiB
MAX_PICKLED_FILES = 100
ZIP_END = 1 << 16  # bytes that hold the end record of a zip archive
Save = Callable[[Model, Tokenizer], None]
Convert = Callable[..., list[str]]


def import_folder(
    source: str | Path,
    output: str | Path,
    *,
    lowercase: bool | None = None,
    head: str | None = None,
    ignore_heads: bool = False,
    tokenizer: str | Path | None = None,
    replace: bool = False,
    disk: Disk | None = None,
) -> FolderFacts:
    """Writes `source`, a folder or a file of word vectors, as a model folder; the summary of opening it.

    `lowercase`: instead of the tokenizer's setting; None: as declared, or where nothing is declared, as in Google's
    checkpoints, lower-case if the vocabulary has no capital letters. `head`, `ignore_heads` and
    `tokenizer` as for `open_model`.
    """
    if Path(source).is_file():
        return import_vectors(Path(source), output, lowercase=lowercase, replace=replace, disk=disk)
    source, output, disk = find_model_folder(source), Path(os.path.abspath(output)), disk or Disk()
    if not source.is_dir():
        raise DataError(f"{source} is not a folder: expected a folder with weights, or a file of word vectors")
    check_target(output, replace=replace)
    facts, root, unread = {"imported from": source.resolve().name}, source, []
    source = encoder_folder(root)

    def save(model: Model, tokenizer: Tokenizer) -> None:
        settings = read_sentence_settings(root, model.encoder)
        kept = exists(root, MODULES) and not settings.unread
        files = sentence_files(settings, model.encoder) if kept else {}
        unread.extend([f"{settings.unread}; only the encoder was imported"] if settings.unread else [])
        save_model(model, tokenizer, output, facts=facts, extra_files=files, replace=replace, disk=disk)

    notes: Iterable[str]
    if exists(source, WEIGHTS) or exists(source, INDEX):
        opening: dict[str, Any] = {"head": head, "ignore_heads": ignore_heads, "tokenizer": tokenizer}
        model, words, opened = open_model(source, lowercase=lowercase, **opening)
        save(model, words)
        notes = opened.notes
    elif is_elmo(source):
        model, notes = read_elmo(source)
        save(model, read_tokenizer(find_model_folder(tokenizer), UNKNOWN_ROWS) if tokenizer else words_tokenizer())
    else:
        convert = partial(_convert, heads=chosen_heads(head, ignore_heads), save=save)
        if exists(source, PICKLED) or exists(source, PICKLED_INDEX):
            read = partial(read_tokenizer, find_model_folder(tokenizer or source), lowercase=lowercase)
            notes = _import_pickled(source, output, disk, partial(convert, words=read))
        elif is_openai_checkpoint(source):
            notes = _import_openai(source, lowercase, tokenizer, disk, convert)
        else:
            notes = _import_google(source, lowercase, tokenizer, convert)
    _, _, saved = open_model(output)
    return dataclasses.replace(saved, notes=tuple(dict.fromkeys([*notes, *unread, *saved.notes])))


def _convert(
    weights: Weights,
    config: Path | ConfigReader,
    *,
    words: Callable[[int], Tokenizer],
    heads: list[str] | None,
    save: Save,
) -> list[str]:
    """Saves the model and returns notes; `words` gives the tokenizer for a token table of that many rows."""
    loader = Loader(weights, ConfigReader.open(config.parent, config.name) if isinstance(config, Path) else config)
    tokenizer = words(loader.vocab_size())
    save(loader.build(tokenizer, objectives=heads), tokenizer)
    return loader.notes


def _import_openai(
    source: Path, lowercase: bool | None, words: str | Path | None, disk: Disk, convert: Convert
) -> list[str]:
    with OpenAICheckpoint(source) as weights:
        if words:
            read = partial(read_tokenizer, find_model_folder(words), lowercase=lowercase)
            return convert(weights, weights.config(), words=read)
        with TemporaryDirectory() as folder:
            for name, data in tokenizer_files(source).items():
                disk.write_file(Path(folder, name), [data], atomic=False)
            try:
                read = partial(read_tokenizer, Path(folder), lowercase=lowercase)
                return convert(weights, weights.config(), words=read)
            except DataError as error:
                raise DataError(str(error).replace(folder, str(source))) from error


def _import_google(source: Path, lowercase: bool | None, words: str | Path | None, convert: Convert) -> list[str]:
    checkpoints = sorted(name.removesuffix(".index") for name in os.listdir(source) if name.endswith(".index"))
    if len(checkpoints) != 1:
        neither = f"neither {WEIGHTS}, {PICKLED}, params_0.npy, a TensorFlow checkpoint nor ELMo's two files"
        what = f"{len(checkpoints)} TensorFlow checkpoints" if checkpoints else neither
        raise DataError(f"{source} has {what}: expected a folder with one model")
    if words:
        with TensorFlowCheckpoint(source, checkpoints[0]) as weights:
            return convert(
                weights, source / GOOGLE_CONFIG, words=partial(read_tokenizer, Path(words), lowercase=lowercase)
            )
    UntrustedFile(source, GOOGLE_VOCABULARY, max_bytes=MAX_BYTES).close()
    tokens = read_vocabulary(source / GOOGLE_VOCABULARY)
    rules, note = infer_rules(tokens, lowercase)

    def tokenizer(rows: int) -> Tokenizer:
        check_fits(len(tokens), rows, source)
        return WordPiece.build(tokens, **rules)

    with TensorFlowCheckpoint(source, checkpoints[0]) as weights:
        notes = convert(weights, source / GOOGLE_CONFIG, words=tokenizer)
    return [note, *notes]


def _import_pickled(source: Path, output: Path, disk: Disk, convert: Convert) -> list[str]:
    aside = output.with_name(f"{output.name}.unpickled{PARTIAL}")
    if aside.exists():
        disk.remove_folder(aside)
    disk.make_folder(aside)
    try:
        names = []
        for number, name in enumerate(_pickled_files(source)):
            names.append(f"{number}.safetensors")
            with UntrustedFile(source, name) as file:
                _check_complete(file)
                disk.write_file(aside / names[-1], _unpickled(file), atomic=False)
        with WeightFiles(aside, names) as weights:
            return convert(weights, source / CONFIG)
    finally:
        disk.remove_folder(aside)


def _pickled_files(source: Path) -> list[str]:
    if exists(source, PICKLED):
        return [PICKLED]
    weight_map = read_json(source, PICKLED_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise DataError(f"{source / PICKLED_INDEX}: weight_map must map every tensor to a file")
    files = sorted(set(weight_map.values()))
    if not 0 < len(files) <= MAX_PICKLED_FILES:
        raise DataError(f"{source / PICKLED_INDEX} lists {len(files):,} files")
    return files


def _check_complete(file: UntrustedFile) -> None:
    """A DataError for a download that ended early: the directory of a zip archive is at its end."""
    end = file.read(max(0, file.size - ZIP_END), min(file.size, ZIP_END))
    if not file.size or (file.read(0, min(4, file.size)) == b"PK\3\4" and b"PK\5\6" not in end):
        found = f"it ends after {file.size:,} bytes without the directory of its zip archive"
        raise DataError(f"{file.path} is truncated: {found}: download it again")


def _unpickled(file: UntrustedFile) -> Iterator[bytes]:
    """A safetensors file from the child process, in pieces."""
    command = [sys.executable, "-P", "-m", "bertsmith.model_io.unpickling"]
    # no other environment variables: they may hold keys and tokens
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    modules = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    environment |= {"PYTHONPATH": modules, "CUDA_VISIBLE_DEVICES": ""}
    pipe, total, maximum = subprocess.PIPE, 0, 2 * file.size + MARGIN
    with subprocess.Popen(command, stdin=file.descriptor, stdout=pipe, stderr=pipe, env=environment, cwd="/") as child:
        alarm = threading.Timer(MAX_SECONDS + (file.size >> 24), child.kill)
        alarm.daemon = True
        alarm.start()
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            while piece := child.stdout.read(MEBIBYTE):
                total += len(piece)
                if total > maximum:
                    size = f"its {file.size:,} bytes expand to more than {maximum:,}"
                    raise DataError(f"{file.path} cannot be imported: {size}")
                yield piece
            message = child.stderr.read(10_000).decode("utf-8", "replace").strip().splitlines()
            if child.wait() != 0:
                end = f"it exited with status {child.returncode}, out of memory or time"
                reason = message[-1] if message and child.returncode == 1 else end
                raise DataError(f"{file.path} cannot be imported: {shown(reason, 300)}")
        finally:
            alarm.cancel()
            child.kill()

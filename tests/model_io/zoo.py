"""A zoo of small model folders as their makers publish them: layouts of tokenizers and weights, families, languages.

A `Case` names a folder; `write` makes it with transformers and then changes the files into the layout. Weights are
random and large, so that a wrong layer norm or activation changes the outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WIDTH, POSITIONS = 24, 48
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARIES = {
    "english": "the a cat dog sat ran on mat ##s ##ing cafe na ##ive new york . , ! ' - i ##t",
    "english-cased": "The the A a Cat cat dog Sat sat ran on mat ##s ##ing café New York . , ! ' - I it I ##T",
    "korean": "서울 ##은 한국 ##의 수도 ##이다 나는 사과 ##를 먹 ##었다 BERT bert . , ! 漢 字 ##입니다 A",
    "chinese": "北 京 是 中 国 的 首 都 我 爱 你 。 ， ！ bert the ##s 1 2",
}
TEXTS = {
    "english": ["The cats sat on a mat.", "New York, naïve café!", "it ran - unknownword", "", "THE [MASK] sat"],
    "english-cased": ["The cats Sat on a mat.", "New York, café!", "IT ran - Unknown", "", "I [MASK] it"],
    "korean": ["서울은 한국의 수도이다.", "나는 사과를 먹었다!", "BERT bert 漢字입니다", "", "나는 [MASK] 먹었다"],
    "chinese": ["北京是中国的首都。", "我爱你！ BERT thes", "1 2 3 未知", "", "我[MASK]你"],
}
CASED = {"english": False, "english-cased": True, "korean": True, "chinese": False}


@dataclass(frozen=True)
class Case:
    """One folder: the family, the language, how tokenizer and weights are stored, and the class of the model."""

    family: str
    language: str = "english"
    tokenizer: str = "json"
    weights: str = "safetensors"
    head: str = "Model"  # suffix of transformers' class
    config: str = "modern"  # or old: a config.json of 2019
    labels: str = "IOB2"  # of a token classifier: a key of LABELS

    def __str__(self) -> str:
        usual = Case(self.family)
        fields = ("language", "tokenizer", "weights", "head", "config", "labels")
        return "-".join(
            [self.family, *(getattr(self, name) for name in fields if getattr(self, name) != getattr(usual, name))]
        )

    @property
    def texts(self) -> list[str]:
        return TEXTS[self.language]


LABELS: dict[str, list[Any]] = {
    "IOB2": ["O", "B-PER", "I-PER"],
    "IOB1": ["I-PER", "I-LOC", "B-LOC", "O"],  # as published: no B-PER, since no two PER are adjacent
    "BIOES": ["O", "B-PER", "I-PER", "E-PER", "S-PER"],
    "BILOU": ["O", "B-PER", "I-PER", "L-PER", "U-PER"],
    "BMES": ["O", "B-PER", "M-PER", "E-PER", "S-PER"],
    "BIOS": ["[PAD]", "O", "B-PER", "I-PER", "S-PER"],
    "suffixes": ["O", "PER-B", "PER-I"],
    "bare": ["O", "PER", "LOC"],
    "no-O": ["B-NP", "I-NP", "B-VP"],
    "POS": ["NOUN", "VERB", "ADJ", "X"],
    "numbered": ["LABEL_0", "LABEL_1", "LABEL_2"],
    "mixed": ["O", "B-PER", "I-PER", "VERB"],
    "repeated": ["O", "B-PER", "B-PER", ""],
    "numbers": [0, 1, 2],
    "one": ["O"],
}
CLASSES = {
    "bert": "Bert",
    "electra": "Electra",
    "roformer": "RoFormer",
    "roberta": "Roberta",
    "albert": "Albert",
    "modernbert": "ModernBert",
}


def write(case: Case, folder: Path) -> None:
    """Writes the folder of a case."""
    folder.mkdir(parents=True)
    vocab_size = TOKENIZERS[case.family](case, folder)
    torch.manual_seed(len(str(case)))
    model = build_model(case, vocab_size)
    model.save_pretrained(folder)
    WEIGHTS[case.weights](folder)
    CONFIGS[case.config](folder)


def build_model(case: Case, vocab_size: int) -> Any:
    """A model of transformers with large random weights."""
    prefix = CLASSES[case.family]
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 40,
        "max_position_embeddings": POSITIONS + (2 if case.family == "roberta" else 0),
    }
    if case.family in ("albert", "electra"):
        sizes["embedding_size"] = 16
    if case.family == "albert":
        sizes |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    if case.family == "modernbert":
        ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        sizes |= {"global_attn_every_n_layers": 1, **ids}
    if case.head == "ForTokenClassification":
        labels = LABELS[case.labels]
        sizes |= {"id2label": dict(enumerate(labels)), "label2id": {name: n for n, name in enumerate(labels)}}
    config = getattr(transformers, f"{prefix}Config")(**sizes)
    options = {"add_pooling_layer": False} if case.weights == "no-pooler" else {}
    model = getattr(transformers, f"{prefix}{case.head}")(config, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # not RoFormer's sinusoids
                parameter.add_(torch.randn_like(parameter) * 0.2)
        if case.head == "ForTokenClassification":
            model.get_input_embeddings().weight.mul_(5)  # words have different labels
    return model.eval()


# --- tokenizers


def wordpiece(case: Case, folder: Path) -> int:
    """BERT's tokenizer: vocab.txt, with the settings in the files of the layout."""
    tokens = [*SPECIALS, *dict.fromkeys(VOCABULARIES[case.language].split())]
    vocabulary = "".join(f"{token}\n" for token in tokens)
    settings: dict[str, Any] = {"do_lower_case": not CASED[case.language], "model_max_length": POSITIONS}
    if case.tokenizer in ("json", "json-only"):
        ids = {token: number for number, token in enumerate(tokens)}
        tokenizer = transformers.BertTokenizer(vocab=ids, **settings)
        tokenizer.save_pretrained(folder)
        if case.tokenizer == "json":
            (folder / "vocab.txt").write_text(vocabulary)
        return len(tokens)
    (folder / "vocab.txt").write_text(vocabulary)
    if case.tokenizer == "vocab+class":
        settings["tokenizer_class"] = "BertTokenizer"
    if case.tokenizer == "accents":
        settings = {"do_lower_case": True, "strip_accents": False}
    if case.tokenizer == "ideographs":
        settings["tokenize_chinese_chars"] = False
    if case.tokenizer == "special-map":
        write_json(
            folder / "special_tokens_map.json",
            {f"{key}_token": f"[{key.upper()}]" for key in ("pad", "unk", "cls", "sep", "mask")},
        )
    if case.tokenizer == "added":
        write_json(folder / "added_tokens.json", {"unknownword": len(tokens)})
    if case.tokenizer != "vocab":
        write_json(folder / "tokenizer_config.json", settings)
    return len(tokens) + (case.tokenizer == "added")


def byte_bpe(case: Case, folder: Path) -> int:
    """RoBERTa's and ModernBERT's tokenizers."""
    if case.tokenizer == "wordpiece":  # Korean RoBERTa with BERT's tokenizer
        tokens = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", *dict.fromkeys(VOCABULARIES[case.language].split())]
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
        settings = {"do_lower_case": False, "do_basic_tokenize": True, "never_split": None}
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **settings})
        return len(tokens)
    modern = case.family == "modernbert"
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if not modern else SPECIALS
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(case.texts * 3, trainer)
    if modern:
        frame = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
        backend.normalizer, backend.post_processor = normalizers.NFC(), frame
        backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True)])
        named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
        inputs = ["input_ids", "attention_mask"]
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend, model_input_names=inputs, model_max_length=POSITIONS, **named
        ).save_pretrained(folder)
        return backend.get_vocab_size()
    model = json.loads(backend.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    if case.tokenizer == "json":
        transformers.RobertaTokenizer(vocab=model["vocab"], merges=merges, model_max_length=POSITIONS).save_pretrained(
            folder
        )
        return len(model["vocab"])
    write_json(folder / "vocab.json", model["vocab"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    if case.tokenizer == "vocab+class":
        write_json(
            folder / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer", "model_max_length": POSITIONS}
        )
    return len(model["vocab"])


def unigram(case: Case, folder: Path) -> int:
    """ALBERT's tokenizer."""
    if case.tokenizer == "spiece":
        return sentencepiece_model(case, folder)
    specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=70, special_tokens=specials, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(case.texts * 3, trainer)
    pieces = [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"]]
    tokenizer = transformers.AlbertTokenizer(
        vocab=pieces,
        do_lower_case=not CASED[case.language],
        keep_accents=CASED[case.language],
        model_max_length=POSITIONS,
    )
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def sentencepiece_model(case: Case, folder: Path) -> int:
    """A folder with only spiece.model, as ALBERT's authors published it."""
    import sentencepiece

    (folder / "lines.txt").write_text("\n".join(case.texts * 20), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "lines.txt"),
        model_prefix=str(folder / "spiece"),
        vocab_size=90,
        hard_vocab_limit=False,
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", "-"],
        minloglevel=2,
    )
    for name in ("lines.txt", "spiece.vocab"):
        (folder / name).unlink()
    settings = {"do_lower_case": not CASED[case.language], "keep_accents": CASED[case.language]}
    write_json(folder / "tokenizer_config.json", settings)
    return int(sentencepiece.SentencePieceProcessor(str(folder / "spiece.model")).get_piece_size())


TOKENIZERS: dict[str, Callable[[Case, Path], int]] = {
    "bert": wordpiece,
    "electra": wordpiece,
    "roformer": wordpiece,
    "roberta": byte_bpe,
    "modernbert": byte_bpe,
    "albert": unigram,
}


# --- weights

Tensors = dict[str, torch.Tensor]


def tensors_of(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def replace_tensors(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    save_file(change(tensors_of(folder)), folder / "model.safetensors", metadata={"format": "pt"})


def pickle_weights(folder: Path) -> None:
    torch.save(tensors_of(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def old_norm_names(folder: Path) -> None:
    """LayerNorm.gamma and .beta, as in the checkpoints of 2018."""

    def rename(tensors: Tensors) -> Tensors:
        names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for current, old in names.items():
            tensors = {name.replace(current, old): value for name, value in tensors.items()}
        return tensors

    replace_tensors(folder, rename)


def shard(folder: Path, *, pickled: bool) -> None:
    """Two files with an index."""
    tensors = tensors_of(folder)
    stem, suffix = ("pytorch_model", "bin") if pickled else ("model", "safetensors")
    names = sorted(tensors)
    weight_map = {name: f"{stem}-{number % 2 + 1:05}-of-00002.{suffix}" for number, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        part = {name: tensors[name].clone() for name in names if weight_map[name] == file}
        if pickled:
            torch.save(part, folder / file)
        else:
            save_file(part, folder / file, metadata={"format": "pt"})
    size = sum(value.nbytes for value in tensors.values())
    write_json(folder / f"{stem}.{suffix}.index.json", {"metadata": {"total_size": size}, "weight_map": weight_map})
    (folder / "model.safetensors").unlink()


def cast(folder: Path, dtype: torch.dtype) -> None:
    replace_tensors(folder, lambda tensors: {name: value.to(dtype) for name, value in tensors.items()})
    change_config(folder, dtype=str(dtype).removeprefix("torch."))


def store_buffers(folder: Path) -> None:
    """position_ids, which transformers stored before version 4.31."""
    prefix = next(name for name in tensors_of(folder) if "word_embeddings" in name).partition("word_embeddings")[0]
    positions = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    replace_tensors(folder, lambda tensors: tensors | {f"{prefix}position_ids": torch.arange(positions)[None]})


def add_head(folder: Path) -> None:
    """A second head in a class of the maker's own."""
    extra = {"intent_classifier.weight": torch.randn(7, WIDTH), "intent_classifier.bias": torch.randn(7)}
    replace_tensors(folder, lambda tensors: tensors | extra)
    prefix = (
        json.loads((folder / "config.json").read_text())["architectures"][0].partition("For")[0].removesuffix("Model")
    )
    change_config(folder, architectures=[f"{prefix}ForIntents"])


def nothing(folder: Path) -> None:
    """The files as transformers writes them."""


WEIGHTS: dict[str, Callable[[Path], object]] = {
    "safetensors": nothing,
    "no-pooler": nothing,
    "pickled": pickle_weights,
    "gamma-beta": old_norm_names,
    "gamma-beta-pickled": lambda folder: (old_norm_names(folder), pickle_weights(folder)),
    "sharded": lambda folder: shard(folder, pickled=False),
    "sharded-pickled": lambda folder: shard(folder, pickled=True),
    "float16": lambda folder: cast(folder, torch.float16),
    "bfloat16": lambda folder: cast(folder, torch.bfloat16),
    "buffers": store_buffers,
    "extra-head": add_head,
    "multi-label": lambda folder: change_config(folder, problem_type="multi_label_classification"),
}


# --- config.json


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def change_config(folder: Path, **changes: Any) -> None:
    """Sets values of config.json; `...` removes one."""
    values = json.loads((folder / "config.json").read_text()) | changes
    write_json(folder / "config.json", {key: value for key, value in values.items() if value is not ...})


def old_config(folder: Path) -> None:
    """Only sizes, as in the folders of 2019."""
    names = (
        "transformers_version dtype position_embedding_type use_cache classifier_dropout tie_word_embeddings is_decoder"
    )
    unknown = [*names.split(), "add_cross_attention", "bos_token_id", "eos_token_id"]
    change_config(folder, **dict.fromkeys(unknown, ...))


CONFIGS: dict[str, Callable[[Path], None]] = {
    "modern": nothing,
    "old": old_config,
    "tokenizer-class": lambda folder: change_config(folder, tokenizer_class="BertTokenizer"),
}

MASKED, PRETRAINING = "ForMaskedLM", "ForPreTraining"
TEXT, TOKEN, QA, CHOICE = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
LANGUAGES = list(VOCABULARIES)
CASES = [
    # how the tokenizer is stored
    *(
        Case("bert", language, layout)
        for language in LANGUAGES
        for layout in ("json", "json-only", "vocab+config", "vocab+class")
    ),
    *(Case("bert", language, layout) for language in ("english", "korean") for layout in ("special-map", "added")),
    Case("bert", "english", "vocab"),
    Case("bert", "korean", "accents"),
    Case("bert", "chinese", "ideographs"),
    Case("electra", "korean", "accents"),
    Case("electra", "korean", "added"),
    Case("bert", "korean", "vocab+config", config="tokenizer-class"),
    *(Case("electra", language, layout) for language in ("english", "korean") for layout in ("json", "vocab+config")),
    *(
        Case("roberta", language, layout)
        for language in ("english-cased", "korean")
        for layout in ("json", "vocab", "vocab+class")
    ),
    Case("roberta", "korean", "wordpiece"),
    *(Case("albert", language) for language in LANGUAGES),
    *(Case("albert", language, "spiece") for language in ("english", "korean")),
    *(Case("modernbert", language) for language in ("english", "korean")),
    *(Case("roformer", language) for language in ("english", "chinese")),
    # how the weights are stored
    *(
        Case("bert", "korean", "vocab+config", weights)
        for weights in WEIGHTS
        if weights not in ("safetensors", "extra-head", "multi-label")
    ),
    *(Case("albert", weights=weights) for weights in ("gamma-beta", "sharded", "float16")),
    *(Case("roberta", weights=weights) for weights in ("sharded", "bfloat16", "buffers", "no-pooler")),
    *(Case("electra", weights=weights) for weights in ("sharded", "float16")),
    Case("modernbert", weights="sharded"),
    Case("bert", "chinese", "vocab+config", "gamma-beta", config="old"),
    # heads
    *(Case("bert", head=head) for head in (MASKED, PRETRAINING, TEXT, TOKEN, QA, CHOICE)),
    *(Case("roberta", head=head) for head in (MASKED, TEXT, TOKEN)),
    *(Case("albert", head=head) for head in (MASKED, PRETRAINING, TEXT)),
    *(Case("electra", head=head) for head in (MASKED, PRETRAINING, TEXT, TOKEN)),
    *(Case("modernbert", language, head=MASKED) for language in ("english", "korean")),
    *(Case("roformer", head=head) for head in (MASKED, TEXT)),
    *(Case("bert", head=TOKEN, labels=labels) for labels in LABELS if labels != "IOB2"),
    Case("roberta", head=TOKEN, labels="BIOES"),
    *(Case(family, head=TEXT, weights="extra-head") for family in ("bert", "electra")),
    *(Case(family, head=TEXT, weights="multi-label") for family in ("bert", "roberta", "albert")),
    Case("bert", "korean", "vocab+config", "gamma-beta", MASKED, "old"),
]

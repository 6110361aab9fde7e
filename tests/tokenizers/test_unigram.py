"""ALBERT's tokenizer: what is learned, what is never a piece, and which folders are read."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers

from bertsmith.errors import ConfigError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.tokenizer import load
from bertsmith.tokenizers.unigram import SPECIALS, Config, Splitter, Unigram

ENGLISH = (
    "The smith's hammer rang 1,000 times, then 2,000 times. A cold-forged blade (of iron) cost £40.50 in 1842, not in "
    '1843, and "nobody" complained. The hammering of the hammers: café, naïve, façade, résumé. Ω and μ, х and у. '
) * 5
KOREAN = "대장장이는 쇠를 달구어 망치로 두드린다. 서울의 옛 대장간에는 1,000개의 망치가 있었다. " * 5


def learn(text: str, vocab_size: int = 200, **settings: Any) -> Unigram:
    config = Config(**settings)
    return config.train(training.count_words([text], config.word_splitter()), vocab_size=vocab_size)


def tokens(tokenizer: Unigram, text: str) -> list[str]:
    return [tokenizer.id_to_token(number) for number in tokenizer.encode(text).ids.tolist()]


def test_words_become_frequent_pieces() -> None:
    tokenizer = learn(ENGLISH, 400)
    assert tokenizer.tokens()[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert tokens(tokenizer, "The  HAMMER rang") == ["▁the", "▁hammer", "▁rang"]
    assert tokenizer.decode(tokenizer.encode("The  HAMMER rang").ids) == "the hammer rang"


def test_what_no_piece_spans() -> None:
    tokenizer = learn(ENGLISH, 400)
    for piece in tokenizer.tokens()[5:]:
        inner = piece.removeprefix("▁")
        assert not set(inner) & set('()"-.–£€') or len(piece) == 1, piece
        assert not re.search(r"\d,", inner), piece
        assert not (any(c.isalpha() for c in inner) and any(not c.isalpha() for c in inner)), piece
    assert tokens(tokenizer, "1842, cold-forged") == ["▁1842", ",", "▁cold", "-", "forged"]


def test_pieces_span_everything_where_that_is_wanted() -> None:
    tokenizer = learn(ENGLISH, 400, symbols="", split_scripts=False, split_digit_comma=False)
    assert tokens(tokenizer, "(of iron) cold-forged 2,000") == ["▁(of", "▁iron)", "▁cold-forged", "▁2,000"]


def test_plain_words_are_split_as_by_the_real_rules() -> None:
    """The short cut for ASCII and Hangul gives what normalizer and UnicodeScripts give."""
    draw = random.Random(3)
    for lowercase in (True, False):
        split = Splitter(lowercase=lowercase, strip_accents=False, split_digit_comma=False)
        steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        real = normalizers.Sequence(steps + [normalizers.Lowercase()] * lowercase)
        for _ in range(2000):
            unit = "".join(draw.choices("abcXYZ019'`\",.-()_@서울각", k=draw.randrange(1, 12)))
            runs = [run for run, _ in pre_tokenizers.UnicodeScripts().pre_tokenize_str(real.normalize_str(unit))]
            assert split(unit) == ["▁" + runs[0], *runs[1:]]


def test_spaces_before_symbols_stand_alone() -> None:
    split = Splitter(symbols="(-")
    assert split("(a-b") == ["▁", "(", "a", "-", "b"]
    assert split("1,000,") == ["▁1", ",000", ","]
    assert split("Ça") == ["▁ca"]
    assert split("¨") == []
    assert split.split_part("▁Ça") == ["▁ca"]
    assert split.split_part("ÇA½") == ["ca", "1⁄2"]
    assert split.split_part("▁") == ["▁"]


def test_accents_are_stripped_unless_hangul_would_be_decomposed() -> None:
    english, korean = learn(ENGLISH), learn(KOREAN + ENGLISH, 300)
    assert english.rules()["strip_accents"] is True
    assert english.encode("cafe").ids.tolist() == english.encode("CAFÉ").ids.tolist()
    assert korean.rules()["strip_accents"] is False
    assert korean.decode(korean.encode("서울의 망치").ids) == "서울의 망치"
    assert learn(ENGLISH, lowercase=False).rules()["strip_accents"] is False
    with pytest.raises(ConfigError, match=r"decomposes Hangul into jamo, and .*% of the words have Hangul"):
        learn(KOREAN, strip_accents=True)


def test_little_hangul_is_unknown_where_accents_are_stripped() -> None:
    tokenizer = learn(ENGLISH * 40 + " 쇠 각 ", 300)
    assert tokenizer.rules()["strip_accents"] is True
    assert not any(0x1100 <= ord(c) <= 0x11FF for token in tokenizer.tokens() for c in token)
    assert tokens(tokenizer, "쇠") == ["▁", "<unk>"]


def test_characters_beyond_the_coverage_are_unknown_but_not_their_word() -> None:
    tokenizer = learn(ENGLISH, 400, coverage=0.995)
    assert tokenizer.token_to_id("х") is None
    assert tokens(tokenizer, "hammerх") == ["▁hammer", "<unk>"]
    whole = learn(ENGLISH, 400, coverage=1.0)
    assert whole.token_to_id("х") is not None


def test_texts_that_spell_special_tokens_never_get_their_ids() -> None:
    for lowercase in (True, False):
        tokenizer = learn(KOREAN, lowercase=lowercase)  # a text that has none of these letters
        for token in SPECIALS.tokens():
            for text in (token, f"쇠{token}쇠", token.lower(), token * 3):
                assert set(tokens(tokenizer, text)).isdisjoint(set(SPECIALS.tokens()) - {"<unk>"}), text
            assert "<unk>" not in tokens(tokenizer, token)


def test_a_vocabulary_that_is_too_small_names_the_minimum() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size=20 is too small: .* at least (\d+)") as error:
        learn(ENGLISH, 20)
    least = int(str(error.value).split()[-1])
    assert learn(ENGLISH, least).vocab_size == least


def test_a_foreign_folder_follows_its_settings(tmp_path: Path) -> None:
    learn(ENGLISH, lowercase=False).save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (settings["do_lower_case"], settings["keep_accents"]) == (False, True)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": True}))
    assert load(tmp_path).rules()["lowercase"] is True
    (tmp_path / "tokenizer_config.json").unlink()  # then only tokenizer.json has the setting
    alone = load(tmp_path)
    assert isinstance(alone, Unigram)
    assert (alone.rules()["lowercase"], alone.rules()["strip_accents"]) == (False, False)


def test_other_rules_are_run_as_they_are(tmp_path: Path) -> None:
    learn(ENGLISH).save(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = definition["model"]["vocab"]
    changes: list[dict[str, Any]] = [
        {"pre_tokenizer": definition["pre_tokenizer"]["pretokenizers"][1]},
        {"normalizer": {"type": "NFKC"}},
        {"model": definition["model"] | {"vocab": [vocabulary[1], vocabulary[0], *vocabulary[2:]], "unk_id": 0}},
    ]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    for change in changes:
        if "model" in change:
            change["added_tokens"] = definition["added_tokens"][2:]
        (tmp_path / "tokenizer.json").write_text(json.dumps(definition | change))
        assert load(tmp_path).kind == "tokenizer.json"


def test_scores_are_part_of_the_fingerprint() -> None:
    tokenizer = learn(ENGLISH)
    pieces = [(token, float(score)) for token, score in json.loads(tokenizer.backend.to_str())["model"]["vocab"]]
    assert Unigram.build(pieces).fingerprint == tokenizer.fingerprint
    pieces[-1] = (pieces[-1][0], pieces[-1][1] - 1)
    assert Unigram.build(pieces).fingerprint != tokenizer.fingerprint


def test_added_tokens_of_others_are_kept(tmp_path: Path) -> None:
    tokenizer = learn(ENGLISH)
    tokenizer.backend.add_tokens([tokenizers.AddedToken("<smith>", special=False)])
    (tmp_path / "tokenizer.json").write_text(tokenizer.backend.to_str())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "AlbertTokenizer"}')
    again = load(tmp_path)
    assert again.vocab_size == tokenizer.vocab_size + 1
    assert again.id_to_token(again.encode("the <smith> rang").ids.tolist()[1]) == "<smith>"
    assert again.encode_ids(["the <smith> rang"])[0].tolist() == again.encode("the <smith> rang").ids.tolist()


def test_which_pieces_continue_a_word() -> None:
    pieces = [(piece, -1.0) for piece in ("▁the", "smith", "ing", "▁", ",", "-", "00", "울", "▁서", "’s", "…")]
    tokenizer = Unigram.build([*((token, 0.0) for token in SPECIALS.tokens()), *pieces])
    continues = tokenizer.is_continuation()
    going_on = {tokenizer.id_to_token(number) for number in range(tokenizer.vocab_size) if continues[number]}
    assert going_on == {"smith", "ing", "00", "울", "’s"}
    assert len(continues) == tokenizer.vocab_size

"""The model card: it is written for any facts, which cannot break its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as some
from model_io.folder_fixtures import model, tokenizer

from bertsmith.model_io.model_card import model_card
from bertsmith.model_io.model_folder import save_model

MODEL = model()
ANYTHING = some.one_of(some.text(), some.integers(), some.floats(), some.none(), some.lists(some.text(), max_size=2))


@example("a", {"backslash": "\\|"})
@given(some.text(), some.dictionaries(some.text(), ANYTHING, max_size=4))
def test_a_card_is_valid_for_any_facts(name: str, facts: dict[str, Any]) -> None:
    card = model_card(name, model=MODEL, architecture="BertModel", shape={"width": 8}, facts=facts).decode("utf-8")
    lines = card.split("\n")
    assert lines[:4] == ["---", 'library_name: "transformers"', 'tags: ["bert", "bertsmith"]', "---"]
    assert len([line for line in lines if line.startswith("# ")]) == 1
    rows = [line for line in lines if line.startswith("| ") and line != "| | |"]
    assert len(rows) == 1 + len(facts)
    for row in rows:
        assert row.replace("\\\\", "").replace("\\|", "").count("|") == 3, row


def test_contents_of_a_card(tmp_path: Path) -> None:
    facts = {"training data": "English Wikipedia | 2026", "steps": 1_000_000}
    save_model(model("masked_lm"), tokenizer(), tmp_path / "my-bert", facts=facts)
    card = (tmp_path / "my-bert" / "README.md").read_text(encoding="utf-8")
    assert "\n# my-bert\n" in card
    assert "\n| training data | English Wikipedia \\| 2026 |\n| steps | 1,000,000 |\n" in card
    assert 'pipeline_tag: "fill-mask"' in card
    assert f"fingerprint {tokenizer().fingerprint}" in card
    assert json.loads((tmp_path / "my-bert" / "config.json").read_text())["architectures"][0] in card

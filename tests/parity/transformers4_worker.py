"""Writes and reads model folders with the transformers of another environment; does not import bertsmith.

    python transformers4_worker.py write FOLDER   # folders of the zoo, saved by this transformers, and their outputs
    python transformers4_worker.py read FOLDER    # the outputs of every folder in FOLDER

Outputs are JSON files next to the folders: token ids and last hidden states of each text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from model_io import zoo
from model_io.zoo import Case

CASES = [
    Case("bert", "english", "vocab+config"),
    Case("bert", "korean", "vocab+config", head="ForMaskedLM"),
    Case("bert", "english-cased", "vocab+class", head="ForTokenClassification"),
    Case("roberta", "english-cased", "vocab"),
    Case("roberta", "korean", "wordpiece"),
    Case("albert", "english", "spiece"),
    Case("electra", "korean", "vocab+config"),
    Case("electra", "english", "vocab+config", head="ForPreTraining"),
]


def outputs(folder: Path, texts: list[str]) -> list[dict[str, Any]]:
    """Ids and hidden states [L, D] of each text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    results = []
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).last_hidden_state[0]
        results.append({"text": text, "ids": ids, "hidden": hidden.tolist()})
    return results


def main(action: str, base: Path) -> None:
    for case in CASES:
        folder = base / str(case)
        if action == "write":
            zoo.write(case, folder)
            transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
        texts = [text for text in case.texts if "[MASK]" not in text]
        folder.with_suffix(".json").write_text(json.dumps(outputs(folder, texts)))
    print(f"transformers {transformers.__version__}, {len(CASES)} folders")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

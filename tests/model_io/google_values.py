"""The tiny checkpoint in `google_tiny`: what it holds, and how TensorFlow 2.21 wrote it.

python tests/model_io/google_values.py    # in an environment with tensorflow; the tests need none
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "google_tiny"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", ",", ".", "on", "mat", "a"]
SETTINGS = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": len(WORDS),
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Every variable of Google's pre-training graph (bert: modeling.py, run_pretraining.py) at this size."""
    width, inner = 8, 12
    found: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (len(WORDS), width),
        "bert/embeddings/position_embeddings": (16, width),
        "bert/embeddings/token_type_embeddings": (2, width),
        "cls/predictions/output_bias": (len(WORDS),),
        "cls/seq_relationship/output_weights": (2, width),
        "cls/seq_relationship/output_bias": (2,),
    }
    dense = {"bert/pooler/dense": (width, width), "cls/predictions/transform/dense": (width, width)}
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for layer in range(2):
        above = f"bert/encoder/layer_{layer}"
        dense |= {f"{above}/attention/self/{name}": (width, width) for name in ("query", "key", "value")}
        dense |= {f"{above}/attention/output/dense": (width, width)}
        dense |= {f"{above}/intermediate/dense": (width, inner), f"{above}/output/dense": (inner, width)}
        norms += [f"{above}/attention/output/LayerNorm", f"{above}/output/LayerNorm"]
    for name, shape in dense.items():
        found |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    for name in norms:
        found |= {f"{name}/gamma": (width,), f"{name}/beta": (width,)}
    return found


def value(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The values of a variable, between -0.6 and 0.6: a function of its name, the same on every machine."""
    numbers = np.arange(np.prod(shape), dtype=np.int64) * 7919 + zlib.crc32(name.encode())
    return ((numbers % 2001 - 1000) / 1667).astype(np.float32).reshape(shape)


def write() -> None:
    """Writes the checkpoint as Google's code did: a graph of variables, with Adam's, and a Saver."""
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    for name, shape in shapes().items():
        tf.get_variable(name, initializer=value(name, shape))
        for slot in ("adam_m", "adam_v"):
            tf.get_variable(f"{name}/{slot}", initializer=np.zeros(shape, np.float32))
    tf.get_variable("global_step", initializer=np.int64(1000))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(FOLDER / "bert_model.ckpt"), write_meta_graph=False)
    (FOLDER / "checkpoint").unlink()
    (FOLDER / "bert_config.json").write_text(json.dumps(SETTINGS, indent=2) + "\n")
    (FOLDER / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))


if __name__ == "__main__":
    write()

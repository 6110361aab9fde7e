"""Records the outputs of fairseq 0.12.2's Transformer, which `test_fairseq_transformer.py` compares with.

    python tests/parity/record_fairseq.py FAIRSEQ_SOURCE > tests/parity/fairseq_transformer.json

in an environment with torch, numpy < 2, omegaconf 2.0.6, hydra-core 1.0.7, antlr4-python3-runtime 4.8, bitarray, cffi,
regex and sacrebleu; FAIRSEQ_SOURCE is its unpacked source, of which nothing is compiled. Recorded with torch 2.13.0.
"""

import argparse
import dataclasses
import inspect
import json
import sys
from types import SimpleNamespace

import numpy as np
import torch

SHAPE = {"width": 16, "heads": 2, "inner": 24, "layers": 2, "vocabulary": 30}
SOURCES = [[5, 9, 12, 4, 29, 7, 2], [11, 6, 2], [8, 8, 23, 17, 2]]  # 2 is the end token
TARGETS = [[2, 14, 5, 28, 10], [2, 21, 9, 6, 15, 4], [2, 13]]  # begin with it
PADDING = 1


def padded(rows):
    length = max(map(len, rows))
    return [row + [PADDING] * (length - len(row)) for row in rows]


def weights_of(shapes):
    """Values of each parameter by its name, in the order of the names."""
    draw = np.random.RandomState(0)
    return {name: draw.normal(0, 0.4, shapes[name]) for name in sorted(shapes)}


def import_fairseq(source):
    """On Python 3.11, which rejects the unhashable defaults of its dataclasses, and without its compiled extension."""
    text = inspect.getsource(dataclasses._get_field)
    check = "f.default.__class__.__hash__ is None"
    exec(text.replace(check, "isinstance(f.default, (list, dict, set))"), dataclasses.__dict__)
    for name, kind in {"float": float, "int": int, "bool": bool, "object": object}.items():
        if name not in np.__dict__:
            setattr(np, name, kind)
    sys.path.insert(0, source)
    import fairseq

    return fairseq


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    version = import_fairseq(parser.parse_args().source).__version__
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModel, base_architecture

    words = Dictionary()
    for number in range(SHAPE["vocabulary"] - len(words)):
        words.add_symbol(f"word{number}")
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "embed_dim": SHAPE["width"],
            "ffn_embed_dim": SHAPE["inner"],
            "attention_heads": SHAPE["heads"],
            "layers": SHAPE["layers"],
        }.items()
    }
    args = argparse.Namespace(
        **sizes, share_all_embeddings=True, dropout=0.0, max_source_positions=64, max_target_positions=64
    )
    base_architecture(args)
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    model = TransformerModel.build_model(args, task).eval()
    state = {name: value for name, value in model.state_dict().items() if value.dim() and "version" not in name}
    shared = {name for name in state if "embed_tokens" in name or "output_projection" in name}
    copies = ("_float_tensor", "in_proj_", "out_proj_", "fc1_", "fc2_")  # of weights, for a fused kernel
    shapes = {
        name: list(value.shape)
        for name, value in state.items()
        if not any(part in name for part in copies) and name not in shared - {"encoder.embed_tokens.weight"}
    }
    values = weights_of(shapes)
    for name in shared:
        values[name] = values["encoder.embed_tokens.weight"]
    model.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()}, strict=False)
    for layer in model.encoder.layers:
        layer.ever_training = True  # not that kernel
    sources, targets = torch.tensor(padded(SOURCES)), torch.tensor(padded(TARGETS))
    with torch.no_grad():
        encoded = model.encoder(sources, torch.tensor([len(row) for row in SOURCES]))
        logits, extra = model.decoder(targets, encoder_out=encoded)
        labels = torch.tensor([[*row[1:], 2] for row in TARGETS[:1]])
        losses = label_smoothed_nll_loss(
            logits[:1, : len(TARGETS[0])].log_softmax(-1).flatten(0, 1), labels.flatten()[:, None], 0.1
        )
    print(
        json.dumps(
            {
                "fairseq": version,
                "shapes": shapes,
                "encoded": encoded["encoder_out"][0].transpose(0, 1).tolist(),
                "logits": logits.tolist(),
                "attention": extra["attn"][0].tolist(),  # of the last layer, the mean over its heads
                "smoothed_loss": float(losses[0]),
                "loss": float(losses[1]),
            }
        )
    )


if __name__ == "__main__":
    main()

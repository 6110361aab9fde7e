"""Records the outputs of OpenNMT-py 2.3.0's recurrent model, which `test_opennmt_lstm.py` compares with.

    PYTHONPATH=tests python -m parity.record_opennmt OPENNMT_SOURCE > tests/parity/opennmt_lstm.json

OPENNMT_SOURCE is the unpacked wheel (`pip download --no-deps OpenNMT-py==2.3.0`). Of its dependencies only torch and
numpy are needed, because its packages are imported without their `__init__`. Recorded with torch 2.13.0.
"""

import argparse
import json
import sys
from importlib import import_module, machinery, util
from importlib.metadata import distributions

import numpy as np
import torch
from parity.record_fairseq import PADDING, padded, weights_of

SHAPE = {"width": 8, "embedding_width": 6, "layers": 2, "vocabulary": 20}
SOURCES = [[5, 9, 12, 4, 19, 7, 2], [8, 8, 13, 17, 2], [11, 6, 2]]  # the longest first, as its encoder expects
TARGETS = [[2, 14, 5, 18, 10], [2, 13], [2, 17, 9, 6, 15, 4]]


def attention_inputs():
    """Decoder states [N, M, W] and an encoder's output [N, S, W], of which the attention reads the sources' lengths."""
    draw = np.random.RandomState(1)
    sizes = (max(map(len, TARGETS)), max(map(len, SOURCES)))
    return [draw.normal(0, 1, (len(SOURCES), size, SHAPE["width"])) for size in sizes]


def import_opennmt(source):
    """Its packages without what their `__init__` import, save the names that the decoder takes from one of them."""
    for name in ("onmt", "onmt.models", "onmt.modules", "onmt.encoders", "onmt.decoders", "onmt.utils"):
        spec = machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations.append(f"{source}/{name.replace('.', '/')}")
        sys.modules[name] = util.module_from_spec(spec)
    for name, module in (("GlobalAttention", "global_attention"), ("context_gate_factory", "gate")):
        setattr(sys.modules["onmt.modules"], name, getattr(import_module(f"onmt.modules.{module}"), name))


def build():
    from onmt.decoders.decoder import InputFeedRNNDecoder
    from onmt.encoders.rnn_encoder import RNNEncoder
    from onmt.modules.embeddings import Embeddings

    tables = [Embeddings(SHAPE["embedding_width"], SHAPE["vocabulary"], PADDING) for _ in range(2)]
    sizes = (True, SHAPE["layers"], SHAPE["width"])  # a bidirectional encoder
    encoder = RNNEncoder("LSTM", *sizes, embeddings=tables[0])
    decoder = InputFeedRNNDecoder("LSTM", *sizes, attn_type="general", embeddings=tables[1])
    return torch.nn.ModuleDict({"encoder": encoder, "decoder": decoder}).double().eval()


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    source = parser.parse_args().source
    (version,) = [one.version for one in distributions(path=[source]) if one.name == "OpenNMT-py"]
    import_opennmt(source)
    model = build()
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights_of(shapes).items()})

    lengths = torch.tensor([len(row) for row in SOURCES])
    sources, targets = (torch.tensor(padded(rows)).T[:, :, None] for rows in (SOURCES, TARGETS))  # [length, N, 1]
    decoder = model["decoder"]
    states, memory = map(torch.from_numpy, attention_inputs())
    adjusted, probabilities = decoder.attn(states, memory, memory_lengths=lengths)

    last, encoded, _ = model["encoder"](sources, lengths)
    decoder.init_state(sources, encoded, last)
    initial = decoder.state["hidden"]
    outputs, weights = decoder(targets, encoded, memory_lengths=lengths)
    recorded = {
        "attended": adjusted,  # [M, N, W]
        "attention_weights": probabilities,  # [M, N, S]
        "encoded": encoded,  # [S, N, W]
        "initial": torch.stack(initial),  # hidden and cell [2, layers, N, W] before the first target token
        "outputs": outputs,  # [M, N, W]
        "weights": weights["std"],  # [M, N, S]
        "final": torch.stack(decoder.state["hidden"]),  # as `initial`, after all tokens and padding
    }
    print(json.dumps({"opennmt": version, "shapes": shapes, **recorded}, default=torch.Tensor.tolist))


if __name__ == "__main__":
    main()

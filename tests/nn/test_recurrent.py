"""The BiLSTM equals torch's over packed sequences."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertsmith.nn.recurrent import BiLSTM


def test_equal_to_torchs_over_packed_sequences() -> None:
    torch.manual_seed(0)
    actual = BiLSTM(8, 6, layers=2)
    reference = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for layer in range(2):
            for ending, one in (("", actual.forward_lstms[layer]), ("_reverse", actual.backward_lstms[layer])):
                for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    getattr(reference, f"{kind}_l{layer}{ending}").copy_(getattr(one, f"{kind}_l0"))
    x, lengths = torch.randn(4, 9, 8), torch.tensor([9, 1, 4, 7])
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(reference(packed)[0], batch_first=True)
    result = actual(x, lengths)
    assert result.shape == (4, 9, actual.width) == (4, 9, 12)
    for number, length in enumerate(lengths.tolist()):
        assert torch.allclose(result[number, :length], expected[number, :length], atol=1e-6)


def test_padding_changes_nothing() -> None:
    layer, lengths = BiLSTM(5, 3, layers=3), torch.tensor([4, 6])
    x = torch.randn(2, 6, 5)
    other = x.clone()
    other[0, 4:] = 100.0
    assert torch.equal(layer(x, lengths)[0, :4], layer(other, lengths)[0, :4])
    assert not torch.equal(layer(x, lengths)[0, :4], layer(x.flip(2), lengths)[0, :4])


def test_compilation_has_a_graph_break() -> None:
    layer, x, lengths = BiLSTM(5, 3, layers=2), torch.randn(2, 6, 5), torch.tensor([4, 6])

    def step(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return layer(x * 2, lengths).sum()

    compiled = torch.compile(step, backend="eager")
    assert torch.allclose(compiled(x, lengths), step(x, lengths))

"""The experiments of `python -m bench.transformer` at small sizes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(ROOT))
    yield
    sys.path.remove(str(ROOT))


def test_without_the_scale_attention_is_sharp_and_its_gradient_small() -> None:
    from bench.transformer.scale import measure

    small, wide = {"queries": 256, "keys": 16}, 512
    for width in (16, wide):
        scaled, unscaled = measure(width, scaled=True, **small), measure(width, scaled=False, **small)
        assert scaled.deviation == pytest.approx(1, abs=0.15)
        assert unscaled.deviation == pytest.approx(scaled.deviation * math.sqrt(width))
        assert unscaled.entropy < scaled.entropy < math.log(16)
    assert unscaled.median_gradient < 0.1 * scaled.median_gradient


def test_the_gradient_is_that_of_the_softmax() -> None:
    from bench.transformer.scale import measure

    found = measure(4, scaled=True, queries=1, keys=3, seed=2)
    draw = torch.Generator().manual_seed(2)
    query, keys, upstream = (
        torch.randn(size, generator=draw, dtype=torch.float64) for size in ((1, 4), (3, 4), (1, 3))
    )
    weights = (query @ keys.T / 2).softmax(-1)[0]
    jacobian = weights.diag() - weights[:, None] * weights
    assert found.gradient == pytest.approx((jacobian @ upstream[0]).norm().item(), rel=1e-12)
    assert found.entropy == pytest.approx(-(weights * weights.log()).sum().item(), rel=1e-12)


def test_memory_of_the_layers_grows_as_the_paper_says() -> None:
    from bench.transformer.layers import exponent, kept_bytes, layers_of

    lengths, width = (256, 512), 16
    layers = layers_of(width)
    inputs = [torch.randn(1, length, width, requires_grad=True) for length in lengths]
    growth = {name: exponent([kept_bytes(layer, x) for x in inputs], lengths) for name, layer in layers.items()}
    assert 1.8 < growth["self-attention"] < 2
    assert all(value == pytest.approx(1, abs=0.1) for name, value in growth.items() if name != "self-attention")
    one, fused = (layers[f"self-attention{rest}"] for rest in ("", ", fused"))
    fused.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(inputs[0]), fused(inputs[0]), rtol=1e-4, atol=1e-5)


def test_figures_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bench.transformer.__main__ import main

    main(["layers", "--lengths", "8,16", "--width", "16", "--repeats", "1", "-o", str(tmp_path)])
    assert capsys.readouterr().out.count("| self-attention, fused |") == 2
    for name in ("layer_seconds", "layer_mebibytes"):
        svg = ElementTree.fromstring((tmp_path / f"{name}.svg").read_text(encoding="utf-8"))
        assert len(svg.findall("{*}polyline")) == 4
        assert {"8", "16"} <= {text.text for text in svg.findall("{*}text")}  # ticks of a logarithmic axis


def test_german_sentences_have_the_verb_in_the_second_place() -> None:
    from bench.transformer.heads import ADJECTIVES, ADVERBS, VERBS, pairs

    found = pairs(200)
    assert found == pairs(200)
    assert any("den alten" in german for _, german in found)
    for english, german in found:
        words = german.split()
        verb = next(number for number, word in enumerate(words) if word in VERBS.values())
        if words[0] in ADVERBS.values():
            assert verb == 1
            assert ADVERBS[english.split()[-1]] == words[0]
        else:
            assert {*words[1 : verb - 1]} <= {*ADJECTIVES.values()}


def test_a_map_for_each_head() -> None:
    from bench.transformer.heads import Heads, drawing

    weights = np.full((2, 3, 4, 5), 0.2, np.float32)
    svg = ElementTree.fromstring(drawing([Heads("a < b", list("wxyz"), list("abcd&"), weights)]))
    assert len(svg.findall("{*}image")) == 6
    texts = [text.text for text in svg.findall("{*}text")]
    assert texts.count("w") == 2  # once for each layer
    assert texts.count("&") == 6
    assert texts[0] == "a < b"


@pytest.mark.slow
def test_the_toy_model_learns_its_grammar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bench.transformer.__main__ import main

    main(["heads", "--steps", "300", "-o", str(tmp_path)])
    right, of = capsys.readouterr().out.split(" sentences")[0].split()[-3::2]
    assert int(right) > 0.9 * int(of)
    assert (tmp_path / "attention_heads.svg").exists()

"""The loss of a pre-training model compiles as one graph on a GPU, in bf16 and in FP8."""

from __future__ import annotations

import pytest
import torch
from model_fixtures import VOCABULARY, random_batch, small_bert_config

from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm, next_sentence

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("fp8", [False, True])
def test_the_loss_compiles_as_one_graph(fp8: bool) -> None:
    if fp8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this device has no FP8")
    torch._dynamo.reset()
    config = small_bert_config(layers=3, width=128, heads=2, feed_forward=512, dropout=0.1, attention_dropout=0.1)
    model = Model.build(config, [masked_lm.Config(), next_sentence.Config()], vocabulary=VOCABULARY).cuda()
    if fp8:
        model.enable_fp8()
    batch = random_batch([40] * 64, length=40, pairs=True)
    labels = {"next_sentence": torch.zeros(64, dtype=torch.long)}
    batch = model.corrupt(batch.replace(labels=labels).to("cuda"))
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.compile(model, fullgraph=True, dynamic=False)(batch).mean()
    loss.backward()
    assert loss.isfinite()

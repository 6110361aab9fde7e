"""What has ELECTRA's discriminator learned after a few hundred steps of a small model on a CPU?

    python bench/discriminator.py SHARDS learning_rate=5e-4 steps=400 --save first
    python bench/discriminator.py SHARDS learning_rate=5e-4 steps=400 --start first --bias 0
    python bench/discriminator.py SHARDS --recipe bert/no_nsp encoder.kind=electra steps=400 --save words

Every hundred steps, on held-out rows: the masked LM's loss (the generator's in ELECTRA), the discriminator's loss
beside the entropy of its labels, which is the loss of the best constant prediction, the AUC of its logits, and the mean
cosine between the last hidden states of different tokens, which is 1 where the encoder has collapsed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith import recipes
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives.replaced_token import ReplacedToken
from bertsmith.training.distributed import World
from bertsmith.training.pretrain import make_trainer
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader
from bertsmith.training.recipe import with_overrides
from bertsmith.training.signals import StopSignal
from bertsmith.training.start import load_weights
from bertsmith.types import IGNORE_INDEX, Batch

KIND = "encoder.kind="
SMALL = (
    *("encoder.layers=4", "encoder.width=128", "encoder.heads=2", "encoder.embedding_width=128", "encoder.dropout=0"),
    *("encoder.attention_dropout=0", "encoder.positions=rotary", "packing.across_documents=true", "max_length=64"),
    *("batch_size=16", "micro_batch_size=0", "optimizer.kind=adamw", "optimizer.weight_decay=0.1", "warmup=0.05"),
    *("compute.max_grad_norm=1.0", "schedule.kind=linear", "learning_rate=2e-3", "steps=400"),
)
GENERATOR = "objectives.replaced_token.generator_width=0.5"
EVERY, BATCHES, TOKENS = 100, 4, 2000


def main() -> None:
    options = _options()
    data, world = PretrainData.open(options.shards), World()
    kinds = [change for change in options.changes if change.startswith(KIND)]  # first: it resets the encoder
    own = [change for change in options.changes if change not in kinds]
    common = [*SMALL, GENERATOR] if options.recipe.startswith("electra") else list(SMALL)
    recipe = data.with_vocabulary(with_overrides(recipes.find(options.recipe), [*kinds, *common, *own]))
    loader = PretrainLoader(recipe, data.packing(recipe), world, source=data.folder)
    trainer = make_trainer(recipe, data, loader, world, StopSignal())
    model, held_out = trainer.module, data.held_out(recipe, world)[:BATCHES]
    assert isinstance(model, Model)
    if options.start:
        load_weights(model, options.start, data.tokenizer)
    for head in model.objectives.values():
        if isinstance(head, ReplacedToken) and options.bias is not None:
            torch.nn.init.constant_(head.classifier.bias, options.bias)
    for step in trainer:
        if step.number % EVERY == 0:
            figures = " ".join(f"{name} {value:.4f}" for name, value in evaluate(model, held_out).items())
            print(f"step {step.number}: {figures}", flush=True)
    loader.close()
    if options.save:
        save_model(model.eval(), data.tokenizer, options.save, replace=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("changes", nargs="*", metavar="SETTING=VALUE")
    parser.add_argument("--recipe", default="electra/tiny")
    parser.add_argument("--start", type=Path, help="model folder")
    parser.add_argument("--bias", type=float, help="of the discriminator's classifier at the start")
    parser.add_argument("--save", type=Path, help="folder for the model")
    return parser.parse_intermixed_args()


@torch.no_grad()
def evaluate(model: Model, batches: list[Batch]) -> dict[str, float]:
    """The figures of a model on held-out batches."""
    model.eval()
    hidden, logits, labels = list[Tensor](), list[Tensor](), list[Tensor]()
    loss = count = 0.0
    for batch in map(model.corrupt, batches):
        total = model(batch)
        loss, count = loss + float(total.sums["masked_lm"]), count + float(total.counts["masked_lm"])
        head = dict(model.objectives.items()).get("replaced_token")
        if isinstance(head, ReplacedToken) and head.reads_encoding:
            batch, _ = head.sample_replacements(batch, model.encoder.embed, model.encoder.token_embeddings)
        encoding = model.encoder(batch.replace(indices={}))
        hidden.append(encoding.last_hidden[(batch.document_ids != 0).flatten()])
        if isinstance(head, ReplacedToken) and head.reads_encoding:
            used = head.labels(batch) != IGNORE_INDEX
            logits.append(head.predict(encoding, batch, None)[used, 1])
            labels.append(head.labels(batch)[used].float())
    unit = F.normalize(torch.cat(hidden)[:TOKENS], dim=-1)
    cosines = (unit @ unit.T).fill_diagonal_(0).sum() / (len(unit) * (len(unit) - 1))
    figures = {"masked_lm": loss / count, "cosine": float(cosines)}
    return figures | (_discriminator(torch.cat(logits), torch.cat(labels)) if logits else {})


def _discriminator(logits: Tensor, labels: Tensor) -> dict[str, float]:
    share = labels.mean()
    ranks = torch.empty(len(logits), dtype=torch.double)
    ranks[logits.argsort()] = torch.arange(1, len(logits) + 1, dtype=torch.double)
    replaced = float(labels.sum())
    above = float(ranks[labels.bool()].sum()) - replaced * (replaced + 1) / 2
    return {
        "loss": float(F.binary_cross_entropy_with_logits(logits, labels)),
        "entropy": float(torch.special.entr(share) + torch.special.entr(1 - share)),
        "replaced": float(share),
        "auc": above / (replaced * (len(logits) - replaced)),
    }


if __name__ == "__main__":
    main()

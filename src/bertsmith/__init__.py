"""bertsmith: from raw text to your own working BERT.

    import bertsmith as bs

    tokenizer = bs.train_tokenizer(["corpus/"], "tokenizer", vocab_size=32_000)
    shards = bs.prepare(["corpus/"], "shards", tokenizer=tokenizer)
    run = bs.pretrain("bert/quick", shards, "run", minutes=10)
    model = bs.finetune(run.best, "classification", train=rows, dev=0.1, output="reviews", epochs=3)
    scores = bs.evaluate(model, test_rows)

Importing the package loads neither torch nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertsmith.api.corpus import Shards, load_tokenizer, prepare, train_tokenizer
    from bertsmith.api.models import evaluate, list_recipes, list_tasks, load, open_run
    from bertsmith.api.studies import lineage
    from bertsmith.api.training import finetune, pretrain
    from bertsmith.errors import BertsmithError
    from bertsmith.evaluation.evaluation import Evaluation
    from bertsmith.inference.predictor import Predictor
    from bertsmith.reports.run import Run
    from bertsmith.studies.lineage.result import LineageTable
    from bertsmith.tokenizers.tokenizer import Tokenizer

__version__ = "0.1.0"
__all__ = [
    "BertsmithError",
    "Evaluation",
    "LineageTable",
    "Predictor",
    "Run",
    "Shards",
    "Tokenizer",
    "__version__",
    "evaluate",
    "finetune",
    "lineage",
    "list_recipes",
    "list_tasks",
    "load",
    "load_tokenizer",
    "open_run",
    "prepare",
    "pretrain",
    "train_tokenizer",
]
_MODULES = {
    "api.corpus": ("Shards", "load_tokenizer", "prepare", "train_tokenizer"),
    "api.models": ("evaluate", "list_recipes", "list_tasks", "load", "open_run"),
    "api.studies": ("lineage",),
    "api.training": ("finetune", "pretrain"),
    "errors": ("BertsmithError",),
    "evaluation.evaluation": ("Evaluation",),
    "inference.predictor": ("Predictor",),
    "reports.run": ("Run",),
    "studies.lineage.result": ("LineageTable",),
    "tokenizers.tokenizer": ("Tokenizer",),
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(import_module(f"bertsmith.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'bertsmith' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""`baseline`: transformers' BertForMaskedLM on the same text for the same minutes, in a plain loop.

Compiled, bfloat16 autocast, fused AdamW, gradient clipping, warm-up and then linear decay to zero over the minutes. All
blocks are on the device, so that it never waits for data. Minutes are counted as in `pretraining`: not during
compilation (up to the end of the first step of a call), evaluation and saving.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench import needless_masks
from bench.ten_minutes import results
from bench.ten_minutes.blocks import RATE, MaskingCollator, Order, grouped
from bench.ten_minutes.held_out import OBJECTIVE, HeldOutScores
from bench.ten_minutes.pretraining import EvaluatorConfig, ended, speed
from bertsmith.encoders import bert
from bertsmith.encoders.transformer_encoder import HEAD_WIDTH, SIZES
from bertsmith.errors import ConfigError, StoppedError
from bertsmith.model_io.model import Model
from bertsmith.objectives import masked_lm
from bertsmith.system.devices import choose_device, measure_peak_flops
from bertsmith.system.durable import Disk
from bertsmith.training.clock import Stopwatch, TrainingLock
from bertsmith.training.pretrain_data import VOCAB_MULTIPLE, PretrainData
from bertsmith.training.roofline import flops_per_token
from bertsmith.training.signals import StopSignal
from bertsmith.types import Batch

STATE, SETTINGS = "state.pt", "settings.json"
AHEAD = 2  # steps in flight on the GPU, as in bertsmith's trainer


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyperparameters of the baseline."""

    size: str = "medium"  # a published size, or LAYERSxWIDTH
    minutes: float = 10.0
    rate: float = 1e-3
    rows: int = 256
    length: int = 128
    warmup: float = 0.06  # share of the minutes
    dropout: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    seed: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and width."""
        if self.size in SIZES:
            return SIZES[self.size]
        layers, cross, width = self.size.partition("x")
        if not (cross and layers.isdecimal() and width.isdecimal()):
            raise ConfigError(f"--size {self.size} is not one of {', '.join(SIZES)} or LAYERSxWIDTH such as 8x512")
        return int(layers), int(width)

    def factor(self, progress: float) -> float:
        """The factor of the learning rate at this progress."""
        return progress / self.warmup if progress < self.warmup else (1 - progress) / (1 - self.warmup)


@dataclass
class Progress:
    """Progress of the run, saved in its checkpoint."""

    steps: int = 0
    seconds: float = 0.0
    calls: int = 0
    compile_seconds: list[float] = field(default_factory=list)
    curve: list[dict[str, float]] = field(default_factory=list)


def baseline(
    name: str,
    settings: Settings,
    data: Path,
    output: Path,
    *,
    evaluator_config: EvaluatorConfig,
    device: str = "auto",
    lock: TrainingLock | None = None,
) -> dict[str, Any]:
    """Trains in OUTPUT/NAME for the minutes; returns the result, also written to result.json there."""
    folder, expected, opened = output / name, asdict(settings), PretrainData.open(data)
    known = results.finished(folder, expected, opened.fingerprints)
    if known is not None:
        return known
    before = results.read(folder / SETTINGS)
    if before is not None and before != expected:
        raise ConfigError(f"{folder} holds a run with other settings: choose another name")
    results.write(folder / SETTINGS, expected)
    lock = lock or TrainingLock()
    with StopSignal() as stopper, closing(lock):
        run = Run(settings, opened, folder, torch.device(choose_device(device)), evaluator_config)
        run.train(stopper, lock)
        return run.finish(name)


class Run:
    """One training run."""

    def __init__(
        self,
        settings: Settings,
        data: PretrainData,
        folder: Path,
        device: torch.device,
        evaluator_config: EvaluatorConfig,
    ) -> None:
        self.settings, self.data, self.folder, self.device = settings, data, folder, device
        self.evaluator_config = evaluator_config
        self.watch, self.evaluator = Stopwatch(device), evaluator_config.build(data)
        torch.manual_seed(settings.seed)
        self.model = build(settings, data).to(device)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.model, settings.weight_decay), lr=settings.rate, fused=device.type == "cuda"
        )
        self.progress = Progress()
        self._resume()
        self.compiles = device.type == "cuda"
        self.forward: Any = torch.compile(self.model) if self.compiles else self.model
        blocks = grouped(data.shards, data.tokenizer, settings.length)
        self.order, self.blocks = Order(len(blocks), settings.seed), torch.from_numpy(blocks).to(device)
        self.collate = MaskingCollator(data.tokenizer, device)
        self._began, self._before = self.watch(), self.progress.seconds

    @property
    def elapsed(self) -> float:
        """Seconds of training, earlier calls included."""
        return self._before + self.watch() - self._began

    def train(self, stopper: StopSignal, lock: TrainingLock) -> None:
        """Trains until the minutes are over, or raises `StoppedError` after saving."""
        in_flight: deque[torch.cuda.Event] = deque()
        every, first = self.evaluator_config.every, True
        self.progress.calls += 1
        due = self._before // every * every + every
        if not self.compiles:
            lock.acquire(lambda: stopper.requested)
        self._began = self.watch()
        while (share := self.elapsed / (60 * self.settings.minutes)) < 1:
            if stopper.requested:
                self._stop()
            self.step(share)
            if first and self.compiles:
                self._start_clock(stopper, lock)
            first = False
            self._wait(in_flight)
            if self.elapsed >= due:
                due = self._evaluate_now() // every * every + every
        self.watch.wait()
        self.progress.seconds = self.elapsed

    def step(self, share: float) -> None:
        """One step at this share of the minutes."""
        settings, done = self.settings, self.progress.steps
        self.model.train()
        ids = self.blocks[torch.from_numpy(self.order.take(done, settings.rows)).to(self.device)].long()
        torch.manual_seed(settings.seed * 1_000_003 + done)  # dropout
        inputs, labels = self.collate(ids, settings.seed * 1_000_003 + done)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = self.forward(input_ids=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate * settings.factor(share)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.steps += 1

    def scores(self) -> HeldOutScores:
        """Held-out scores of the current weights."""
        self.model.eval()
        return self.evaluator.score_logits(lambda batch: masked_logits(self.model, batch), self.device)

    def finish(self, name: str) -> dict[str, Any]:
        """Writes the model and the result and removes the checkpoint."""
        progress, settings = self.progress, self.settings
        final = self._point(progress.seconds)
        self.model.save_pretrained(self.folder / results.MODEL)
        self.data.tokenizer.save(self.folder / results.MODEL)
        half = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        about = {
            "flops_per_token": model_flops_per_token(settings, self.data),
            "peak_flops": measure_peak_flops(self.device, half),
        }
        tokens, compiled = self._tokens(), progress.compile_seconds
        result = {
            "name": name,
            "code": "transformers",
            "recipe": f"BertForMaskedLM {settings.size}",
            "minutes": settings.minutes,
            "seed": settings.seed,
            "seconds": progress.seconds,
            "steps": progress.steps,
            "tokens": tokens,
            "text_tokens": self.data.shards.tokens,
            "compile_seconds": compiled,
            "calls": progress.calls,
            **speed(tokens, progress.seconds, progress.steps, len(compiled), about),
            **about,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "final": final,
            "curve": ended(progress.curve, final),
            "judge": {
                "fingerprint": self.evaluator.fingerprint,
                "pieces": self.evaluator.pieces,
                **asdict(self.evaluator_config),
            },
            "fingerprints": self.data.fingerprints,
            "settings": asdict(settings),
        }
        results.write(self.folder / results.RESULT, result)
        if (self.folder / STATE).exists():
            Disk().remove(self.folder / STATE)
        return result

    def _start_clock(self, stopper: StopSignal, lock: TrainingLock) -> None:
        self.watch.wait()
        self.progress.compile_seconds.append(self.watch() - self._began)
        lock.acquire(lambda: stopper.requested)
        self._began = self.watch()

    def _evaluate_now(self) -> float:
        """Adds a point to the curve; returns its training seconds."""
        self.watch.wait()
        seconds = self.elapsed
        with self.watch.paused():
            self.progress.curve.append(self._point(seconds))
        return seconds

    def _point(self, seconds: float) -> dict[str, float]:
        point = {"seconds": seconds, "step": self.progress.steps, "tokens": self._tokens()}
        return point | asdict(self.scores())

    def _tokens(self) -> int:
        return self.progress.steps * self.settings.rows * self.settings.length

    def _wait(self, in_flight: deque[torch.cuda.Event]) -> None:
        """Keeps the host within `AHEAD` steps of the device, so that host times are accurate."""
        if self.device.type == "cuda":
            in_flight.append(torch.cuda.Event())
            in_flight[-1].record()
            if len(in_flight) > AHEAD:
                in_flight.popleft().synchronize()

    def _stop(self) -> None:
        self.watch.wait()
        self.progress.seconds = self.elapsed
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        file = io.BytesIO()
        torch.save({**parts, "progress": asdict(self.progress), "data": self.data.fingerprints}, file)
        Disk().write_file(self.folder / STATE, [file.getbuffer()])
        raise StoppedError(
            f"stopped after step {self.progress.steps:,}, which is saved: run the same command again to resume"
        )

    def _resume(self) -> None:
        if not (self.folder / STATE).exists():
            return
        saved: Mapping[str, Any] = torch.load(self.folder / STATE, map_location=self.device, weights_only=True)
        if saved["data"] != self.data.fingerprints:
            raise ConfigError(f"{self.folder} was trained with other data: choose another name, or pass the same ones")
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.progress = Progress(**saved["progress"])


def build(settings: Settings, data: PretrainData) -> Any:
    """transformers' model with random weights and bertsmith's padded vocabulary size."""
    import transformers

    transformers.logging.disable_progress_bar()
    needless_masks.skip_needless_masks()
    layers, width = settings.shape
    shape = transformers.BertConfig(
        vocab_size=-(-data.tokenizer.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(width // HEAD_WIDTH, 1),
        intermediate_size=4 * width,
        max_position_embeddings=max(settings.length, 512),
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        pad_token_id=data.tokenizer.padding_id,
    )
    shape._attn_implementation = "sdpa"
    return transformers.BertForMaskedLM(shape)


def parameter_groups(model: Any, decay: float) -> list[dict[str, Any]]:
    """Two parameter groups as in transformers' Trainer: no weight decay for biases and norms."""
    named = list(model.named_parameters())
    undecayed = [weight for name, weight in named if "bias" in name or "LayerNorm" in name]
    known = {id(weight) for weight in undecayed}
    others = [weight for _, weight in named if id(weight) not in known]
    return [{"params": others, "weight_decay": decay}, {"params": undecayed, "weight_decay": 0.0}]


def masked_logits(model: Any, batch: Batch) -> Tensor:
    """Logits at the label positions of a batch [R, V]."""
    hidden = model.bert(input_ids=batch.input_ids, attention_mask=(batch.document_ids != 0).long()).last_hidden_state
    return model.cls(hidden.flatten(0, 1)[batch.indices[OBJECTIVE]])


def model_flops_per_token(settings: Settings, data: PretrainData) -> float:
    """FLOPs per token, counted as for a bertsmith model of the same shape."""
    layers, width = settings.shape
    shape = {"layers": layers, "width": width, "heads": max(width // HEAD_WIDTH, 1)}
    with torch.device("meta"):
        model = Model.build(bert.Config(**shape, vocab_size=data.tokenizer.vocab_size), [masked_lm.Config()])
    return flops_per_token(model, length=settings.length, labels={OBJECTIVE: RATE})

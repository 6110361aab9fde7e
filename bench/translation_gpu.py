"""Training and beam search of the Transformer against transformers' MarianMTModel: same size, one process.

    PYTHONPATH=src python bench/translation_gpu.py [--only beam train checks] [--rounds 3] [--profile]
        [--set encoder.dropout=0.1]... [--variants full packed graphs] [--peers compiled eager] [--stop-after 500]
        [--device cuda]

Random tokens, random weights, 6 + 6 layers of width 512, vocabulary 10,000, bfloat16. Tokens are those of source and
target, without padding.

Training, a whole step of 512 pairs: `full` is 32 + 32 tokens without padding, `packed` the same number of pairs of 16
to 32 tokens packed into rows of 128, `graphs` is `full` as CUDA graphs. Marian gets 32 + 32 tokens, label smoothing and
fused AdamW; neither clips gradients. Beam search: beam 4, 128 sources of 32 tokens, exactly 32 new tokens, from ids
to ids. Medians of interleaved rounds. Checks: captured and uncaptured decoding find the same tokens; the loss of packed
pairs is that of padded ones, compiled or not; the loss on the GPU is that of the CPU. `--profile`: kernels of a step.
After `--stop-after` seconds no further candidate is compiled; those that are ready are measured.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bertsmith import recipes
from bertsmith.data.collate import collate
from bertsmith.inference import beam_search
from bertsmith.inference.beam_search import Hypothesis, SearchSettings
from bertsmith.inference.precision import convert_precision
from bertsmith.model_io.model import Model
from bertsmith.training.distributed import World
from bertsmith.training.recipe import Recipe, with_overrides
from bertsmith.training.trainer import Trainer
from bertsmith.types import Batch, Row, Vocabulary

PAIRS, TOKENS, PACKED_LENGTH, VOCABULARY = 512, 32, 128, 10_000
SENTENCES, BEAMS = 128, 4
PADDING, START, END, FIRST = 0, 1, 2, 10  # ids; texts have those from FIRST on
SMALL = {"layers": 2, "width": 64, "heads": 2, "feed_forward": 128}  # encoder of a run on a CPU
LOSS_TOLERANCE = {"padded": 0.0, "packed": 2e-3, "compiled": 2e-3, "CPU": 1e-2}  # of bfloat16
NORM_TOLERANCE = 0.03

PARTS = ("beam", "train", "checks")
UNITS = {"beam": "sentences/s", "train": "source + target tokens/s"}
PEER = "marian"

Step = Callable[[], int]  # runs once, and returns the number of tokens or sentences


def main(words: Sequence[str] | None = None) -> dict[str, float]:
    """Prints checks and a table; returns tokens and sentences per second by name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--variants", nargs="*", default=["full", "packed", "graphs"])
    parser.add_argument("--peers", nargs="*", default=["compiled", "eager"], choices=["compiled", "eager"])
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of bertsmith's recipe")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(words)
    options.end = time.monotonic() + options.stop_after
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}", flush=True)
    speeds: dict[str, float] = {}
    lines: list[str] = []
    for part in (part for part in PARTS if part in options.only):
        if part == "checks":
            run_checks(options)
            continue
        found = compare(candidates_of(part, options), options, steps=options.steps if part == "train" else 2)
        lines += table_rows(found, UNITS[part])
        speeds |= {name: statistics.median(rates) for name, rates in found.items()}
    print(
        "\n".join(["| | median | lowest | highest | | of Marian's best |", "|---|---|---|---|---|---|", *lines]),
        flush=True,
    )
    return speeds


def candidates_of(part: str, options: argparse.Namespace) -> Mapping[str, Callable[[], Step]]:
    """What a part compares, ours first."""
    if part == "beam":
        peers = {f"beam {PEER}": lambda: marian_generate(options)} if options.peers else {}
        return {"beam": lambda: beam_step(options), **peers}
    makers = {f"train {kind}": partial(training_step, kind, options) for kind in options.variants}
    return makers | {f"train {PEER} {kind}": partial(marian_step, kind, options) for kind in options.peers}


def table_rows(found: dict[str, list[float]], unit: str) -> list[str]:
    """Markdown, with the speed as a multiple of the fastest peer."""
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    peer = max((value for name, value in medians.items() if PEER in name), default=None)
    rows = []
    for name, rates in found.items():
        ratio = "" if peer is None else f"{medians[name] / peer:.2f}"
        rows.append(f"| {name} | {medians[name]:,.0f} | {min(rates):,.0f} | {max(rates):,.0f} | {unit} | {ratio} |")
    return rows


def compare(
    makers: dict[str, Callable[[], Step]], options: argparse.Namespace, *, steps: int
) -> dict[str, list[float]]:
    """The speeds of each candidate that runs, by round."""
    candidates: dict[str, Step] = {}
    for name, make in makers.items():
        if time.monotonic() > options.end:
            print(f"{name}: left out, since --stop-after is over", flush=True)
            continue
        with reported(name):
            began = time.perf_counter()
            step = make()
            for _ in range(6):
                step()
            synchronize(options.device)
            print(f"{name}: ready after {time.perf_counter() - began:.1f} s", flush=True)
            candidates[name] = step
    speeds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(options.rounds):
        for name, step in candidates.items():
            with reported(name):
                began = time.perf_counter()
                count = sum(step() for _ in range(steps))
                synchronize(options.device)
                speeds[name].append(count / (time.perf_counter() - began))
    for name, step in candidates.items():
        if options.profile and options.device == "cuda" and PEER not in name:
            with reported(f"profile of {name}"):
                print_kernels(name, step)
    return {name: rates for name, rates in speeds.items() if rates}


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Prints an error and continues."""
    try:
        yield
    except Exception as error:  # one candidate must not end the others
        print(f"{name}: {type(error).__name__}: {str(error)[:600]}\n{traceback.format_exc()[-1500:]}", flush=True)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def print_kernels(name: str, step: Step, *, steps: int = 2, most: int = 15) -> None:
    """The kernels of a step, longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    milliseconds, calls = Counter[str](), Counter[str]()
    for event in profile.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            milliseconds[event.name[:90]] += event.device_time_total / steps / 1e3
            calls[event.name[:90]] += 1
    print(f"{name}: {sum(milliseconds.values()):.2f} ms of kernels, {sum(calls.values()) / steps:.0f} launches")
    for kernel, spent in milliseconds.most_common(most):
        print(f"{spent:9.3f} ms {calls[kernel] / steps:7.1f} × {kernel}", flush=True)


def make_recipe(options: argparse.Namespace, *changes: str) -> Recipe:
    small = [f"encoder.{name}={value}" for name, value in SMALL.items()] if options.device == "cpu" else []
    settings = [f"encoder.vocab_size={VOCABULARY}", "steps=1000000", *small, *changes, *options.set]
    return with_overrides(recipes.find("transformer/base"), settings)


def make_model(recipe: Recipe) -> Model:
    torch.manual_seed(0)
    vocabulary = Vocabulary(size=VOCABULARY, end_id=END, special_ids=(PADDING, START, END))
    return Model.build(recipe.encoder, recipe.objectives.values(), vocabulary=vocabulary)


def random_row(draw: np.random.Generator, length: int, *, source: bool) -> Row:
    """A source text with its end token, or a target text after the start token."""
    ids = draw.integers(FIRST, VOCABULARY, length).astype(np.int32)
    ids[-1 if source else 0] = END if source else START
    zeros = np.zeros(length, np.int8)
    return Row(ids, zeros.astype(np.uint8), zeros, np.zeros((length, 2), np.int32), np.arange(length, dtype=np.int32))


def random_pairs(count: int, *, shortest: int = TOKENS) -> tuple[list[Row], list[Row]]:
    draw = np.random.default_rng(0)
    lengths = draw.integers(shortest, TOKENS + 1, (2, count))
    sources, targets = ([random_row(draw, length, source=not side) for length in lengths[side]] for side in (0, 1))
    return sources, targets


def make_batch(sources: Sequence[Row], targets: Sequence[Row], *, packed: bool) -> Batch:
    """One pair per row, or rows of several pairs that have the same number on either side."""
    if not packed:
        length = max(map(len, [*sources, *targets]))
        return collate(sources, length=length).replace(target=collate(targets, length=length))
    longer = [max(len(one), len(other)) for one, other in zip(sources, targets, strict=True)]
    rows: list[list[int]] = [[]]
    for index in range(len(sources)):
        if sum(longer[one] for one in rows[-1]) + longer[index] > PACKED_LENGTH:
            rows.append([])
        rows[-1].append(index)
    source, target = (
        [collate([side[i] for i in row], length=PACKED_LENGTH, pack=True) for row in rows]
        for side in (sources, targets)
    )
    return joined(source).replace(target=joined(target))


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches of one row each as one batch."""
    names = ("input_ids", "position_ids", "segment_ids", "document_ids", "special_mask", "sample_ids")
    fields = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in names}
    ids = fields["document_ids"]
    starts = torch.cat([torch.ones(len(ids), 1, dtype=torch.bool), ids[:, 1:] != ids[:, :-1]], 1).flatten()
    bounds = torch.cat([starts.nonzero().flatten(), torch.tensor([ids.numel()])]).to(torch.int32)
    firsts = (starts & (ids.flatten() != 0)).nonzero().flatten()
    return batches[0].replace(**fields, cu_seqlens=bounds, cls_positions=firsts, max_seqlen=PACKED_LENGTH, dense=False)


def count_tokens(batch: Batch) -> int:
    return int(batch.count_tokens())


def training_step(kind: str, options: argparse.Namespace) -> Step:
    """A step of our trainer on one batch."""
    packed = kind == "packed"
    batch = make_batch(*random_pairs(options.pairs, shortest=16 if packed else TOKENS), packed=packed)
    tokens, (rows, length) = count_tokens(batch), batch.input_ids.shape
    graphs = f"compute.cuda_graphs={'true' if kind == 'graphs' else 'false'}"
    recipe = make_recipe(options, f"batch_size={rows}", f"max_length={length}", graphs)
    world, moved = World(device=torch.device(options.device)), batch.to(options.device)
    trainer = Trainer(
        make_model(recipe),
        lambda _: [moved],
        plan=recipe.plan,
        optimizer=recipe.optimizer,
        precision="bf16" if options.device == "cuda" else "fp32",
        compute=recipe.compute,
        world=world,
    )

    def step() -> int:
        next(trainer)
        return tokens

    return step


def marian(options: argparse.Namespace) -> Any:
    import transformers

    shape: Any = make_recipe(options).encoder
    sides: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sides |= {
            f"{side}_layers": shape.layers,
            f"{side}_attention_heads": shape.heads,
            f"{side}_ffn_dim": shape.inner,
        }
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=shape.width,
        **sides,
        dropout=shape.dropout,
        attention_dropout=shape.attention_dropout,
        activation_function=shape.activation,
        max_position_embeddings=256,
        pad_token_id=PADDING,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        scale_embedding=True,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return transformers.MarianMTModel(config).to(options.device)


def marian_step(kind: str, options: argparse.Namespace) -> Step:
    """A step of transformers' model, compiled or not."""
    model, device = marian(options).train(), options.device
    smoothing = make_recipe(options).objectives["translation"].label_smoothing  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    ids = torch.randint(FIRST, VOCABULARY, (2, options.pairs, TOKENS), device=device)
    labels = torch.randint(FIRST, VOCABULARY, (options.pairs, TOKENS), device=device)

    def loss_of(source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=source, decoder_input_ids=target, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)

    forward = torch.compile(loss_of) if kind == "compiled" else loss_of

    def step() -> int:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = forward(ids[0], ids[1], labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return 2 * options.pairs * TOKENS

    return step


def searcher(options: argparse.Namespace) -> Callable[[], list[list[Hypothesis]]]:
    """A beam search from ids to ids, of a model that never ends a text."""
    device = options.device
    model: Any = make_model(make_recipe(options)).eval().to(device)
    autocast = convert_precision(model, "bfloat16" if device == "cuda" else "float32", device)
    draw, encoder, head = np.random.default_rng(0), model.encoder, model.objectives["translation"]
    rows = [random_row(draw, TOKENS + 1, source=True) for _ in range(options.sentences)]
    banned = torch.tensor([PADDING, START, END], device=device)
    settings, limits = SearchSettings(beam_size=BEAMS), [TOKENS] * len(rows)

    def log_probs(ids: torch.Tensor, state: Any) -> torch.Tensor:
        logits = head.logits(encoder.step(ids, state), encoder.target_embeddings)
        return logits.float().log_softmax(-1).index_fill_(1, banned, -torch.inf)

    def search() -> list[list[Hypothesis]]:
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=autocast):
            batch = collate(rows, length=TOKENS + 1).to(device)
            dtype = torch.bfloat16 if autocast else torch.float32
            state = encoder.start(batch, hypotheses=BEAMS, length=TOKENS, dtype=dtype)
            how: dict[str, Any] = {"start_id": START, "end_id": END, "captures": encoder.captures, "device": device}
            return beam_search.beam_search(log_probs, state, limits=limits, settings=settings, **how)

    return search


def beam_step(options: argparse.Namespace) -> Step:
    search = searcher(options)

    def step() -> int:
        found = search()
        assert all(len(one.tokens) == TOKENS for (one,) in found)
        return len(found)

    return step


def marian_generate(options: argparse.Namespace) -> Step:
    model = marian(options).eval().to(torch.bfloat16 if options.device == "cuda" else torch.float32)
    ids = torch.randint(FIRST, VOCABULARY, (options.sentences, TOKENS), device=options.device)
    forced = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "num_beams": BEAMS, "do_sample": False}

    @torch.inference_mode()
    def step() -> int:
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **forced)
        synchronize(options.device)
        return len(found)

    return step


def run_checks(options: argparse.Namespace) -> None:
    with reported("check of captured decoding"):
        check_decoding(options)
    with reported("check of losses"):
        check_losses(options)


def check_decoding(options: argparse.Namespace) -> None:
    """Prints whether decoding by CUDA graphs finds the tokens of decoding without them."""
    search = searcher(options)
    captured, graph_steps = search(), beam_search.GRAPH_STEPS
    captured = search()
    try:
        beam_search.GRAPH_STEPS = 10**9
        plain = search()
    finally:
        beam_search.GRAPH_STEPS = graph_steps
    equal = sum(one[0].tokens == other[0].tokens for one, other in zip(captured, plain, strict=True))
    print(f"check: captured decoding finds {equal} of {len(plain)} translations of uncaptured decoding", flush=True)


def check_losses(options: argparse.Namespace) -> None:
    """Prints losses and gradient norms of the same pairs, packed, padded, compiled, and on the CPU."""
    recipe = make_recipe(options, "encoder.dropout=0")
    model, pairs = make_model(recipe).train(), random_pairs(64, shortest=8)
    found: dict[str, tuple[float, float]] = {}
    for name in ("CPU", "padded", "packed", "compiled"):
        if name == "compiled" and options.device != "cuda":
            continue
        device = "cpu" if name == "CPU" else options.device
        model.to(device).zero_grad()
        batch = model.corrupt(make_batch(*pairs, packed=name in ("packed", "compiled")).to(device))
        forward = torch.compile(model, dynamic=False) if name == "compiled" else model
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = forward(batch).mean()
        loss.backward()
        norm = torch.stack([each.grad.float().norm() for each in model.parameters() if each.grad is not None]).norm()
        found[name] = loss.item(), norm.item()
        print(f"check: loss {loss.item():.5f} gradient norm {norm.item():.5f} {name}", flush=True)
    for name, values in found.items():
        errors = [abs(value / other - 1) for value, other in zip(values, found["padded"], strict=True)]
        right = errors[0] <= LOSS_TOLERANCE[name] and errors[1] < NORM_TOLERANCE
        shown = f"loss by {errors[0]:.1e}, gradient norm by {errors[1]:.1e}"
        print(f"check: {name} and padded differ in {shown}: {'ok' if right else 'WRONG'}", flush=True)


if __name__ == "__main__":
    main()

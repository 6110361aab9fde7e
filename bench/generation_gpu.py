"""Greedy generation of GPT-1 against transformers' `generate`, one process, interleaved rounds.

    PYTHONPATH=src python bench/generation_gpu.py [--prompts 128] [--prompt-tokens 32] [--new-tokens 128] [--rounds 5]
        [--set layers=12 width=768] [--peers gpt gpt2 gpt2-static] [--precision bfloat16] [--device cuda]

bertsmith: `Predictor.generate` from strings to strings, tokenization included. transformers: `generate` of prompts that
are token ids on the device, in one batch without padding, in the same precision:

- `gpt`: `OpenAIGPTLMHeadModel` with the same weights, from a folder that bertsmith saved. It has no key/value cache
  (its `forward` takes no `past_key_values`), so each step runs over all tokens so far.
- `gpt2`: `GPT2LMHeadModel` of the same size with random weights and its dynamic cache: the fair peer. Its blocks have
  the norm before instead of after each sublayer, which costs the same, and one norm more in all.
- `gpt2-static`: the same with a static cache, for which `generate` compiles the forward pass on a GPU.

Weights are random, and words of three letters are the vocabulary of 40,478 tokens. `equal` is the share of the tokens
of `gpt` that bertsmith generated too. Rounding in bfloat16 decides between close tokens, and all tokens after such a
difference differ; the line below the table therefore compares a few prompts in float32. Medians; × is relative to
bertsmith's time.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.config import override
from bertsmith.encoders import gpt
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.objectives import causal_lm
from bertsmith.tokenizers.bpe import BPE, END, LAST

BERTSMITH, GPT, GPT2, STATIC = "bertsmith", "gpt", "gpt2", "gpt2-static"
GAIN = 1.5  # of random linear layers
CHECKED = 8  # prompts in float32
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

Tokens = NDArray[np.int64]  # [prompts, new tokens]


def word_tokenizer(size: int) -> BPE:
    """A tokenizer of `size` tokens; most are words of three letters."""
    letters = string.ascii_lowercase
    pairs = [(first, second + END) for first in letters for second in letters]
    triples = [(first, f"{second}{third}") for first in letters for second, third in pairs]
    merges = [*pairs, *triples, *((first, f"{a}{b}") for first in letters for a, b in triples)]
    first = ["<unk>", *letters, *(f"{letter}{END}" for letter in letters)]
    merges = merges[: size - len(first) - len(LAST)]
    return BPE.build([*first, *(f"{a}{b}" for a, b in merges), *LAST], merges, splitter="pattern")


def random_prompts(tokenizer: BPE, *, count: int, tokens: int) -> list[str]:
    """Texts of words of the vocabulary, with that many tokens each."""
    words = [token.removesuffix(END) for token in tokenizer.tokens() if token.endswith(END)]
    draw = np.random.default_rng(0)
    return [" ".join(words[index] for index in draw.integers(len(words), size=tokens)) for _ in range(count)]


def random_predictor(config: gpt.Config, tokenizer: BPE, *, device: str, precision: Any) -> Predictor:
    """A model whose tokens depend on those before them, and that does not end its texts.

    Large weights of the blocks: with GPT-1's initial ones, each token would be repeated for ever, because the blocks
    hardly change its embedding. The logit of the end token is always 0.
    """
    torch.manual_seed(0)
    model = Model.build(config, [causal_lm.Config()])
    with torch.no_grad():
        for name, weight in model.encoder.named_parameters():
            if "blocks" in name and weight.dim() > 1:
                weight.normal_(0, GAIN / weight.shape[1] ** 0.5)
        model.encoder.token_embeddings[tokenizer.end_id] = 0.0  # type: ignore[index]
    return Predictor(model, tokenizer, device=device, precision=precision)


def bertsmith_tokens(predictor: Predictor, prompts: Sequence[str], new_tokens: int) -> Tokens:
    return np.array([one["tokens"] for one in predictor.generate(prompts, max_new_tokens=new_tokens)])


def transformers_model(name: str, folder: Path, *, device: str, dtype: torch.dtype) -> Any:
    """A peer in evaluation mode."""
    import transformers

    if name == GPT:
        return transformers.OpenAIGPTLMHeadModel.from_pretrained(folder, dtype=dtype).to(device).eval()
    shape = transformers.OpenAIGPTConfig.from_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.n_positions,
        n_embd=shape.n_embd,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).to(device, dtype).eval()


def transformers_tokens(
    model: Any, ids: torch.Tensor, new_tokens: int, *, name: str, suppressed: Sequence[int]
) -> Tokens:
    """Greedy, without an end token; bertsmith never generates special tokens either."""
    caches: dict[str, Any] = {GPT: {"use_cache": False}, STATIC: {"cache_implementation": "static"}}
    with torch.inference_mode():
        generated = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            suppress_tokens=list(suppressed),
            **caches.get(name, {}),
        )
    return generated[:, ids.shape[1] :].cpu().numpy()


def equal_share(first: Tokens, second: Tokens) -> float:
    return float((first == second).mean())


def candidates(
    predictor: Predictor, prompts: Sequence[str], options: argparse.Namespace, folder: Path, *, dtype: torch.dtype
) -> dict[str, Callable[[], Tokens]]:
    """What to measure, by name."""
    tokenizer = predictor.tokenizer
    ids = torch.tensor(np.stack([tokenizer.encode(prompt).ids for prompt in prompts]), device=options.device).long()
    suppressed = sorted(tokenizer.special_ids - {tokenizer.end_id})
    found: dict[str, Callable[[], Tokens]] = {
        BERTSMITH: lambda: bertsmith_tokens(predictor, prompts, options.new_tokens)
    }
    for name in options.peers:
        model = transformers_model(name, folder, device=options.device, dtype=dtype)
        found[name] = lambda name=name, model=model: transformers_tokens(  # type: ignore[misc]
            model, ids, options.new_tokens, name=name, suppressed=suppressed
        )
    return found


def measure(runs: dict[str, Callable[[], Tokens]], rounds: int) -> tuple[dict[str, float], dict[str, Tokens]]:
    """The median seconds and the tokens of each candidate; the first run of each is not measured."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    tokens = {name: run() for name, run in runs.items()}
    for _, (name, run) in itertools.product(range(rounds), runs.items()):
        began = time.perf_counter()
        run()
        seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}, tokens


def main(words: Sequence[str] | None = None) -> dict[str, float]:
    """Prints the table; returns the median seconds of each candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=[GPT, GPT2, STATIC], choices=[GPT, GPT2, STATIC])
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=VALUE", help="of the encoder")
    parser.add_argument("--precision", default="bfloat16", choices=sorted(DTYPES))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(words)
    config = override(gpt.Config(), options.set)
    tokenizer = word_tokenizer(config.vocab_size)
    prompts = random_prompts(tokenizer, count=options.prompts, tokens=options.prompt_tokens)
    about: dict[str, Any] = {"device": options.device}
    exact = random_predictor(config, tokenizer, precision="float32", **about)
    with tempfile.TemporaryDirectory() as folder:
        exact.save(folder, overwrite=True)
        predictor = exact
        if options.precision != "float32":
            predictor = random_predictor(config, tokenizer, precision=options.precision, **about)
        runs = candidates(predictor, prompts, options, Path(folder), dtype=DTYPES[options.precision])
        seconds, tokens = measure(runs, options.rounds)
        print_table(seconds, tokens)
        if GPT in options.peers:
            options.peers = [GPT]
            runs = candidates(exact, prompts[:CHECKED], options, Path(folder), dtype=torch.float32)
            share = equal_share(*(run() for run in runs.values()))
            print(f"\n{len(prompts[:CHECKED])} prompts in float32: {share:.2%} of the tokens are equal")
    return seconds


def print_table(seconds: dict[str, float], tokens: dict[str, Tokens]) -> None:
    print("| | seconds | tokens/s | x | equal |\n|---|---|---|---|---|")
    for name, value in seconds.items():
        ratio = f"{value / seconds[BERTSMITH]:.2f}"
        equal = f"{equal_share(tokens[BERTSMITH], tokens[GPT]):.2%}" if name == GPT else ""
        print(f"| {name} | {value:.3f} | {tokens[name].size / value:,.0f} | {ratio} | {equal} |")


if __name__ == "__main__":
    main()

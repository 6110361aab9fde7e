"""Attention over packed texts as Triton kernels: no mask in memory, dropout on probabilities, no atomics backward.

Queries, keys and values are read from where one matrix product left them [T, 3, H, K], and their gradients are written
there. In eight bits all is written as it is and turned, gradients with their column sums. A block of queries visits the
keys of its own texts only. Places of a text follow each other: `begin` [T], where the text of a place begins, names the
text, and `end` [T] is where it ends. T flat places, W the next multiple of 16, H heads, K head width, tiles of M
queries and N keys. Scores are in powers of two.

No loop is reached that has nothing to do: where one may be left out, ptxas lets each product of matrices wait for the
one before (C7515), and all takes a tenth longer.
"""

import triton
import triton.language as tl

from bertsmith.nn.gelu_kernels import turn_stored

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1.0e30)  # a score that no exponential survives, and no infinity


@triton.jit
def _mixed(x):
    """Every bit of a number depends on every bit of another one."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def _chance(chances, places, T, part: tl.constexpr, EVEN: tl.constexpr):
    """What says of queries (part 0) or keys (1), together with the others and the head, which pairs are dropped."""
    return _numbers(chances + part * T, places, T, EVEN).to(tl.uint32)


@triton.jit
def _of_head(head):
    """An odd number, by which chances are multiplied in a head."""
    return _mixed(head.to(tl.uint32) * 0x9E3779B9 + 0x5BF03635) | 1


@triton.jit
def _kept(of_queries, of_keys, dropped: tl.constexpr):
    """Which pairs are kept, for two shapes that broadcast; `dropped` of 2**32 are not."""
    return of_queries * of_keys >= dropped


@triton.jit
def _tile(base, places, T, part: tl.constexpr, head, H: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr):
    """Queries (part 0), keys (1) or values (2) of some places [P, K]."""
    at = base + places.to(tl.int64)[:, None] * (3 * H * K) + (part * H + head) * K + tl.arange(0, K)[None, :]
    return tl.load(at) if EVEN else tl.load(at, mask=places[:, None] < T, other=0.0)


@triton.jit
def _plain(base, places, T, head, H: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr):
    """A tile of [T, H, K]."""
    at = base + places.to(tl.int64)[:, None] * (H * K) + head * K + tl.arange(0, K)[None, :]
    return tl.load(at) if EVEN else tl.load(at, mask=places[:, None] < T, other=0.0)


@triton.jit
def _numbers(base, places, T, EVEN: tl.constexpr):
    return tl.load(base + places) if EVEN else tl.load(base + places, mask=places < T, other=-1)


@triton.jit
def _reach(begin, end, first, T, SIZE: tl.constexpr, OTHER: tl.constexpr):
    """From where to where the texts of a block reach, and to where other blocks are all of the one that it is of."""
    last = tl.minimum(first + SIZE, T) - 1
    low, high = tl.load(begin + first), tl.load(end + last)
    plain = (tl.load(begin + last) == low) & (first + SIZE <= T) & (low % OTHER == 0)
    low = low // OTHER * OTHER
    return low, tl.where(plain, high // OTHER * OTHER, low), high


@triton.jit
def _look(
    acc, total, most, q, qkv, begin, begin_m, of_m, chances, places_m, low, high, T, head,
    dropped: tl.constexpr, scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Queries meet the keys from `low` to `high`: sums of values, of exponentials, and the greatest scores so far."""
    for first in range(low, high, N):
        places_n = first + tl.arange(0, N)
        score = tl.dot(q, tl.trans(_tile(qkv, places_n, T, 1, head, H, K, EVEN)))
        if MASKED:
            seen = begin_m[:, None] == _numbers(begin, places_n, T, EVEN)[None, :]
            if CAUSAL:
                seen = seen & (places_m[:, None] >= places_n[None, :])
            score = tl.where(seen, score * scale, NOTHING)
        times: tl.constexpr = 1.0 if MASKED else scale  # what it still lacks; NOTHING times it would be rounded
        higher = tl.maximum(most, tl.max(score, 1) * times)
        weight = tl.exp2(score * times - higher[:, None])
        less = tl.exp2(most - higher)
        total = total * less + tl.sum(weight, 1)
        if DROPOUT:
            of_n = _chance(chances, places_n, T, 1, EVEN)
            weight = tl.where(_kept(of_m[:, None], of_n[None, :], dropped), weight, 0.0)
        v = _tile(qkv, places_n, T, 2, head, H, K, EVEN)
        acc = tl.dot(weight.to(v.dtype), v, acc * less[:, None])
        most = higher
    return acc, total, most


@triton.jit
def forward(
    qkv, begin, end, chances, out, lse, small, turned, T, W,
    dropped: tl.constexpr, up: tl.constexpr, scale: tl.constexpr, eight: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr, EIGHT: tl.constexpr,
):  # fmt: skip
    """What a block of M queries of one head sees; in eight bits too, as it is and turned."""
    head, first = tl.program_id(0) % H, tl.program_id(0) // H * M
    places_m = first + tl.arange(0, M)
    q = _tile(qkv, places_m, T, 0, head, H, K, EVEN)
    begin_m = _numbers(begin, places_m, T, EVEN)
    of_m = _chance(chances, places_m, T, 0, EVEN) * _of_head(head) if DROPOUT else places_m
    low, middle, high = _reach(begin, end, first, T, M, N)
    acc = tl.zeros([M, K], tl.float32)
    total = tl.zeros([M], tl.float32)
    most = tl.full([M], NOTHING, tl.float32)
    if CAUSAL:
        middle, high = low, tl.minimum(high, first + M)
    elif low < middle:
        acc, total, most = _look(
            acc, total, most, q, qkv, begin, begin_m, of_m, chances, places_m, low, middle, T, head,
            dropped, scale, H, K, N, False, False, DROPOUT, True,
        )  # fmt: skip
    if middle < high:
        acc, total, most = _look(
            acc, total, most, q, qkv, begin, begin_m, of_m, chances, places_m, middle, high, T, head,
            dropped, scale, H, K, N, True, CAUSAL, DROPOUT, EVEN,
        )  # fmt: skip
    acc = acc * (up / total)[:, None]
    at = places_m.to(tl.int64)[:, None] * (H * K) + head * K + tl.arange(0, K)[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=places_m[:, None] < T)
    if EIGHT:
        tl.store(small + at, (acc * eight).to(small.dtype.element_ty), mask=places_m[:, None] < T)
        tl.debug_barrier()
        turn_stored(small, turned, first, head * K, T, W, H * K, M, K, EVEN)
    tl.store(lse + head * T + places_m, most + tl.log2(total), mask=places_m < T)


@triton.jit
def products(out, back, delta, T, H: tl.constexpr, K: tl.constexpr, M: tl.constexpr):
    """The sum over the width of what was seen times its gradient [H, T]."""
    head, places = tl.program_id(0) % H, tl.program_id(0) // H * M + tl.arange(0, M)
    one = _plain(out, places, T, head, H, K, False).to(tl.float32)
    other = _plain(back, places, T, head, H, K, False).to(tl.float32)
    tl.store(delta + head * T + places, tl.sum(one * other, 1), mask=places < T)


@triton.jit
def _to_keys(
    dk, dv, k, v, qkv, back, lse, delta, begin, begin_n, of_n, chances, places_n, low, high, T, head,
    dropped: tl.constexpr, down: tl.constexpr, scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr, M: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Keys and values meet the queries from `low` to `high`: their gradients."""
    for first in range(low, high, M):
        places_m = first + tl.arange(0, M)
        q = _tile(qkv, places_m, T, 0, head, H, K, EVEN)
        score = tl.dot(k, tl.trans(q)) * scale
        weight = tl.exp2(score - _numbers(lse + head * T, places_m, T, EVEN)[None, :])
        if MASKED:
            seen = begin_n[:, None] == _numbers(begin, places_m, T, EVEN)[None, :]
            if CAUSAL:
                seen = seen & (places_m[None, :] >= places_n[:, None])
            weight = tl.where(seen, weight, 0.0)
        g = _plain(back, places_m, T, head, H, K, EVEN)
        change = tl.dot(v, tl.trans(g))
        kept_weight = weight
        if DROPOUT:
            of_m = _chance(chances, places_m, T, 0, EVEN)
            kept = _kept(of_m[None, :], of_n[:, None], dropped)
            kept_weight = tl.where(kept, weight, 0.0)
            change = tl.where(kept, change, 0.0)
        dv = tl.dot(kept_weight.to(g.dtype), g, dv)
        change = weight * (change - down * _numbers(delta + head * T, places_m, T, EVEN)[None, :])
        dk = tl.dot(change.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def _to_queries(
    dq, q, g, most, whole, qkv, begin, begin_m, of_m, chances, places_m, low, high, T, head,
    dropped: tl.constexpr, scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Queries meet the keys from `low` to `high` once more: their gradients."""
    for first in range(low, high, N):
        places_n = first + tl.arange(0, N)
        k = _tile(qkv, places_n, T, 1, head, H, K, EVEN)
        weight = tl.exp2(tl.dot(q, tl.trans(k)) * scale - most[:, None])
        if MASKED:
            seen = begin_m[:, None] == _numbers(begin, places_n, T, EVEN)[None, :]
            if CAUSAL:
                seen = seen & (places_m[:, None] >= places_n[None, :])
            weight = tl.where(seen, weight, 0.0)
        change = tl.dot(g, tl.trans(_tile(qkv, places_n, T, 2, head, H, K, EVEN)))
        if DROPOUT:
            of_n = _chance(chances, places_n, T, 1, EVEN)
            change = tl.where(_kept(of_m[:, None], of_n[None, :], dropped), change, 0.0)
        change = weight * (change - whole[:, None])
        dq = tl.dot(change.to(k.dtype), k, dq)
    return dq


@triton.jit
def _leave(
    gradient, sums, values, places, T, block, part: tl.constexpr, head,
    eight: tl.constexpr, H: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, EIGHT: tl.constexpr,
):  # fmt: skip
    """Gradients [N, K] of queries (part 0), keys (1) or values (2) are written; in eight bits their sums too."""
    columns = (part * H + head) * K + tl.arange(0, K)
    at, inside = gradient + places.to(tl.int64)[:, None] * (3 * H * K) + columns[None, :], places[:, None] < T
    if EIGHT:
        values = values if EVEN else tl.where(inside, values, 0.0)
        # what is added to every key moves all scores of a query alike: nothing comes back to it
        total = tl.zeros([K], tl.float32) if part == 1 else tl.sum(values, 0)
        tl.store(sums + block * (3 * H * K) + columns, total)
        values *= eight
    tl.store(at, values.to(gradient.dtype.element_ty), mask=inside)


@triton.jit
def backward(
    qkv, begin, end, chances, back, lse, delta, gradient, turned, sums, T, W,
    dropped: tl.constexpr, up: tl.constexpr, down: tl.constexpr, scale: tl.constexpr, eight: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr, EVEN: tl.constexpr, EIGHT: tl.constexpr,
):  # fmt: skip
    """The gradients of N keys and values of one head, then of the N queries of the same places."""
    head, first = tl.program_id(0) % H, tl.program_id(0) // H * N
    places = first + tl.arange(0, N)
    mine = _numbers(begin, places, T, EVEN)
    of_queries = _chance(chances, places, T, 0, EVEN) * _of_head(head) if DROPOUT else places
    of_keys = _chance(chances, places, T, 1, EVEN) * _of_head(head) if DROPOUT else places
    low, middle, high = _reach(begin, end, first, T, N, M)
    k, v = _tile(qkv, places, T, 1, head, H, K, EVEN), _tile(qkv, places, T, 2, head, H, K, EVEN)
    dk, dv = tl.zeros([N, K], tl.float32), tl.zeros([N, K], tl.float32)
    if CAUSAL:
        middle = tl.maximum(low, first // M * M)
    elif low < middle:
        dk, dv = _to_keys(
            dk, dv, k, v, qkv, back, lse, delta, begin, mine, of_keys, chances, places, low, middle, T, head,
            dropped, down, scale, H, K, M, False, False, DROPOUT, True,
        )  # fmt: skip
    if middle < high:
        dk, dv = _to_keys(
            dk, dv, k, v, qkv, back, lse, delta, begin, mine, of_keys, chances, places, middle, high, T, head,
            dropped, down, scale, H, K, M, True, CAUSAL, DROPOUT, EVEN,
        )  # fmt: skip
    once = scale * up / LOG2_E
    _leave(gradient, sums, dk * once, places, T, first // N, 1, head, eight, H, K, EVEN, EIGHT)
    _leave(gradient, sums, dv * up, places, T, first // N, 2, head, eight, H, K, EVEN, EIGHT)

    q, g = _tile(qkv, places, T, 0, head, H, K, EVEN), _plain(back, places, T, head, H, K, EVEN)
    most = _numbers(lse + head * T, places, T, EVEN)
    whole = down * _numbers(delta + head * T, places, T, EVEN)
    dq = tl.zeros([N, K], tl.float32)
    if CAUSAL:
        middle, high = low, tl.minimum(high, first + N)
    elif low < middle:
        dq = _to_queries(
            dq, q, g, most, whole, qkv, begin, mine, of_queries, chances, places, low, middle, T, head,
            dropped, scale, H, K, M, False, False, DROPOUT, True,
        )  # fmt: skip
    if middle < high:
        dq = _to_queries(
            dq, q, g, most, whole, qkv, begin, mine, of_queries, chances, places, middle, high, T, head,
            dropped, scale, H, K, M, True, CAUSAL, DROPOUT, EVEN,
        )  # fmt: skip
    _leave(gradient, sums, dq * once, places, T, first // N, 0, head, eight, H, K, EVEN, EIGHT)
    if EIGHT:
        tl.debug_barrier()
        for part in tl.static_range(3):
            turn_stored(gradient, turned, first, (part * H + head) * K, T, W, 3 * H * K, N, K, EVEN)

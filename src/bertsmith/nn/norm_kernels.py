"""Sums and their LayerNorms as Triton kernels that cast, turn and sum up what the products around them want.

What a norm gives is not written in full: the next norm makes it again of the sum and its two numbers a place, and
products take it in eight bits. Loads run ahead of what is computed. A row is taken in two pieces of A and B columns,
powers of two, so that widths such as 768 have no idle lanes: instructions are the limit, not memory. Either B is 0, and
A may be more than the width. T places, W the next multiple of 16 (what is turned ends in zeros), D width, tiles of M
places, R at a time, turned N columns at a time; WHOLE: no tile is ragged and no piece too wide.
"""

import triton
import triton.language as tl

from bertsmith.nn.gelu_kernels import turn_stored


@triton.jit
def _at(places, columns, D: tl.constexpr):
    return places.to(tl.int64)[:, None] * D + columns[None, :]


@triton.jit
def _kept(of_place, of_column, places, columns, T, least: tl.constexpr, D: tl.constexpr):
    """What dropout keeps: see `dropout.drop`."""
    place = tl.load(of_place + places, mask=places < T, other=0)
    column = tl.load(of_column + columns, mask=columns < D, other=0)
    return place[:, None] * column[None, :] >= least


@triton.jit
def _added(
    x, more, of_place, of_column, rises, level, factor, shift, places, columns, T,
    least: tl.constexpr, up: tl.constexpr, D: tl.constexpr,
    NORMED: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """x, or its norm, and what is added."""
    at = _at(places, columns, D)
    inside = None if WHOLE else (columns < D)[None, :] & (places < T)[:, None]
    value = tl.load(x + at, mask=inside, other=None if WHOLE else 0.0).to(tl.float32)
    added = tl.load(more + at, mask=inside, other=None if WHOLE else 0.0).to(tl.float32)
    if NORMED:
        value = (value * rises[:, None] - level[:, None]) * factor[None, :] + shift[None, :]
    if DROPOUT:
        added = tl.where(_kept(of_place, of_column, places, columns, T, least, D), added * up, 0.0)
    return value + added


@triton.jit
def _put(pointer, value, places, columns, T, D: tl.constexpr, WHOLE: tl.constexpr):
    inside = None if WHOLE else (columns < D)[None, :] & (places < T)[:, None]
    tl.store(pointer + _at(places, columns, D), value.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _centred(value, means, columns, D: tl.constexpr, WHOLE: tl.constexpr):
    value -= means[:, None]
    return value if WHOLE else tl.where((columns < D)[None, :], value, 0.0)


@triton.jit
def norm_forth(
    x, x_mean, x_rise, x_weight, x_bias, more, of_place, of_column, weight, bias,
    total, small, turned, mean, rise, T, W,
    epsilon: tl.constexpr, least: tl.constexpr, up: tl.constexpr, scale: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    M: tl.constexpr, R: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
    NORMED: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """x + more [T, D], their mean and 1 / deviation [T], and the norm of it in eight bits, as it is and turned.

    With NORMED, x is itself a sum whose norm is meant.
    """
    left = tl.arange(0, A)
    factor, shift = tl.load(weight + left, mask=left < D) * scale, tl.load(bias + left, mask=left < D) * scale
    x_factor, x_shift = tl.load(x_weight + left, mask=left < D), tl.load(x_bias + left, mask=left < D)
    if B:
        right = A + tl.arange(0, B)
        factor_B, shift_B = tl.load(weight + right) * scale, tl.load(bias + right) * scale
        x_factor_B, x_shift_B = tl.load(x_weight + right), tl.load(x_bias + right)
    for tile in range(tl.program_id(0), (T + M - 1) // M, tl.num_programs(0)):
        for turn in tl.range(0, M // R, num_stages=STAGES):
            places = tile * M + turn * R + tl.arange(0, R)
            there = None if EVEN else places < T
            x_rises, x_level = places, places
            if NORMED:
                x_rises = tl.load(x_rise + places, mask=there)
                x_level = tl.load(x_mean + places, mask=there) * x_rises
            value = _added(
                x, more, of_place, of_column, x_rises, x_level, x_factor, x_shift, places, left, T, least, up,
                D, NORMED, DROPOUT, WHOLE,
            ).to(total.dtype.element_ty)  # fmt: skip
            _put(total, value, places, left, T, D, WHOLE)
            value = value.to(tl.float32)
            level = tl.sum(value, 1)
            if B:
                value_B = _added(
                    x, more, of_place, of_column, x_rises, x_level, x_factor_B, x_shift_B, places, right, T, least, up,
                    D, NORMED, DROPOUT, WHOLE,
                ).to(total.dtype.element_ty)  # fmt: skip
                _put(total, value_B, places, right, T, D, WHOLE)
                value_B = value_B.to(tl.float32)
                level += tl.sum(value_B, 1)
            means = level * (1 / D)
            value = _centred(value, means, left, D, WHOLE)
            square = tl.sum(value * value, 1)
            if B:
                value_B = _centred(value_B, means, right, D, WHOLE)
                square += tl.sum(value_B * value_B, 1)
            rises = tl.rsqrt(square * (1 / D) + epsilon)
            tl.store(mean + places, means, mask=there)
            tl.store(rise + places, rises, mask=there)
            _put(small, value * rises[:, None] * factor[None, :] + shift[None, :], places, left, T, D, WHOLE)
            if B:
                value_B = value_B * rises[:, None] * factor_B[None, :] + shift_B[None, :]
                _put(small, value_B, places, right, T, D, WHOLE)
        tl.debug_barrier()  # all of the program have stored their part
        for column in range(0, D, N):
            turn_stored(small, turned, tile * M, column, T, W, D, M, N, EVEN)


@triton.jit
def _come(one, two, total, rises, level, places, columns, T, D: tl.constexpr, WHOLE: tl.constexpr):
    """What comes back and what it came for, normed: where a piece is too wide nothing comes."""
    at = _at(places, columns, D)
    inside = None if WHOLE else (columns < D)[None, :] & (places < T)[:, None]
    coming = tl.load(one + at, mask=inside, other=None if WHOLE else 0.0).to(tl.float32)
    coming += tl.load(two + at, mask=inside, other=None if WHOLE else 0.0).to(tl.float32)
    value = tl.load(total + at, mask=inside, other=None if WHOLE else 0.0).to(tl.float32)
    return coming, value * rises[:, None] - level[:, None]


@triton.jit
def _go(
    gradient, small, of_place, of_column, found, places, columns, T,
    least: tl.constexpr, up: tl.constexpr, scale: tl.constexpr, D: tl.constexpr,
    DROPOUT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Writes a gradient; what of it goes to `more`."""
    _put(gradient, found, places, columns, T, D, WHOLE)
    if DROPOUT:
        found = tl.where(_kept(of_place, of_column, places, columns, T, least, D), found * up, 0.0)
    _put(small, found * scale, places, columns, T, D, WHOLE)
    return found


@triton.jit
def norm_back(
    one, two, total, mean, rise, weight, of_place, of_column,
    gradient, small, turned, sums, T, W,
    least: tl.constexpr, up: tl.constexpr, scale: tl.constexpr, D: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    M: tl.constexpr, R: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
    DROPOUT: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The gradient [T, D] of a sum, of two gradients of its norm; what of it goes to `more` in eight bits, and turned.

    Sums over places, a part for each program [3, D]: the weight's gradient, the bias's, and what goes to `more`.
    """
    left = tl.arange(0, A)
    factor = tl.load(weight + left, mask=left < D)
    of_weight, of_bias = tl.zeros([R, A], tl.float32), tl.zeros([R, A], tl.float32)
    of_more = tl.zeros([R, A], tl.float32)
    if B:
        right = A + tl.arange(0, B)
        factor_B = tl.load(weight + right)
        of_weight_B, of_bias_B = tl.zeros([R, B], tl.float32), tl.zeros([R, B], tl.float32)
        of_more_B = tl.zeros([R, B], tl.float32)
    for tile in range(tl.program_id(0), (T + M - 1) // M, tl.num_programs(0)):
        for turn in tl.range(0, M // R, num_stages=STAGES):
            places = tile * M + turn * R + tl.arange(0, R)
            there = None if EVEN else places < T
            rises = tl.load(rise + places, mask=there, other=None if EVEN else 0.0)
            shift = tl.load(mean + places, mask=there, other=None if EVEN else 0.0) * rises
            coming, value = _come(one, two, total, rises, shift, places, left, T, D, WHOLE)
            of_weight += coming * value
            of_bias += coming
            coming *= factor[None, :]
            along, level = tl.sum(coming * value, 1), tl.sum(coming, 1)
            if B:
                coming_B, value_B = _come(one, two, total, rises, shift, places, right, T, D, WHOLE)
                of_weight_B += coming_B * value_B
                of_bias_B += coming_B
                coming_B *= factor_B[None, :]
                along += tl.sum(coming_B * value_B, 1)
                level += tl.sum(coming_B, 1)
            along, level = (along * (1 / D))[:, None], (level * (1 / D))[:, None]
            found = (coming - level - value * along) * rises[:, None]
            of_more += _go(
                gradient, small, of_place, of_column, found, places, left, T, least, up, scale, D, DROPOUT, WHOLE
            )
            if B:
                found = (coming_B - level - value_B * along) * rises[:, None]
                of_more_B += _go(
                    gradient, small, of_place, of_column, found, places, right, T, least, up, scale, D, DROPOUT, WHOLE
                )
        tl.debug_barrier()
        for column in range(0, D, N):
            turn_stored(small, turned, tile * M, column, T, W, D, M, N, EVEN)
    part = sums + tl.program_id(0) * 3 * D
    tl.store(part + left, tl.sum(of_weight, 0), mask=left < D)
    tl.store(part + D + left, tl.sum(of_bias, 0), mask=left < D)
    tl.store(part + 2 * D + left, tl.sum(of_more, 0), mask=left < D)
    if B:
        tl.store(part + right, tl.sum(of_weight_B, 0))
        tl.store(part + D + right, tl.sum(of_bias_B, 0))
        tl.store(part + 2 * D + right, tl.sum(of_more_B, 0))

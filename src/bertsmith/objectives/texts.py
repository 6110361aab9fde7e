"""Where texts lie among the flat places of a batch. T flat places, N texts, M places of the longest text, D width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bertsmith.types import Batch


@dataclass(frozen=True)
class Texts:
    """The places of each text side by side, whatever rows they stand in and whoever stands beside them."""

    places: Tensor  # [N, M] int64 flat; those beyond a text are some place or other
    inside: Tensor  # [N, M] bool: the place is one of the text

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """The texts of a batch; where there is none, its row is that of the first text."""
        length, document_T = batch.input_ids.shape[1], batch.document_ids.flatten()
        first_N1 = batch.cls_positions.clamp(min=0)[:, None]
        within_M = torch.arange(batch.max_seqlen, device=batch.input_ids.device)
        place_NM = first_N1 + within_M
        inside_NM = within_M < length - first_N1 % length  # no further than the end of the row
        place_NM = torch.where(inside_NM, place_NM, first_N1)
        return cls(place_NM, inside_NM & (document_T[place_NM] == document_T[first_N1]))

    def lengths(self) -> Tensor:
        """How many places each text has [N]."""
        return self.inside.sum(1)

    def last(self) -> Tensor:
        """The flat place of each text's last token [N]."""
        return self.places[:, 0] + self.lengths() - 1

    def mean(self, x_TD: Tensor) -> Tensor:
        """The mean over the places of each text [N, D]."""
        inside_NM1 = self.inside[:, :, None]
        sum_ND = (x_TD[self.places] * inside_NM1).sum(1, dtype=torch.promote_types(x_TD.dtype, torch.float32))
        mean_ND: Tensor = (sum_ND / inside_NM1.sum(1)).to(x_TD.dtype)
        return mean_ND

    def most(self, x_TD: Tensor) -> Tensor:
        """The largest value over the places of each text [N, D]."""
        return x_TD[self.places].masked_fill(~self.inside[:, :, None], -torch.inf).amax(1)

    def flat(self, x_NMD: Tensor, size: int) -> Tensor:
        """What stands text by text, back at its flat places [T = size, D]; zeros where there is no text."""
        n, m, width = x_NMD.shape
        place_NM = torch.where(self.inside, self.places, size)
        # a slot without a text repeats the first text's places: the text itself, which has the lower number, stays
        owner_T = torch.full((size + 1,), n * m, device=x_NMD.device)
        number_NM = torch.arange(n * m, device=x_NMD.device)
        owner_T = owner_T.scatter_reduce(0, place_NM.flatten(), number_NM, "amin")[:size]
        padded = torch.cat((x_NMD.reshape(n * m, width), x_NMD.new_zeros(1, width)))
        return padded[owner_T]

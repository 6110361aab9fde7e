"""What the parts of one model have in common: activation, norm, dropout, and how weights begin."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from bertsmith.errors import ConfigError
from bertsmith.nn.activations import activation


@dataclass(frozen=True)
class Style:
    """BERT's own by default (bert: modeling.py)."""

    activation: str = "gelu"
    epsilon: float = 1e-12  # of every LayerNorm
    deviation: float = 0.02  # of the normal distribution that matrices and tables begin with
    truncate: bool = True
    dropout: float = 0.0  # of blocks: on what each half of one adds
    attention_dropout: float = 0.0  # of blocks: on probabilities
    of_words: str = ""  # activation of the head for words, where it is another one
    biases: bool = True  # of norms, of matrices in blocks, and of the one in the head for words

    def __post_init__(self) -> None:
        activation(self.activation)
        activation(self.of_words or self.activation)
        if self.epsilon <= 0 or self.deviation < 0:
            raise ConfigError(
                f"epsilon={self.epsilon} must be over 0 and initializer_range={self.deviation} not under 0"
            )

    def norm(self, width: int) -> nn.LayerNorm:
        """A LayerNorm in this style."""
        return nn.LayerNorm(width, eps=self.epsilon, bias=self.biases)

    def initialise(self, part: nn.Module) -> None:
        """Matrices and tables from a normal distribution, biases 0, norms 1 and 0.

        BERT's code cuts the distribution at two deviations (`tf.truncated_normal_initializer`), which leaves 0.88 of
        the deviation that is named; transformers does not cut.
        """
        for module in part.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                if self.truncate:
                    nn.init.trunc_normal_(
                        module.weight, std=self.deviation, a=-2 * self.deviation, b=2 * self.deviation
                    )
                else:
                    nn.init.normal_(module.weight, std=self.deviation)
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
                nn.init.zeros_(module.bias)

"""Settings that all layers of a model share: activation, layer norm, dropout, biases and weight initialisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from bertsmith.errors import ConfigError
from bertsmith.nn.activations import get_activation


@dataclass(frozen=True)
class LayerConfig:
    """BERT's settings by default (bert: modeling.py)."""

    activation: str = "gelu"
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02  # standard deviation of new matrices and embedding tables
    truncated_init: bool = True  # redraw new weights beyond two standard deviations
    dropout: float = 0.0  # on the output of each attention and feed-forward sub-layer
    attention_dropout: float = 0.0  # on attention probabilities
    lm_head_activation: str = ""  # activation of the MLM head; empty: `activation`
    lm_head_transform: bool = True  # linear layer, activation and norm in LM heads; false: the token table alone
    lm_head_bias: bool = True  # of the logits in LM heads
    classifier_bias: bool = True  # of the output layers of text classification and regression
    biases: bool = True  # of layer norms, of the linear layers in blocks and of the one in the MLM head

    def __post_init__(self) -> None:
        get_activation(self.activation)
        get_activation(self.lm_head_activation or self.activation)
        if self.layer_norm_eps <= 0 or self.initializer_range < 0:
            raise ConfigError(
                f"layer_norm_eps={self.layer_norm_eps} must be above 0 and "
                f"initializer_range={self.initializer_range} must not be negative"
            )

    def layer_norm(self, width: int) -> nn.LayerNorm:
        return nn.LayerNorm(width, eps=self.layer_norm_eps, bias=self.biases)

    def init_weights(self, module: nn.Module) -> None:
        """Matrices and embedding tables from a normal distribution, biases 0, layer norm weights 1.

        BERT's code truncates the distribution at two standard deviations (`tf.truncated_normal_initializer`), which
        leaves 0.88 of `initializer_range`; transformers does not truncate.
        """
        std = self.initializer_range
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                if self.truncated_init:
                    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
                else:
                    nn.init.normal_(layer.weight, std=std)
            if isinstance(layer, nn.LayerNorm):
                nn.init.ones_(layer.weight)
            if isinstance(layer, nn.Linear | nn.LayerNorm) and layer.bias is not None:
                nn.init.zeros_(layer.bias)

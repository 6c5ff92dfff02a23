"""Wukong: stacked factorization machines over feature tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opengem.nn.initial import small
from opengem.nn.mlp import MLP
from opengem.nn.norm import LayerNorm
from opengem.nn.token_linear import TokenLinear


@dataclass(frozen=True, kw_only=True)
class WukongConfig:
    """One Wukong layer; 0 means: by the model's `size`.

    Attributes:
        fm_tokens: Tokens that the factorization machine block gives, nF, at least 1.
        lcb_tokens: Tokens that the linear compression block gives, nL, at least 1.
        rank: Columns k of Y, to which the pairwise products are compressed, at least 1.
        hidden: Hidden width of the block's MLP, at least 1.
        attentive: Whether Y is made from the example by an MLP instead of learned as it is.
        cross_layer_attention: Whether a layer, from the third on, also reads the outputs of all earlier layers.
    """

    fm_tokens: int = 0
    lcb_tokens: int = 0
    rank: int = 0
    hidden: int = 0
    attentive: bool = False
    cross_layer_attention: bool = True

    @property
    def tokens(self) -> int:
        """Tokens that a layer gives."""
        return self.fm_tokens + self.lcb_tokens


class FactorizationMachineBlock(nn.Module):
    """`reshape(MLP(LN(flatten(X (X^T Y)))))`: all pairwise products of n tokens, compressed to k columns.

    Cost of the products: `4 n k D` instead of `2 n^2 D`. Y is learned, `(n, k)`, or attentive:
    `Y = MLP(flatten(C X))`, C a linear compression to k tokens.

    Args:
        tokens_in: n.
        width: D.
        config: Sizes.
        dropout: In the MLP, 0 to 1.

    Source: Wukong (2403.02545), section 3.3 and its optimised FM.
    """

    def __init__(self, tokens_in: int, width: int, config: WukongConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.width, self.rank = width, config.rank
        if config.attentive:
            self.compress = TokenLinear(tokens_in, config.rank)
            self.make_y = MLP(config.rank * width, (config.hidden, tokens_in * config.rank))
        else:
            self.y = nn.Parameter(torch.randn(tokens_in, config.rank) * tokens_in**-0.5)
        self.attentive = config.attentive
        self.norm = LayerNorm(tokens_in * config.rank)
        self.mlp = MLP(tokens_in * config.rank, (config.hidden, config.fm_tokens * width), dropout)
        small(self.mlp.layers[-1])  # type: ignore[arg-type]

    def forward(self, x_BND: Tensor) -> Tensor:
        """Map `(B, n, D)` to `(B, nF, D)`."""
        if self.attentive:
            y = self.make_y(self.compress(x_BND).flatten(1)).view(-1, x_BND.shape[1], self.rank)
        else:
            y = self.y.to(x_BND.dtype).expand(x_BND.shape[0], -1, -1)
        products = torch.bmm(x_BND, torch.bmm(x_BND.transpose(1, 2), y))
        return self.mlp(self.norm(products.flatten(1))).unflatten(1, (-1, self.width))

    def flops(self, rows: float) -> float:
        """Return forward FLOPs of `rows` examples."""
        tokens = self.norm.normalized_shape[0] // self.rank
        total = 4 * rows * tokens * self.rank * self.width + self.mlp.flops(rows)
        if self.attentive:
            total += self.compress.flops(rows, self.width) + self.make_y.flops(rows)
        return total


class WukongLayer(nn.Module):
    """`X' = LN([FMB(X) || LCB(X)] + Res(X))`, LN over D; `LCB = W_L X`.

    The input may carry extra tokens behind those of the layer before (summaries of a sequence). `Res` is the identity
    on `carried` tokens if there are as many as the layer gives, plus a small linear map of the others; otherwise it
    is a linear map over the token axis.

    Args:
        tokens_in: n, all tokens.
        width: D.
        config: Sizes; the layer gives `config.tokens` tokens.
        carried: How many of the first tokens are the output of the layer before.
        dropout: In the MLP, 0 to 1.

    Source: Wukong (2403.02545), section 3; a layer i reaches interaction order 2^i.
    """

    def __init__(
        self, tokens_in: int, width: int, config: WukongConfig, carried: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.width, self.tokens_in, self.tokens_out = width, tokens_in, config.tokens
        self.fmb = FactorizationMachineBlock(tokens_in, width, config, dropout)
        self.lcb = TokenLinear(tokens_in, config.lcb_tokens)
        self.keeps = carried == self.tokens_out
        extra = tokens_in - carried if self.keeps else tokens_in
        std = 0.1 * max(extra, 1) ** -0.5 if self.keeps else None
        self.residual = TokenLinear(extra, self.tokens_out, std) if extra else None
        self.norm = LayerNorm(width)

    def forward(self, x_BND: Tensor, carried_BMD: Tensor) -> Tensor:
        """Interact tokens.

        Args:
            x_BND: All tokens `(B, n, D)`.
            carried_BMD: What stands for the first tokens in the residual, `(B, carried, D)`: they themselves, or
                what cross-layer attention made of them.

        Returns:
            `(B, nF + nL, D)`.
        """
        new = torch.cat([self.fmb(x_BND), self.lcb(x_BND)], dim=1)
        extra = x_BND[:, carried_BMD.shape[1] :]
        if self.keeps:
            new = new + carried_BMD
        elif self.residual is not None:
            extra = torch.cat([carried_BMD, extra], dim=1)
        if self.residual is not None:
            new = new + self.residual(extra)
        return self.norm(new)

    def flops(self, rows: float) -> float:
        """Return forward FLOPs of `rows` examples."""
        total = self.fmb.flops(rows) + self.lcb.flops(rows, self.width)
        return total + (self.residual.flops(rows, self.width) if self.residual is not None else 0.0)


class MLPLayer(nn.Module):
    """The plain rival of a Wukong layer: `X' = LN(reshape(MLP(flatten(X))) + Res(X))`.

    Args:
        tokens_in: n, all tokens.
        width: D.
        tokens_out: Tokens that the layer gives.
        hidden: Hidden width.
        carried: As for `WukongLayer`.
        dropout: In the MLP, 0 to 1.
    """

    def __init__(
        self, tokens_in: int, width: int, tokens_out: int, hidden: int, carried: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.width, self.tokens_in, self.tokens_out = width, tokens_in, tokens_out
        self.mlp = MLP(tokens_in * width, (hidden, tokens_out * width), dropout)
        self.residual = None if carried == tokens_out else TokenLinear(carried, tokens_out)
        self.norm = LayerNorm(width)

    def forward(self, x_BND: Tensor, carried_BMD: Tensor) -> Tensor:
        """Map `(B, n, D)` to `(B, tokens_out, D)`; `carried_BMD` enters the residual."""
        new = self.mlp(x_BND.flatten(1)).unflatten(1, (-1, self.width))
        return self.norm(new + (carried_BMD if self.residual is None else self.residual(carried_BMD)))

    def flops(self, rows: float) -> float:
        """Return forward FLOPs of `rows` examples."""
        own = self.mlp.flops(rows)
        return own + (self.residual.flops(rows, self.width) if self.residual is not None else 0.0)

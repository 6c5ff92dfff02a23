"""Cross-feature learning between feature tokens and sequence tokens: InterFormer's arches in GDPA form."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opengem.nn.gate import Gate, GateForm
from opengem.nn.gdpa_ffn import PersonalisedFFN
from opengem.nn.initial import even, small
from opengem.nn.norm import LayerNorm
from opengem.nn.pooling import HSP, PMA
from opengem.nn.rotary import Rotary
from opengem.nn.sink_attention import SinkAttention
from opengem.nn.token_linear import TokenLinear
from opengem.ops.rotary_attention import rotary_attention

Form = Literal["none", "separate", "one_way", "two_way"]


@dataclass(frozen=True, kw_only=True)
class InterFormerConfig:
    """How feature tokens and sequence tokens meet; 0 means: by the model's `size`.

    Attributes:
        form: `none`: histories are not read. `separate`: both sides meet only in the over arch. `one_way`: sequence
            summaries enter the feature tokens in each layer. `two_way`: also the other way, so that sequence tokens
            are held once an example instead of once a request.
        heads: Attention heads, divides the model's width.
        summary: Summary tokens of the features, n_sum; as many CLS tokens stand before the sequence.
        pooled: Pooled tokens of the sequence, at least 1.
        recent: Newest sequence tokens that enter the summary as they are, 0 or more.
        pooling: `pma` or `hsp`.
        gate: Form of the gates of the summaries.
        activation: GDPA's activation, a name of `opengem.ops.gdpa.ACTIVATIONS`.
        compskip: Alternate between layers that pool and run the feed-forward network and layers that attend.
        window: If above 0, sequence attention reaches this many tokens to either side; CLS tokens are always seen.
        target_attention: Whether the candidate attends over the tokens, for one more summary token.
    """

    form: Form = "two_way"
    heads: int = 0
    summary: int = 0
    pooled: int = 2
    recent: int = 2
    pooling: Literal["pma", "hsp"] = "pma"
    gate: GateForm = "signed"
    activation: str = "gelu"
    compskip: bool = True
    window: int = 0
    target_attention: bool = True

    @property
    def sequence_summary(self) -> int:
        """Tokens of the sequence's summary S_sum."""
        return self.summary + self.pooled + self.recent + int(self.target_attention)


@dataclass
class SequenceState:
    """Sequence tokens between layers.

    Attributes:
        tokens: `(rows, C + S, D)`, C CLS tokens first, then S tokens, newest last.
        mask: `(rows, S)`, true where there is a token.
        request_of_example: `(B,)` if rows are requests, `None` if they are examples.
    """

    tokens: Tensor
    mask: Tensor
    request_of_example: Tensor | None

    def to_examples(self, x: Tensor) -> Tensor:
        """Expand `(rows, ...)` to `(B, ...)`."""
        return x if self.request_of_example is None else x.index_select(0, self.request_of_example)


class FeatureSummary(nn.Module):
    """`X_sum = Gate(W X)`, W over the token axis from n to n_sum tokens.

    Args:
        tokens: n.
        width: D.
        config: Sizes and gate.

    Source: InterFormer (2411.09852), cross arch.
    """

    def __init__(self, tokens: int, width: int, config: InterFormerConfig) -> None:
        super().__init__()
        self.width = width
        self.mix = TokenLinear(tokens, config.summary)
        self.gate = Gate(width, config.gate)

    def forward(self, x_BND: Tensor) -> Tensor:
        """Summarise `(B, n, D)` as `(B, n_sum, D)`."""
        return self.gate(self.mix(x_BND))

    def flops(self, rows: float) -> float:
        """Return forward FLOPs of `rows` examples."""
        return self.mix.flops(rows, self.width) + self.gate.flops(rows * self.mix.weight.shape[0])


class SequenceSummary(nn.Module):
    """`S_sum = Gate([S_CLS || S_pool || S_recent || S_target])`.

    `S_pool` answers learned seeds, `S_target` the candidate; both ask one attention over the tokens, with a sink.

    Args:
        width: D.
        config: Sizes, gate and switches.

    Source: InterFormer (2411.09852), cross arch; `S_target` and the sink are our reconstruction.
    """

    def __init__(self, width: int, config: InterFormerConfig) -> None:
        super().__init__()
        self.config = config
        if config.pooling == "hsp":
            self.pool: PMA | HSP = HSP(width, config.pooled, 4 * config.pooled)
        else:
            self.pool = PMA(width, config.pooled)
        self.attention = SinkAttention(width, config.heads, alike=True)
        if config.target_attention:
            self.target_norm = LayerNorm(width)
        self.gate = Gate(width, config.gate)

    def forward(self, state: SequenceState, candidate_BD: Tensor) -> Tensor:
        """Summarise the tokens for each example, `(B, sequence_summary, D)`."""
        c, x = self.config, state.tokens
        # one split, not slices: each slice's backward would make a full tensor of zeros
        cls, tokens = x.split([c.summary, x.shape[1] - c.summary], dim=1)
        pooled, target = self._answers(state, tokens, candidate_BD)
        parts = [cls, pooled]
        if c.recent:
            missing = max(0, c.recent - tokens.shape[1])
            newest = tokens[:, -c.recent :] * state.mask[:, -c.recent :, None]
            parts.append(F.pad(newest, (0, 0, missing, 0)))
        summary = state.to_examples(torch.cat([p.to(x.dtype) for p in parts], dim=1))
        if target is not None:
            summary = torch.cat([summary, target.to(summary.dtype)], dim=1)
        return self.gate(summary)

    def _answers(
        self, state: SequenceState, tokens: Tensor, candidate_BD: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return pooled tokens `(rows, pooled, D)` and the candidate's token `(B, 1, D)`."""
        seeds = self.pool.seeds.to(tokens.dtype)
        if not self.config.target_attention:
            return self.pool(self.attention(seeds, tokens, state.mask)), None
        query = self.target_norm(candidate_BD)[:, None].to(tokens.dtype)
        if state.request_of_example is not None:
            pooled = self.pool(self.attention(seeds, tokens, state.mask))
            return pooled, self.attention(query, tokens, state.mask, state.request_of_example)
        asked = torch.cat([seeds.expand(query.shape[0], -1, -1), query], dim=1)
        answers = self.attention(asked, tokens, state.mask)
        return self.pool(answers[:, :-1]), answers[:, -1:]

    def flops(self, rows: float, examples: float, length: int, shared: bool) -> float:
        """Return forward FLOPs of `rows` sequences of `length` tokens read by `examples` examples.

        `shared` says that rows are requests and not examples.
        """
        seeds, target = self.pool.seeds.shape[1], int(self.config.target_attention)
        total = self.pool.flops(rows) + self.gate.flops(examples * self.config.sequence_summary)
        if shared or not target:
            total += self.attention.flops(rows * seeds, seeds, rows * seeds * length)
            return total + target * self.attention.flops(examples, examples, examples * length)
        asked = examples * (seeds + 1)
        return total + self.attention.flops(asked, asked, asked * length)


class SequenceLayer(nn.Module):
    """`S' = MHA(PFFN(X_sum, S))`, each with a residual and normalised behind it; rotary, length kept.

    Args:
        width: D.
        config: Sizes and switches.
        length: S, tokens without the CLS tokens.
        feed: Whether this layer runs the feed-forward network.
        attend: Whether this layer runs the attention.

    Source: InterFormer (2411.09852), sequence arch; skipping by parity after Kunlun (2602.10016).
    """

    def __init__(self, width: int, config: InterFormerConfig, length: int, feed: bool, attend: bool) -> None:
        super().__init__()
        self.config, self.length = config, length
        self.ffn = PersonalisedFFN(width, config.heads, config.activation) if feed else None
        self.attend = attend
        if attend:
            self.norm = LayerNorm(width)
            self.qkv = even(nn.Linear(width, 3 * width))
            self.out = small(nn.Linear(width, width))
            C = config.summary
            rotary = Rotary(width // config.heads, length + 1)
            # CLS tokens stand at position 0, unturned; the oldest place of the sequence at 1
            places = torch.cat([torch.zeros(C, dtype=torch.int64), torch.arange(1, length + 1)])
            self.register_buffer("rotation_NP2", rotary(places), persistent=False)
            self.rotation_NP2: Tensor
            if config.window:
                apart = (places[:, None] - places).abs()
                band = (apart <= config.window) | (places == 0) | (places[:, None] == 0)
                self.register_buffer("band_NN", band, persistent=False)
                self.band_NN: Tensor

    def forward(self, state: SequenceState, summary_BMD: Tensor) -> SequenceState:
        """Transform the tokens of `state`, given `(rows, n_sum, D)` that personalise the feed-forward network."""
        x = state.tokens
        if self.ffn is not None:
            x = self.ffn(x, summary_BMD)
        if self.attend:
            x = self.norm(x + self._attention(x, state.mask).to(x.dtype))
        return SequenceState(x, state.mask, state.request_of_example)

    def _attention(self, x_BND: Tensor, mask_BS: Tensor) -> Tensor:
        qkv = self.qkv(x_BND).unflatten(2, (3, self.config.heads, -1))
        # CLS tokens are always seen
        seen_BN = F.pad(mask_BS, (self.config.summary, 0), value=True)
        band_NN = self.band_NN if self.config.window else None
        out = rotary_attention(qkv, self.rotation_NP2, seen_BN=seen_BN, band_NN=band_NN)
        return self.out(out.reshape(x_BND.shape))

    def flops(self, rows: float) -> float:
        """Return forward FLOPs of `rows` sequences."""
        n, total = self.length + self.config.summary, 0.0
        if self.ffn is not None:
            total += self.ffn.flops(rows, n, self.config.summary)
        if self.attend:
            square = self.out.weight.numel()
            total += 8 * rows * n * square + 4 * rows * n * n * self.out.in_features
        return total

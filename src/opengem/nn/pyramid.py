"""One stream's tower: long jagged histories in, a few tokens a request out."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opengem.errors import ConfigError
from opengem.nn.initial import even, small
from opengem.nn.norm import LayerNorm
from opengem.nn.rotary import Rotary
from opengem.ops.block_attention import block_attention
from opengem.ops.jagged_attention import jagged_attention
from opengem.ops.jagged_layout import (
    offsets_of_lengths,
    pad,
    pad_mask,
    row_and_position,
    size_of,
)
from opengem.ops.rotary_attention import rotate


@dataclass(frozen=True, kw_only=True)
class StreamTowerConfig:
    """Tower of one history stream; 0 means: by the model's `size`.

    Attributes:
        width: Width of the tower, a multiple of 2 `heads`.
        heads: Attention heads, at least 1.
        depth: Layers a level, at least 1.
        block: Events of an attention block, 2 or more.
        window: If above 0, attention reaches this many events to either side instead of a block.
        recent: Newest tokens that are never pooled, below `tokens`.
        group: Older tokens pooled into one between levels, at least 2.
        tokens: Most tokens given, S_max; a history no longer than this is not pooled at all.
    """

    width: int = 0
    heads: int = 0
    depth: int = 0
    block: int = 0
    window: int = 0
    recent: int = 0
    group: int = 0
    tokens: int = 0


def level_lengths(config: StreamTowerConfig, history: int) -> list[int]:
    """Return the longest row of each level, from `history` events down to at most `config.tokens`."""
    if not (0 <= config.recent < config.tokens and config.group >= 2):
        raise ConfigError(
            f"tower: recent must be below tokens and group at least 2, got recent {config.recent}, "
            f"tokens {config.tokens}, group {config.group}"
        )
    lengths = [history]
    while lengths[-1] > config.tokens:
        older = lengths[-1] - config.recent
        lengths.append(config.recent + -(-older // config.group))
    return lengths


class EventLayer(nn.Module):
    """`x = LN(x + W_o Attention(x))`, then `LN(x + FFN(x))`, on flat events.

    Normalised behind each branch, as Wukong's layers are: what a layer gives is read as it is by whatever comes next.

    Args:
        config: Sizes.
        shift: Events by which the block borders are moved.

    Source: our reconstruction, around the block attention of Meta's released code.
    """

    def __init__(self, config: StreamTowerConfig, shift: int) -> None:
        super().__init__()
        D = config.width
        self.config, self.shift = config, shift
        self.attention_norm = LayerNorm(D)
        self.qkv = even(nn.Linear(D, 3 * D))
        self.out = small(nn.Linear(D, D))
        self.ffn_norm = LayerNorm(D)
        self.up = even(nn.Linear(D, 2 * D))
        self.down = small(nn.Linear(2 * D, D))

    def forward(self, x_LD: Tensor, offsets: Tensor, rotation_LP2: Tensor, longest: int) -> Tensor:
        """Transform events `(L, D)`."""
        c = self.config
        qkv = self.qkv(x_LD).unflatten(1, (3, c.heads, -1))
        if c.window:
            q, k, v = rotate(qkv, rotation_LP2[:, None, None]).unbind(1)
            # rows may be longer than the configured history, so the longest is known only when exporting
            known = longest if torch.compiler.is_compiling() else None
            attended = jagged_attention(q, k, v, offsets, window=c.window, max_q=known)
        else:
            attended = block_attention(qkv, offsets, rotation_LP2, block=c.block, shift=self.shift)
        x_LD = self.attention_norm(x_LD + self.out(attended.flatten(1)).to(x_LD.dtype))
        return self.ffn_norm(x_LD + self.down(F.silu(self.up(x_LD))).to(x_LD.dtype))

    def flops(self, lengths: Tensor) -> float:
        """Return forward FLOPs of rows with these lengths."""
        D, n = self.config.width, lengths.double()
        return float(n.sum()) * 16 * D * D + 4 * D * attended_pairs(self.config, self.shift, lengths)


def attended_pairs(config: StreamTowerConfig, shift: int, lengths: Tensor) -> float:
    """Return how many (query, key) pairs of rows with these lengths see each other."""
    n = lengths.double()
    if config.window:
        w = torch.minimum(n, torch.tensor(config.window + 1.0, dtype=n.dtype)) - 1
        return float((n + 2 * w * n - w * (w + 1)).clamp_min(0).sum())
    first = torch.minimum(n, torch.tensor(float(config.block - shift), dtype=n.dtype))
    rest = n - first
    full = (rest / config.block).floor()
    last = rest - full * config.block
    return float((first**2 + full * config.block**2 + last**2).sum())


class GroupPool(nn.Module):
    """Pools each group of older tokens into one by a learned query a head, and leaves the newest as they are.

    Groups are counted from the newest side, so the oldest may be short. In a group:
    `y_h = sum_j softmax_j(<u_h, x_j>) x_j` over head h's part of the width, then `LN(y)`; u starts at zero, as a mean.

    Args:
        width: D.
        heads: Queries, each for its part of the width; divides D.
        recent: Newest tokens left alone.
        group: Tokens a group.

    Source: our reconstruction (pyramid after SUM 2311.09544, reduction after LLaTTE 2601.20083).
    """

    def __init__(self, width: int, heads: int, recent: int, group: int) -> None:
        super().__init__()
        self.heads, self.recent, self.group = heads, recent, group
        self.query = nn.Linear(width, heads, bias=False)
        nn.init.zeros_(self.query.weight)
        # a mean of normalised tokens is shorter than they are
        self.norm = LayerNorm(width)

    def forward(self, x_LD: Tensor, offsets: Tensor, events: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pool.

        Args:
            x_LD: Tokens `(L, D)`.
            offsets: `(R + 1,)` int64.
            events: `(L,)` int64, the newest event that each token holds.

        Returns:
            Tokens, offsets and newest events of the shorter rows.
        """
        lengths = offsets[1:] - offsets[:-1]
        older = (lengths - self.recent).clamp_min(0)
        group_offsets = offsets_of_lengths((older + self.group - 1) // self.group)
        new_offsets = group_offsets + offsets_of_lengths(lengths - older)
        index, held = self._members(offsets, offsets[:-1] + older, group_offsets)
        members = x_LD.index_select(0, index.flatten()).unflatten(0, index.shape)
        scores = self.query(members).masked_fill(~held[..., None], float("-inf"))
        weights = scores.float().softmax(1).to(x_LD.dtype)
        heads = (self.heads, x_LD.shape[1] // self.heads)
        pooled = self.norm((weights[..., None] * members.unflatten(2, heads)).sum(1).flatten(1))
        # where each token of the shorter rows stands in [groups, all old tokens]
        row, position = row_and_position(new_offsets, size_of(new_offsets[-1]))
        group = group_offsets[row] + position
        newest = index.shape[0] + offsets[row + 1] - (new_offsets[row + 1] - new_offsets[row] - position)
        place = torch.where(group < group_offsets[row + 1], group, newest)
        tokens = torch.cat([pooled.to(x_LD.dtype), x_LD]).index_select(0, place)
        ends = events.index_select(0, index[:, -1])
        return tokens, new_offsets, torch.cat([ends, events]).index_select(0, place)

    def _members(self, offsets: Tensor, ends: Tensor, group_offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return each group's members `(groups, group)`, the newest last, and which places hold one."""
        row, nth = row_and_position(group_offsets, size_of(group_offsets[-1]))
        end = ends[row] - (group_offsets[row + 1] - group_offsets[row] - 1 - nth) * self.group
        index = end[:, None] - self.group + torch.arange(self.group, device=row.device)
        first = offsets[row][:, None]
        return torch.maximum(index, first), index >= first

    def flops(self, lengths: Tensor) -> float:
        """Return forward FLOPs (matrix products) of rows with these lengths."""
        return 2 * float((lengths - self.recent).clamp_min(0).sum()) * self.query.weight.numel()

    def lengths(self, lengths: Tensor) -> Tensor:
        """Return the lengths of the pooled rows."""
        older = (lengths - self.recent).clamp_min(0)
        return lengths.clamp(max=self.recent) + (older + self.group - 1) // self.group


class StreamTower(nn.Module):
    """Levels of layers with pooling between them; at most `tokens` tokens a request, newest last.

    Cost is linear in the number of events and dominated by the first level. Of a history longer than `history` the
    tokens that do not fit, the oldest, are left out.

    Args:
        config: Sizes, no field 0 but `window`.
        width: Width D of events and of the tokens given.
        history: Longest history in events.

    Source: Meta's GEM posts name a pyramid-parallel structure and give no formula; the form is our reconstruction.
    """

    def __init__(self, config: StreamTowerConfig, width: int, history: int) -> None:
        super().__init__()
        if config.heads < 1 or config.width % (2 * config.heads):
            raise ConfigError(
                f"tower: width must be a multiple of 2 * heads, got width {config.width}, heads {config.heads}"
            )
        self.config, self.width = config, width
        self.level_lengths = level_lengths(config, history)
        self.tokens = max(1, self.level_lengths[-1])
        self.enter = even(nn.Linear(width, config.width)) if width != config.width else None
        self.norm = LayerNorm(config.width)
        pools = len(self.level_lengths) - 1
        half = config.block // 2
        self.levels = nn.ModuleList(
            nn.ModuleList(EventLayer(config, half if i % 2 else 0) for i in range(config.depth))
            for _ in range(max(1, pools))
        )
        self.pools = nn.ModuleList(
            GroupPool(config.width, config.heads, config.recent, config.group) for _ in range(pools)
        )
        self.rotary = Rotary(config.width // config.heads, max(history, config.block))
        self.leave = even(nn.Linear(config.width, width)) if width != config.width else None
        self.leave_norm = LayerNorm(width) if self.leave is not None else None

    def forward(self, x_LD: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shorten histories.

        Args:
            x_LD: Events `(L, D)`.
            offsets: `(R + 1,)` int64.

        Returns:
            Tokens `(R, S, D)`, zeros where there is none, mask `(R, S)` true where there is a token, and `(R, S)`
            int64 the newest event that each token holds (0 where there is none).
        """
        events = torch.arange(x_LD.shape[0], device=x_LD.device)
        x = self.norm(x_LD if self.enter is None else self.enter(x_LD))
        for i, layers in enumerate(self.levels):
            row, position = row_and_position(offsets, x.shape[0])
            age = offsets[row + 1] - offsets[row] - 1 - position
            rotation = self.rotary(age)
            for layer in layers:  # type: ignore[union-attr]
                x = layer(x, offsets, rotation, self.level_lengths[i])
            if i < len(self.pools):
                x, offsets, events = self.pools[i](x, offsets, events)
        if self.leave is not None and self.leave_norm is not None:
            x = self.leave_norm(self.leave(x))
        return pad(x, offsets, self.tokens), pad_mask(offsets, self.tokens), pad(events, offsets, self.tokens)

    def flops(self, lengths: Tensor) -> float:
        """Return forward FLOPs for requests with these history lengths `(R,)`."""
        D = self.config.width
        total = 2 * float(lengths.sum()) * self.width * D if self.enter is not None else 0.0
        for i, layers in enumerate(self.levels):
            total += sum(layer.flops(lengths) for layer in layers)  # type: ignore[union-attr, operator]
            if i < len(self.pools):
                total += self.pools[i].flops(lengths)  # type: ignore[operator]
                lengths = self.pools[i].lengths(lengths)  # type: ignore[operator]
        if self.leave is not None:
            total += 2 * float(lengths.sum()) * self.width * D
        return total


class RecentEvents(nn.Module):
    """The tower switched off: the newest events as they are.

    Args:
        tokens: Events taken, S.
        width: D.
    """

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens = max(1, tokens)
        self.norm = LayerNorm(width)

    def forward(self, x_LD: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, mask and events as `StreamTower` does."""
        events = torch.arange(x_LD.shape[0], device=x_LD.device)
        mask = pad_mask(offsets, self.tokens)
        dense = self.norm(pad(x_LD, offsets, self.tokens)) * mask[..., None]
        return dense, mask, pad(events, offsets, self.tokens)

    def flops(self, lengths: Tensor) -> float:
        """Return forward FLOPs: none of them in matrix products."""
        return 0.0

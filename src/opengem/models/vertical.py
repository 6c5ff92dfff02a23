"""The vertical model: the small ranker that is taught by the teacher and served."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opengem.jagged import Batch
from opengem.models.output import ModelConfig, Output
from opengem.nn.heads import DomainHeads, HeadsConfig
from opengem.nn.inputs import InputArch, InputConfig
from opengem.nn.names import module_key
from opengem.nn.recent import recent_events
from opengem.schema.inputs import InputSpec


@dataclass(frozen=True, kw_only=True)
class VerticalConfig(ModelConfig, type="vertical"):
    """Settings of a vertical model.

    Attributes:
        width: Width of embeddings and tokens, 4 to 256.
        heads: Attention heads of the candidate over the history; must divide `width`.
        layers: Widths of the over arch.
        dropout: In the over arch, 0 to 1.
        history: Most events a stream that are read (its short history).
    """

    width: int = 16
    heads: int = 2
    layers: tuple[int, ...] = (64, 32)
    dropout: float = 0.1
    history: int = 20

    def build(self, inputs: InputSpec) -> "Vertical":
        """Return the model for these inputs."""
        return Vertical(self, inputs)


class Vertical(nn.Module):
    """Feature tokens, one candidate attention a stream with a learned sink, and an MLP.

    `a = softmax([q k_1, .., q k_n, sink])`, summary `sum_j a_j v_j`: where no event says anything about the candidate
    the sink takes the weight, and the summary tends to zero.

    Source: our reconstruction of a small vertical ranker.
    """

    def __init__(self, config: VerticalConfig, inputs: InputSpec) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        D = config.width
        self.arch = InputArch(InputConfig(width=D, embedding_width=D), inputs)
        self.attention = nn.ModuleDict(
            {module_key(s.name): CandidateAttention(D, config.heads) for s in inputs.streams}
        )
        tokens = self.arch.num_request_tokens + self.arch.num_example_tokens + 1 + len(inputs.streams)
        self.norm = nn.LayerNorm(tokens * D)
        layers: list[nn.Module] = []
        width = tokens * D
        for out in config.layers:
            layers += [nn.Linear(width, out), nn.SiLU(), nn.Dropout(config.dropout)]
            width = out
        self.over = nn.Sequential(*layers)
        self.heads = DomainHeads(HeadsConfig(hidden=0), inputs, width)

    def forward(self, batch: Batch) -> Output:
        """Score a batch."""
        e = self.arch(batch)
        parts = [e.request_RFD[batch.request_of_example].flatten(1), e.example_BFD.flatten(1), e.candidate_BD]
        for stream in self.inputs.streams:
            offsets = batch.history[stream.name].offsets
            x_RND, mask_RN = recent_events(e.events[stream.name], offsets, self.config.history)
            parts.append(
                self.attention[module_key(stream.name)](
                    e.candidate_BD, x_RND, mask_RN, batch.request_of_example
                )
            )
        trunk = self.over(self.norm(torch.cat(parts, dim=1)))
        return Output(self.heads(trunk, batch.surface), trunk)


class CandidateAttention(nn.Module):
    """Softmax attention of one candidate over its request's events, with a learned sink.

    Keys and values are made once a request and shared by its candidates.

    Args:
        width: D.
        heads: H, divides D.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.sink = nn.Parameter(torch.zeros(heads))

    def forward(
        self, candidate_BD: Tensor, x_RND: Tensor, mask_RN: Tensor, request_of_example: Tensor
    ) -> Tensor:
        """Return summaries `(B, D)`."""
        B, D = candidate_BD.shape
        H, K = self.heads, D // self.heads
        k, v = self.key_value(self.norm(x_RND)).chunk(2, dim=2)
        k_BNHK = k[request_of_example].unflatten(2, (H, K))
        v_BNHK = v[request_of_example].unflatten(2, (H, K))
        q_BHK = self.query(candidate_BD).view(B, H, K)
        scores_BHN = torch.einsum("bhk,bnhk->bhn", q_BHK, k_BNHK) * K**-0.5
        scores_BHN = scores_BHN.masked_fill(~mask_RN[request_of_example][:, None], float("-inf"))
        sink = self.sink.to(scores_BHN.dtype)[None, :, None].expand(B, H, 1)
        weights = F.softmax(torch.cat([sink, scores_BHN], dim=2), dim=2)[:, :, 1:]
        return torch.einsum("bhn,bnhk->bhk", weights, v_BNHK).reshape(B, D)

"""Attention of a few queries over a request's tokens that can also answer "no evidence"."""

import torch
from torch import Tensor, nn

from opengem.nn.initial import even


class SinkAttention(nn.Module):
    """Softmax attention with one more key, learned, whose value is zero.

    `sum_j a_j v_j` with `a = softmax([q k_1, .., q k_S, q k_sink] / sqrt(K))`: where no token says anything about the
    query the sink takes the weight and the answer tends to zero; a request without tokens gives exactly zero.

    Queries are few, so no key or value is made: `q (W_k x) = (q W_k) x` and `sum_j a_j W_v x_j = W_v sum_j a_j x_j`.
    That costs `4 H D` a (query, token) pair instead of `4 D^2` a token, and tokens are read as they lie.

    Args:
        width: D, of queries and tokens.
        heads: H, divides D.
        alike: Start with the same map for queries and keys, so that a token scores high for a like query from the
            first step (a candidate and its own item in the history).

    Source: our reconstruction.
    """

    def __init__(self, width: int, heads: int, alike: bool = False) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.query = even(nn.Linear(width, width))
        self.key = nn.Parameter(torch.randn(heads, self.head_width, width) * width**-0.5)
        self.value = nn.Parameter(torch.randn(heads, width, self.head_width) * width**-0.5)
        self.sink = nn.Parameter(torch.zeros(heads, self.head_width))
        self.out = even(nn.Linear(width, width, bias=False))
        if alike:
            with torch.no_grad():
                self.key.copy_(self.query.weight.view_as(self.key))

    def forward(
        self, q_BND: Tensor, x_RSD: Tensor, mask_RS: Tensor, request_of_row: Tensor | None = None
    ) -> Tensor:
        """Answer queries.

        Args:
            q_BND: Queries `(B, N, D)`, or `(1, N, D)` shared by all rows.
            x_RSD: Tokens `(R, S, D)`.
            mask_RS: True where there is a token.
            request_of_row: `(B,)` index of each row's request; `None`: row b reads row b.

        Returns:
            `(B, N, D)`.
        """
        H, K, N, D = self.heads, self.head_width, q_BND.shape[1], x_RSD.shape[2]
        if request_of_row is not None:
            x_RSD, mask_RS = x_RSD.index_select(0, request_of_row), mask_RS.index_select(0, request_of_row)
        B = x_RSD.shape[0]
        q_BNHK = self.query(q_BND).unflatten(2, (H, K)) * K**-0.5
        sink_BNH = (q_BNHK * self.sink).sum(-1)
        q_BMD = torch.einsum("bnhk,hkd->bnhd", q_BNHK, self.key.to(q_BNHK.dtype)).flatten(1, 2)
        x_BSD = x_RSD.to(q_BMD.dtype)
        scores_BMS = torch.bmm(q_BMD.expand(B, -1, -1), x_BSD.transpose(1, 2))
        scores_BMS = scores_BMS.masked_fill(~mask_RS[:, None], float("-inf"))
        sink_BM1 = sink_BNH.flatten(1)[..., None].expand(B, -1, -1).to(scores_BMS.dtype)
        weights = torch.cat([scores_BMS, sink_BM1], dim=2).float().softmax(2)[..., :-1]
        read_BNHD = torch.bmm(weights.to(x_BSD.dtype), x_BSD).view(B, N, H, D)
        answer = torch.einsum("bnhd,hdk->bnhk", read_BNHD, self.value.to(read_BNHD.dtype))
        return self.out(answer.reshape(B, N, D))

    def flops(self, queries: float, query_maps: float, pairs: float) -> float:
        """Return forward FLOPs.

        Args:
            queries: Answers given, B N.
            query_maps: Queries projected (B N, or N if shared).
            pairs: (query, token) pairs.
        """
        square = self.query.weight.numel()
        return 4 * square * (query_maps + queries) + 4 * self.heads * self.query.in_features * pairs

"""Time encodings of events: learned buckets of gaps and positions."""

import torch
from torch import Tensor, nn

from opengem.jagged import row_of_value
from opengem.schema.inputs import MISSING_TIME

_HOUR_MS = 3_600_000.0


class TimeEncoding(nn.Module):
    """Sum of learned buckets of (a, b) the gap to the request on a linear and a log scale, (c) the log gap to the
    event before, (d) the position from the newest.

    Bucket 0 of each gap scale means "no time". The log scales have four buckets a doubling, from one second on.

    A gap or position beyond all that training saw reads as the longest that it saw (`seen`, part of the state): served
    histories are often older than those of the training window, and their own buckets would be untrained noise.

    Args:
        width: Width of the encoding.
        linear_hours: Width of a linear bucket in hours.
        linear_buckets: Number of linear buckets; later gaps share the last.

    Source: these four appear in Meta's released attention code; bucket counts are our reconstruction.
    """  # noqa: D205

    LOG_BUCKETS = 112
    POSITION_BUCKETS = 128

    def __init__(self, width: int, linear_hours: float = 12.0, linear_buckets: int = 64) -> None:
        super().__init__()
        self.linear_hours = linear_hours
        self.linear_buckets = linear_buckets
        sizes = (linear_buckets + 1, self.LOG_BUCKETS + 1, self.LOG_BUCKETS + 1, self.POSITION_BUCKETS)
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.02)  # type: ignore[arg-type]
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(len(sizes), dtype=torch.int64))

    def forward(self, times: Tensor, offsets: Tensor, request_time: Tensor) -> Tensor:
        """Encode L events of R requests.

        Args:
            times: `(L,)` int64 Unix ms, `MISSING_TIME` where unknown.
            offsets: `(R + 1,)` int64.
            request_time: `(R,)` int64 Unix ms.

        Returns:
            `(L, width)`.
        """
        total = times.shape[0]
        row = row_of_value(offsets, total)
        known = times > MISSING_TIME
        gap = torch.where(known, request_time[row] - times, 0).clamp_min(0)
        # the event before: a shift by one, then void where a row begins
        place = torch.arange(total, device=times.device)
        before = (place - 1).clamp_min(0)
        paired = known & known[before] & (place > offsets[row])
        adjacent = torch.where(paired, times - times[before], 0).clamp_min(0)
        linear = (gap.double() / (_HOUR_MS * self.linear_hours)).long().clamp_max(self.linear_buckets - 1)
        from_newest = offsets[1:][row] - 1 - place
        indices = (
            torch.where(known, linear + 1, 0),
            torch.where(known, self._log_bucket(gap) + 1, 0),
            torch.where(paired, self._log_bucket(adjacent) + 1, 0),
            self._position_bucket(from_newest),
        )
        if self.training and total:
            highest = torch.stack([index.max() for index in indices])
            self.seen.copy_(torch.maximum(self.seen, highest))
        capped = [torch.minimum(index, top) for index, top in zip(indices, self.seen, strict=True)]
        encoded = [table(index) for table, index in zip(self.tables, capped, strict=True)]
        return encoded[0] + encoded[1] + encoded[2] + encoded[3]

    def _log_bucket(self, gap_ms: Tensor) -> Tensor:
        bucket = 4.0 * torch.log2(1.0 + gap_ms.double() / 1000.0)
        return bucket.long().clamp_max(self.LOG_BUCKETS - 1)

    def _position_bucket(self, position: Tensor) -> Tensor:
        # exact for the newest 64, then eight buckets a doubling
        far = 64 + (8.0 * torch.log2(position.clamp_min(64).double() / 64.0)).long()
        return torch.where(position < 64, position, far).clamp_max(self.POSITION_BUCKETS - 1)

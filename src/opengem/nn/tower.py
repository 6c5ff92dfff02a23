"""The towers of all streams, and their tokens merged in time order."""

import torch
from torch import Tensor, nn

from opengem.nn.names import module_key
from opengem.nn.pyramid import RecentEvents, StreamTower, StreamTowerConfig


class Tower(nn.Module):
    """One tower a stream, in parallel, on R requests; their tokens side by side in time order.

    It reads nothing of the ad: it is computed once for all ads of a request, and can be cached.

    Args:
        configs: Stream name -> sizes of its tower.
        width: D of events and tokens.
        history: Longest history of a stream in events.
        pyramid: False switches the towers off: the newest events pass as they are.

    Source: our reconstruction; budgets per event type after Kunlun (2602.10016).
    """

    def __init__(
        self, configs: dict[str, StreamTowerConfig], width: int, history: int, pyramid: bool
    ) -> None:
        super().__init__()
        self.names = tuple(configs)
        self.streams = nn.ModuleDict()
        for name, config in configs.items():
            self.streams[module_key(name)] = (
                StreamTower(config, width, history)
                if pyramid
                else RecentEvents(min(history, config.tokens), width)
            )
        self.tokens = sum(int(t.tokens) for t in self.streams.values())  # type: ignore[arg-type]

    def forward(
        self, events: dict[str, Tensor], offsets: dict[str, Tensor], times: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Run the towers.

        Args:
            events: Stream -> `(L, D)`.
            offsets: Stream -> `(R + 1,)` int64.
            times: Stream -> `(L,)` int64, Unix ms.

        Returns:
            Tokens `(R, S, D)`, newest last, zeros where there is none, and their mask `(R, S)`.
        """
        tokens, masks, whens = [], [], []
        for name, tower in zip(self.names, self.streams.values(), strict=True):
            x_RSD, mask_RS, newest_RS = tower(events[name], offsets[name])
            tokens.append(x_RSD)
            masks.append(mask_RS)
            if len(self.streams) > 1:
                # one time more, so that the look-up is legal for a stream without any event
                whens.append(torch.cat([times[name], times[name].new_zeros(1)])[newest_RS])
        if len(self.streams) == 1:
            return tokens[0], masks[0]
        x_RSD, mask_RS, when_RS = torch.cat(tokens, 1), torch.cat(masks, 1), torch.cat(whens, 1)
        when_RS = torch.where(mask_RS, when_RS, torch.iinfo(torch.int64).min)
        order_RS = when_RS.argsort(dim=1, stable=True)
        x_RSD = x_RSD.gather(1, order_RS[..., None].expand_as(x_RSD))
        return x_RSD, mask_RS.gather(1, order_RS)

    def flops(self, lengths: dict[str, Tensor]) -> float:
        """Return forward FLOPs for history lengths, stream -> `(R,)`."""
        towers = zip(self.names, self.streams.values(), strict=True)
        return sum(t.flops(lengths[name]) for name, t in towers)  # type: ignore[operator]

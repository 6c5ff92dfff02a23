"""From a batch to tokens: features, events and the candidate, all in one width."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opengem.jagged import Batch, row_of_value
from opengem.nn.embedding import EmbeddingTables
from opengem.nn.names import module_key
from opengem.nn.surface_embedding import SurfaceEmbedding
from opengem.nn.time_encoding import TimeEncoding
from opengem.schema.inputs import FeatureInput, InputSpec


@dataclass(frozen=True, kw_only=True)
class InputConfig:
    """How inputs become tokens.

    Attributes:
        width: Token width D, 4 to 1,024.
        embedding_width: Width E of the embedding tables, 1 to 1,024.
        time_encodings: Whether events carry encodings of time and position.
        linear_hours: Width in hours of a linear time bucket, above 0.
        dropout: Share of each token's values that is dropped in training, 0 to 1.
    """

    width: int = 32
    embedding_width: int = 16
    time_encodings: bool = True
    linear_hours: float = 12.0
    dropout: float = 0.0


@dataclass
class Embedded:
    """Tokens of a batch.

    Attributes:
        request_RFD: Tokens of user-owned features.
        example_BFD: Tokens of ad and context features and of the surface.
        events: Stream -> `(L, D)` event tokens: item, attributes, numbers and time.
        candidate_BD: The candidate ad in the space of the events: what it shares with them, seen by the same maps.
        event_request: Stream -> `(L,)` index of each event's request.
    """

    request_RFD: Tensor
    example_BFD: Tensor
    events: dict[str, Tensor]
    candidate_BD: Tensor
    event_request: dict[str, Tensor]


class InputArch(nn.Module):
    """Embeds a batch: one table look-up per id, one small MLP for the numbers, one linear map per vector.

    An event is `sum_a W_a e_a + W_num numbers + time encoding`; the candidate is `sum_a W_a e_a` over the attributes
    that it shares with events (same table, same name first) plus a map of all its own features, so that an event and
    the candidate of the same item or author look alike from the first step on.

    Args:
        config: Widths and switches.
        inputs: What the data set holds.

    Source: the two groups (non-sequence and sequence) are Meta's GEM post; the sum form is our reconstruction.
    """

    def __init__(self, config: InputConfig, inputs: InputSpec) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        D, E = config.width, config.embedding_width
        self.tables = EmbeddingTables({t.name: t.rows for t in inputs.tables}, E)
        self.surface = SurfaceEmbedding(inputs, D)
        nn.init.normal_(self.surface.weight, std=0.02)
        self.request_tokens = FeatureTokens(config, inputs, ("user",))
        self.example_tokens = FeatureTokens(config, inputs, ("ad", "context"))
        self.shared = _shared_with_events(inputs)
        self.attribute_maps = nn.ModuleDict()
        self.number_maps = nn.ModuleDict()
        for stream in inputs.streams:
            for attribute in stream.attributes:
                if attribute.kind == "id":
                    key = self._map_key(attribute.name)
                    if key not in self.attribute_maps:
                        self.attribute_maps[key] = nn.Linear(E, D, bias=False)
            numbers = [a.name for a in stream.attributes if a.kind == "number"]
            if numbers:
                self.number_maps[module_key(stream.name)] = nn.Linear(len(numbers), D, bias=False)
        self.time = nn.ModuleDict()
        if config.time_encodings:
            for stream in inputs.streams:
                self.time[module_key(stream.name)] = TimeEncoding(D, config.linear_hours)
        self.ad_ids = [f.name for f in inputs.features_of(("ad",), ("id",))]
        self.own = nn.Linear(E * len(self.ad_ids), D, bias=True) if self.ad_ids else None
        self.dropout = nn.Dropout(config.dropout)

    @property
    def num_request_tokens(self) -> int:
        """Number of tokens of a request."""
        return self.request_tokens.count

    @property
    def num_example_tokens(self) -> int:
        """Number of tokens of an example, the surface included."""
        return self.example_tokens.count + 1

    def forward(self, batch: Batch) -> Embedded:
        """Embed a batch of B examples, R requests and L events a stream."""
        lookups: dict[str, tuple[str, Tensor]] = {}
        for f in self.inputs.features:
            if f.kind == "id":
                lookups[f"f:{f.name}"] = (f.table, batch.ids[f.name])
            elif f.kind == "ids":
                lookups[f"f:{f.name}"] = (f.table, batch.bags[f.name].values)
        for stream in self.inputs.streams:
            for a in stream.attributes:
                if a.kind == "id":
                    lookups[f"e:{stream.name}:{a.name}"] = (a.table, batch.history[stream.name].ids[a.name])
        rows = self.tables(lookups)
        surface_BD = self.surface(batch.surface)
        example_BFD = torch.cat([self.example_tokens(batch, rows), surface_BD[:, None]], dim=1)
        requests = {
            s.name: row_of_value(batch.history[s.name].offsets, batch.history[s.name].times.shape[0])
            for s in self.inputs.streams
        }
        return Embedded(
            request_RFD=self.dropout(self.request_tokens(batch, rows)),
            example_BFD=self.dropout(example_BFD),
            events={s.name: self._events(batch, rows, s) for s in self.inputs.streams},
            candidate_BD=self._candidate(batch, rows),
            event_request=requests,
        )

    def _events(self, batch: Batch, rows: dict[str, Tensor], stream) -> Tensor:
        history = batch.history[stream.name]
        names = [a.name for a in stream.attributes if a.kind == "id"]
        # one product over the concatenated attributes equals the sum of the single maps
        x = torch.cat([rows[f"e:{stream.name}:{n}"] for n in names], dim=1)
        weight = torch.cat([self.attribute_maps[self._map_key(n)].weight for n in names], dim=1)  # type: ignore[list-item]
        tokens = x @ weight.t().to(x.dtype)
        if module_key(stream.name) in self.number_maps:
            numbers = [history.numbers[a.name] for a in stream.attributes if a.kind == "number"]
            tokens = tokens + self.number_maps[module_key(stream.name)](
                torch.stack(numbers, dim=1).clamp(-5, 5)
            )
        if module_key(stream.name) in self.time:
            tokens = tokens + self.time[module_key(stream.name)](
                history.times, history.offsets, batch.request_time
            )
        return tokens

    def _map_key(self, attribute: str) -> str:
        # attributes that stand for the same feature of the candidate have one map, whatever a stream calls them
        feature = self.shared.get(attribute)
        return f"shared {module_key(feature)}" if feature else module_key(attribute)

    def _candidate(self, batch: Batch, rows: dict[str, Tensor]) -> Tensor:
        candidate_BD = self.surface.weight.new_zeros(batch.surface.shape[0], self.config.width)
        for feature in dict.fromkeys(self.shared.values()):
            candidate_BD = candidate_BD + self.attribute_maps[f"shared {module_key(feature)}"](
                rows[f"f:{feature}"]
            )
        if self.own is not None:
            own = torch.cat([rows[f"f:{n}"] for n in self.ad_ids], dim=1)
            candidate_BD = candidate_BD + self.own(own)
        return candidate_BD


class FeatureTokens(nn.Module):
    """Tokens of the features of some owners: ids, bags of ids, vectors, and one token for all numbers.

    Args:
        config: Widths.
        inputs: What the data set holds.
        owners: Whose features.
    """

    def __init__(self, config: InputConfig, inputs: InputSpec, owners: tuple[str, ...]) -> None:
        super().__init__()
        D, E = config.width, config.embedding_width
        self.by_user = owners == ("user",)
        self.id_features = inputs.features_of(owners, ("id", "ids"))
        self.vector_features = inputs.features_of(owners, ("vector",))
        self.number_features = inputs.features_of(owners, ("number",))
        self.count = len(self.id_features) + len(self.vector_features) + bool(self.number_features)
        if self.id_features:
            self.project = nn.Parameter(torch.randn(len(self.id_features), E, D) * E**-0.5)
            self.bias = nn.Parameter(torch.zeros(len(self.id_features), D))
        self.vectors = nn.ModuleDict({module_key(f.name): nn.Linear(f.size, D) for f in self.vector_features})
        n = len(self.number_features)
        self.numbers = nn.Sequential(nn.Linear(2 * n, 2 * D), nn.SiLU(), nn.Linear(2 * D, D)) if n else None
        self.width = D

    def forward(self, batch: Batch, rows: dict[str, Tensor]) -> Tensor:
        """Return the tokens, `(R, count, D)` for user-owned features and `(B, count, D)` otherwise."""
        like = batch.request_time if self.by_user else batch.surface
        tokens: list[Tensor] = []
        if self.id_features:
            x_BFE = torch.stack([self._pooled(batch, rows, f) for f in self.id_features], dim=1)
            tokens.append(torch.einsum("bfe,fed->bfd", x_BFE, self.project) + self.bias)
        for f in self.vector_features:
            tokens.append(self.vectors[module_key(f.name)](batch.vectors[f.name])[:, None])
        if self.numbers is not None:
            values = [batch.numbers[f.name].clamp(-5, 5) for f in self.number_features]
            missing = [batch.missing[f.name] for f in self.number_features]
            tokens.append(self.numbers(torch.stack(values + missing, dim=1))[:, None])
        if not tokens:
            return torch.zeros(like.shape[0], 0, self.width, device=like.device)
        return torch.cat([t.to(tokens[0].dtype) for t in tokens], dim=1)

    def _pooled(self, batch: Batch, rows: dict[str, Tensor], feature: FeatureInput) -> Tensor:
        values = rows[f"f:{feature.name}"]
        if feature.kind == "id":
            return values
        bag = batch.bags[feature.name]
        owner = row_of_value(bag.offsets, values.shape[0])
        total = values.new_zeros(bag.offsets.shape[0] - 1, values.shape[1]).index_add(0, owner, values)
        return total / bag.lengths.clamp_min(1)[:, None].to(values.dtype)


def _shared_with_events(inputs: InputSpec) -> dict[str, str]:
    """Return event attribute -> feature of the ad or context that reads the same table."""
    features = inputs.features_of(("ad", "context"), ("id",))
    shared: dict[str, str] = {}
    for stream in inputs.streams:
        for attribute in stream.attributes:
            if attribute.kind != "id" or attribute.name in shared:
                continue
            same = [f.name for f in features if f.table == attribute.table]
            if same:
                shared[attribute.name] = attribute.name if attribute.name in same else same[0]
    return shared

"""GEM: the large teacher, from tokens to trunk."""

import torch
from torch import Tensor, nn

from opengem.errors import ConfigError
from opengem.jagged import Batch
from opengem.models.flops import input_flops, linear_flops
from opengem.models.gem_config import GEMConfig
from opengem.models.output import Output
from opengem.nn.cross_layer_attention import CrossLayerAttention
from opengem.nn.heads import DomainHeads
from opengem.nn.inputs import InputArch, InputConfig
from opengem.nn.interformer import FeatureSummary, SequenceLayer, SequenceState, SequenceSummary
from opengem.nn.mlp import MLP
from opengem.nn.norm import LayerNorm
from opengem.nn.tower import Tower
from opengem.nn.wukong import MLPLayer, WukongLayer
from opengem.schema.inputs import InputSpec


class GEM(nn.Module):
    """Feature tokens and histories of one request, crossed for each of its ads.

    1. `InputArch`: tokens of user, ad and context; events of each stream; the candidate in the events' space.
    2. `Tower`: each stream's long history becomes at most S tokens, once a request.
    3. `layers` times: feature tokens interact (Wukong), sequence tokens are personalised and attend (InterFormer),
       and summaries pass between them.
    4. `MLP([X_sum || S_sum])`, normalised, is the trunk; one small tower a task and a gain a surface read it.

    All that depends on the user alone runs on R requests; the candidate comes in from step 3 on.

    Args:
        config: Sizes and switches.
        inputs: What the data set holds.

    Source: the parts are Meta's GEM posts' and the named papers'; their composition and sizes are our
        reconstruction, for GEM has no architecture paper.
    """

    def __init__(self, config: GEMConfig, inputs: InputSpec) -> None:
        super().__init__()
        config = config.resolved()
        _check(config, inputs)
        self.config, self.inputs = config, inputs
        D, mix = config.width, config.interformer
        self.arch = InputArch(
            InputConfig(
                width=D,
                embedding_width=config.embedding_width,
                time_encodings=config.time_encodings,
                linear_hours=config.linear_hours,
            ),
            inputs,
        )
        tokens = self.arch.num_request_tokens + self.arch.num_example_tokens + 1
        self.token_norm = LayerNorm(tokens * D)
        self.reads_history = bool(inputs.streams) and mix.form != "none"
        length = 0
        if self.reads_history:
            sizes = {s.name: config.streams.get(s.name, config.tower) for s in inputs.streams}
            self.tower = Tower(sizes, D, config.history, config.pyramid)
            length = self.tower.tokens
            if mix.form != "two_way":
                self.cls_tokens = nn.Parameter(torch.randn(1, mix.summary, D) * 0.5)
        self.layers = nn.ModuleList()
        given = tokens
        for index in range(config.layers):
            layer = GEMLayer(config, index, given, length)
            self.layers.append(layer)
            given = layer.tokens_out
        self.feature_summary = FeatureSummary(given, D, mix)
        over_in = mix.summary * D
        if self.reads_history:
            self.sequence_summary = SequenceSummary(D, mix)
            over_in += mix.sequence_summary * D
        self.over = MLP(over_in, config.over, config.dropout, activate_last=True)
        self.trunk_norm = LayerNorm(config.over[-1])
        self.heads = DomainHeads(config.heads, inputs, config.over[-1])

    def forward(self, batch: Batch) -> Output:
        """Score a batch of B examples of R requests."""
        e = self.arch(batch)
        owner = batch.request_of_example
        x = torch.cat([e.request_RFD.index_select(0, owner), e.example_BFD, e.candidate_BD[:, None]], dim=1)
        x = self.token_norm(x.flatten(1)).view(x.shape)
        state = self._sequence(batch, e.events, x) if self.reads_history else None
        outputs, summary = [x], None
        for layer in self.layers:
            x, state, summary = layer(outputs, state, summary, e.candidate_BD)
            outputs.append(x)
        parts = [self.feature_summary(x)]
        if state is not None:
            parts.append(self.sequence_summary(state, e.candidate_BD))
        trunk_BD = self.trunk_norm(self.over(torch.cat(parts, dim=1).flatten(1)))
        return Output(self.heads(trunk_BD, batch.surface), trunk_BD)

    def _sequence(self, batch: Batch, events: dict[str, Tensor], x_BFD: Tensor) -> SequenceState:
        """Return the sequence before the first layer: CLS tokens, then the tower's tokens."""
        history = {name: batch.history[name] for name in events}
        tokens_RSD, mask_RS = self.tower(
            events, {n: h.offsets for n, h in history.items()}, {n: h.times for n, h in history.items()}
        )
        if self.config.interformer.form == "two_way":
            cls = self.layers[0].feature_summary(x_BFD)  # type: ignore[operator]
            tokens_RSD = tokens_RSD.index_select(0, batch.request_of_example)
            mask_RS, owner = mask_RS.index_select(0, batch.request_of_example), None
        else:
            cls, owner = self.cls_tokens.expand(tokens_RSD.shape[0], -1, -1), batch.request_of_example
        return SequenceState(torch.cat([cls.to(tokens_RSD.dtype), tokens_RSD], dim=1), mask_RS, owner)

    def flops(self, batch: Batch) -> float:
        """Return forward FLOPs: matrix products, an addition and a product count two.

        The tower counts real events. The sequence arch counts S tokens a row: they are dense there by design.
        """
        B, R = batch.num_examples, batch.num_requests
        mix = self.config.interformer
        total = input_flops(self.arch, batch) + linear_flops(self.heads, B)
        total += self.feature_summary.flops(B) + self.over.flops(B)
        if self.reads_history:
            lengths = {n: h.offsets[1:] - h.offsets[:-1] for n, h in batch.history.items()}
            total += self.tower.flops(lengths)
            rows = B if mix.form == "two_way" else R
            total += self.sequence_summary.flops(rows, B, self.tower.tokens, mix.form != "two_way")
            if mix.form == "two_way":
                total += self.layers[0].feature_summary.flops(B)  # type: ignore[union-attr, operator]
            total += sum(layer.flops(rows, B) for layer in self.layers)  # type: ignore[operator]
        else:
            total += sum(layer.flops(0, B) for layer in self.layers)  # type: ignore[operator]
        return total


class GEMLayer(nn.Module):
    """One layer: interaction of feature tokens, sequence tokens, and their summaries. A stage of the model.

    With `compskip`, even layers summarise the sequence and run the feed-forward network, odd ones attend and use
    the summary of the layer before.

    Args:
        config: The model's, resolved.
        index: Number of the layer, from 0.
        tokens_in: Feature tokens that come in.
        length: Sequence tokens S, 0 without histories.
    """

    def __init__(self, config: GEMConfig, index: int, tokens_in: int, length: int) -> None:
        super().__init__()
        D, mix, sizes = config.width, config.interformer, config.interaction
        self.form = mix.form if length else "none"
        self.length = length
        even = index % 2 == 0 or not mix.compskip
        self.summarises = self.form in ("one_way", "two_way") and even
        extra = mix.sequence_summary if self.form in ("one_way", "two_way") else 0
        if self.summarises:
            self.sequence_summary = SequenceSummary(D, mix)
        if length:
            attend = index % 2 == 1 or not mix.compskip
            self.sequence = SequenceLayer(D, mix, length, even, attend)
        if self.form == "two_way" and even:
            self.feature_summary = FeatureSummary(tokens_in, D, mix)
        self.feeds = bool(length) and even
        self.tokens_out = sizes.tokens
        if config.wukong:
            self.interaction: nn.Module = WukongLayer(
                tokens_in + extra, D, sizes, tokens_in, dropout=config.dropout
            )
        else:
            self.interaction = MLPLayer(
                tokens_in + extra, D, sizes.tokens, sizes.hidden, tokens_in, config.dropout
            )
        crosses = sizes.cross_layer_attention and index >= 2
        self.cross_layer = CrossLayerAttention(D) if crosses else None

    def forward(
        self,
        outputs: list[Tensor],
        state: SequenceState | None,
        summary_BMD: Tensor | None,
        candidate_BD: Tensor,
    ) -> tuple[Tensor, SequenceState | None, Tensor | None]:
        """Run the layer.

        Args:
            outputs: Feature tokens that came in first, then those of all earlier layers, each `(B, n, D)`.
            state: Sequence tokens, `None` without histories.
            summary_BMD: Summary of the sequence that an earlier layer made.
            candidate_BD: The candidate in the events' space.

        Returns:
            Feature tokens, sequence tokens and the summary of the sequence.
        """
        x = outputs[-1]
        if state is not None and self.summarises:
            summary_BMD = self.sequence_summary(state, candidate_BD)
        # outputs of layers have one number of tokens; what came in first may have another
        carried = x if self.cross_layer is None else self.cross_layer(outputs[1:])
        seen = carried if summary_BMD is None else torch.cat([carried, summary_BMD.to(carried.dtype)], dim=1)
        new = self.interaction(seen, carried)
        if state is not None:
            state = self.sequence(state, self._personal(x, state))
        return new, state, summary_BMD

    def _personal(self, x_BND: Tensor, state: SequenceState) -> Tensor:
        """Return what personalises the sequence: the features' summary, or the CLS tokens where it may not enter."""
        if self.form == "two_way" and self.feeds:
            return self.feature_summary(x_BND)
        return state.tokens[:, : state.tokens.shape[1] - self.length]

    def flops(self, rows: float, examples: float) -> float:
        """Return forward FLOPs for `rows` sequences and `examples` examples."""
        total = self.interaction.flops(examples)  # type: ignore[operator]
        if self.summarises:
            total += self.sequence_summary.flops(rows, examples, self.length, self.form != "two_way")
        if self.length:
            total += self.sequence.flops(rows)
        if self.form == "two_way" and self.feeds:
            total += self.feature_summary.flops(examples)
        if self.cross_layer is not None:
            total += self.cross_layer.flops(examples * self.tokens_out)
        return total


def _check(config: GEMConfig, inputs: InputSpec) -> None:
    streams = [s.name for s in inputs.streams]
    for name in config.streams:
        if name not in streams:
            raise ConfigError(f"streams: must name streams of the data, {streams}, got {name!r}")

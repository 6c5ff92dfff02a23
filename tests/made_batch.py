"""A made-up data set's inputs and random batches of it, for tests of models."""

import torch

from opengem.jagged import Batch, History, JaggedTensor, offsets_of
from opengem.schema.inputs import (
    MISSING_TIME,
    AttributeInput,
    FeatureInput,
    InputSpec,
    StreamInput,
    TableInput,
    TaskInput,
)

INPUTS = InputSpec(
    tables=(
        TableInput(name="ad", rows=50),
        TableInput(name="author", rows=20),
        TableInput(name="tag", rows=12),
        TableInput(name="age", rows=7),
        TableInput(name="event_type", rows=6),
    ),
    features=(
        FeatureInput(name="ad_id", owner="ad", kind="id", table="ad"),
        FeatureInput(name="author", owner="ad", kind="id", table="author"),
        FeatureInput(name="tags", owner="ad", kind="ids", table="tag"),
        FeatureInput(name="price", owner="ad", kind="number"),
        FeatureInput(name="creative", owner="ad", kind="vector", size=8),
        FeatureInput(name="age", owner="user", kind="id", table="age"),
        FeatureInput(name="likes", owner="user", kind="ids", table="tag"),
        FeatureInput(name="tenure", owner="user", kind="number"),
        FeatureInput(name="hour", owner="context", kind="id", table="age"),
    ),
    streams=(
        StreamInput(
            name="watched",
            attributes=(
                AttributeInput(name="ad_id", kind="id", table="ad"),
                AttributeInput(name="author", kind="id", table="author"),
                AttributeInput(name="play_time", kind="number"),
            ),
            item="ad_id",
        ),
        StreamInput(
            name="organic",
            attributes=(
                AttributeInput(name="item", kind="id", table="ad"),
                AttributeInput(name="type", kind="id", table="event_type"),
            ),
            item="item",
        ),
    ),
    tasks=(
        TaskInput(name="click", base_rate=0.3),
        TaskInput(name="conversion", given="click", base_rate=0.05),
        TaskInput(name="like", base_rate=0.1),
    ),
    surfaces=("feed", "reels"),
    ad_feature="ad_id",
    fingerprint="made",
)


def made_batch(requests: int = 6, most_ads: int = 4, most_events: int = 30, seed: int = 0) -> Batch:
    """Return a random batch; the first request has no events at all, one event has no time."""
    g = torch.Generator().manual_seed(seed)

    def ids(table: str, count: int) -> torch.Tensor:
        return torch.randint(0, INPUTS.table_rows(table), (count,), generator=g)

    ads = torch.randint(1, most_ads + 1, (requests,), generator=g)
    R, B = requests, int(ads.sum())
    owners = {"user": R, "ad": B, "context": B}
    request_time = torch.randint(10**12, 10**12 + 10**9, (R,), generator=g)
    batch_ids, bags, numbers, missing, vectors, history = {}, {}, {}, {}, {}, {}
    for f in INPUTS.features:
        n = owners[f.owner]
        if f.kind == "id":
            batch_ids[f.name] = ids(f.table, n)
        elif f.kind == "ids":
            lengths = torch.randint(0, 4, (n,), generator=g)
            bags[f.name] = JaggedTensor(ids(f.table, int(lengths.sum())), offsets_of(lengths))
        elif f.kind == "number":
            missing[f.name] = (torch.rand(n, generator=g) < 0.2).float()
            numbers[f.name] = torch.randn(n, generator=g) * (1 - missing[f.name])
        else:
            vectors[f.name] = torch.randn(n, f.size, generator=g)
    for s in INPUTS.streams:
        lengths = torch.randint(0, most_events + 1, (R,), generator=g)
        lengths[0] = 0
        offsets = offsets_of(lengths)
        L = int(offsets[-1])
        times = torch.cat(
            [
                (request_time[r] - 1 - torch.randint(0, 10**9, (int(n),), generator=g)).sort().values
                for r, n in enumerate(lengths)
            ]
        )
        if L:
            times[0] = MISSING_TIME
        history[s.name] = History(
            ids={a.name: ids(a.table, L) for a in s.attributes if a.kind == "id"},
            numbers={a.name: torch.randn(L, generator=g) for a in s.attributes if a.kind == "number"},
            times=times,
            offsets=offsets,
        )
    request_of_example = torch.repeat_interleave(torch.arange(R), ads)
    return Batch(
        ids=batch_ids,
        bags=bags,
        numbers=numbers,
        missing=missing,
        vectors=vectors,
        history=history,
        request_of_example=request_of_example,
        request_time=request_time,
        surface=torch.randint(0, 3, (B,), generator=g),
        time=request_time[request_of_example],
        example_id=torch.arange(B),
        labels={t.name: (torch.rand(B, generator=g) < t.base_rate).float() for t in INPUTS.tasks},
        label_mask={t.name: (torch.rand(B, generator=g) < 0.9).float() for t in INPUTS.tasks},
        weight=torch.ones(B),
        extras={f"teacher_{t.name}": torch.randn(B, generator=g) for t in INPUTS.tasks},
    )

import pytest
import torch

from made_batch import INPUTS, made_batch
from opengem.nn.embedding import EmbeddingTables
from opengem.nn.inputs import InputArch, InputConfig


@pytest.mark.parametrize("name", ["type", "keys", "geo.city", "train", "a b", "%2E", "weights"])
def test_any_column_name_can_name_a_table(name):
    tables = EmbeddingTables({name: 5, "other": 3}, 4)
    rows = tables({"x": (name, torch.tensor([[1, 2], [4, 0]]))})
    assert rows["x"].shape == (2, 2, 4)
    assert not rows["x"][1, 1].any()
    assert set(EmbeddingTables({name: 5, "other": 3}, 4).state_dict()) == set(tables.state_dict())


def test_a_bag_is_the_mean_of_its_ids_and_an_empty_bag_is_zero():
    arch = InputArch(InputConfig(width=4, embedding_width=4), INPUTS).eval()
    batch = made_batch(requests=6)
    bag = batch.bags["tags"]
    rows = {"f:tags": arch.tables({"x": ("tag", bag.values)})["x"]}
    feature = next(f for f in INPUTS.features if f.name == "tags")
    pooled = arch.example_tokens._pooled(batch, rows, feature)
    weight = arch.tables.weights["@tag"]
    for i, ids in enumerate(bag.to_list()):
        expected = weight[ids].mean(0) if ids else torch.zeros(4)
        torch.testing.assert_close(pooled[i], expected)


def test_an_event_of_the_candidate_itself_looks_like_the_candidate():
    """What events and the candidate share is seen by the same maps."""
    arch = InputArch(InputConfig(width=8, embedding_width=4, time_encodings=False), INPUTS).eval()
    arch.own = None
    batch = made_batch(requests=3)
    history = batch.history["watched"]
    history.numbers["play_time"].zero_()
    event = int(history.offsets[1])
    example = int((batch.request_of_example == 1).nonzero()[0])
    history.ids["ad_id"][event] = batch.ids["ad_id"][example]
    history.ids["author"][event] = batch.ids["author"][example]
    embedded = arch(batch)
    torch.testing.assert_close(embedded.events["watched"][event], embedded.candidate_BD[example])

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree

from opengem.data.dataset import Dataset
from opengem.data.loader import Loader, batch_plan
from opengem.errors import ConfigError
from tests.data import hand_made

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return Dataset.open(hand_made.write(tmp_path_factory.mktemp("hand")))


def loader(dataset, split="train", **changes) -> Loader:
    settings = {"batch_size": 4, "history": 3, "order": "shuffled", "seed": 7} | changes
    return Loader(dataset, split, **settings)


def same(a, b) -> bool:
    (xs, tree_x), (ys, tree_y) = _pytree.tree_flatten(a), _pytree.tree_flatten(b)
    return tree_x == tree_y and all(map(torch.equal, xs, ys))


def same_list(a: list, b: list) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def ids(batches) -> list[int]:
    return [i for b in batches for i in b.example_id.tolist()]


@given(
    st.lists(st.integers(1, 9), max_size=40),
    st.integers(1, 12),
    st.sampled_from(["time", "shuffled"]),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(0, 3),
)
def test_plan_holds_each_request_once_and_cuts_at_batch_size(sizes, batch_size, order, window, epoch):
    sizes = np.array(sizes, dtype=np.int64)
    positions, cuts = batch_plan(sizes, batch_size, order, window, 5, epoch)
    assert sorted(positions.tolist()) == list(range(len(sizes)))
    batches = [sizes[positions[a:b]].tolist() for a, b in pairwise(cuts)]
    assert sum(map(len, batches)) == len(sizes)
    for i, batch in enumerate(batches):
        assert sum(batch[:-1]) < batch_size
        assert sum(batch) >= batch_size or i == len(batches) - 1
    if order == "time":
        assert positions.tolist() == list(range(len(sizes)))
    elif window is not None:
        assert (positions // window == np.arange(len(sizes)) // window).all()


def test_shuffles_are_repeatable_differ_by_epoch_and_are_even():
    sizes = np.ones(50, dtype=np.int64)
    first, again = (batch_plan(sizes, 5, "shuffled", None, 1, 0)[0] for _ in range(2))
    assert (first == again).all()
    assert (first != batch_plan(sizes, 5, "shuffled", None, 1, 1)[0]).any()
    assert (first != batch_plan(sizes, 5, "shuffled", None, 2, 0)[0]).any()
    # each of the 6 orders of three requests is equally likely: 1,200 draws, 5 degrees of freedom, p = 0.001
    for window in (None, 3):
        orders = [tuple(batch_plan(sizes[:3], 1, "shuffled", window, 0, e)[0]) for e in range(1200)]
        counts = np.unique(orders, axis=0, return_counts=True)[1]
        assert len(counts) == 6
        assert ((counts - 200) ** 2 / 200).sum() < 20.5


def test_an_epoch_in_time_order_is_the_split(dataset):
    batches = list(loader(dataset, order="time"))
    assert ids(batches) == hand_made.examples()["example_id"][:14]
    assert [b.num_examples for b in batches] == [4, 6, 4]
    assert [b.num_requests for b in batches] == [2, 1, 3]


def test_several_splits_are_read_one_after_another(dataset):
    both = loader(dataset, ("train", "test"), order="time")
    assert ids(both) == [x for i, x in enumerate(hand_made.examples()["example_id"]) if not 14 <= i < 20]
    assert both.num_examples == 21


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_do_not_depend_on_workers(dataset, workers):
    extras = {"teacher": np.arange(27, dtype=np.float32)}
    alone = list(loader(dataset, extras=extras))
    assert same_list(list(loader(dataset, extras=extras, workers=workers)), alone)
    assert sorted(ids(alone)) == hand_made.examples()["example_id"][:14]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 3, 6])
def test_resume_at_the_exact_row(dataset, workers, stop):
    whole = loader(dataset, batch_size=1, workers=workers)
    whole.set_epoch(2)
    uninterrupted = list(whole)
    assert len(uninterrupted) == len(whole) == 6
    interrupted = loader(dataset, batch_size=1, workers=workers)
    interrupted.set_epoch(2)
    seen, batches = [], iter(interrupted)
    for _ in range(stop):
        seen.append(next(batches))
    state = interrupted.state()
    assert state == {"epoch": 2, "position": stop, "seed": 7}
    resumed = loader(dataset, batch_size=1, workers=workers)
    resumed.load_state(state)
    rest = list(resumed)
    assert same_list(seen + rest, uninterrupted)
    assert sorted(ids(seen + rest)) == hand_made.examples()["example_id"][:14]
    assert resumed.state()["position"] == 6


def test_iterating_goes_on_after_a_break_and_starts_over_when_finished(dataset):
    one = loader(dataset, batch_size=3)
    first = next(iter(one))
    rest = list(one)
    assert same_list(list(one), [first, *rest])
    one.set_epoch(1)
    assert not same_list(list(one), [first, *rest])


def test_global_random_state_is_left_alone(dataset):
    torch.manual_seed(3)
    want = torch.rand(1)
    torch.manual_seed(3)
    list(loader(dataset, workers=1))
    assert torch.equal(torch.rand(1), want)


def test_empty_split_large_request_and_no_history(dataset):
    empty = loader(dataset, "empty", workers=2)
    assert len(empty) == 0
    assert list(empty) == []
    single = list(loader(dataset, batch_size=1, history=0))
    assert sorted(b.num_examples for b in single) == sorted(hand_made.SIZES[:6])
    assert all(b.num_events() == 0 for b in single)


def test_wrong_settings_are_refused(dataset):
    with pytest.raises(ConfigError, match='order must be "time" or "shuffled"'):
        loader(dataset, order="random")
    for name, value in (("batch_size", 0), ("window", 0), ("seed", -1), ("workers", -1)):
        with pytest.raises(ConfigError, match=f"{name} must be . or more. Received: {value}"):
            loader(dataset, **{name: value})
    with pytest.raises(ConfigError, match="seed must be that of the saved state, 8"):
        loader(dataset).load_state({"epoch": 0, "position": 0, "seed": 8})
    with pytest.raises(ConfigError, match=r"must lie in \[0, 3\]. Received: 9"):
        loader(dataset, order="time").load_state({"epoch": 0, "position": 9, "seed": 7})

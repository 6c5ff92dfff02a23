import torch

from made_batch import INPUTS, made_batch
from opengem.evaluation import Coverage, history_warnings, unseen_text


def test_rows_are_counted_by_what_is_known_of_them():
    batch = made_batch()
    coverage = Coverage(INPUTS)
    coverage.add(batch)
    coverage.add(batch)
    owner = batch.request_of_example.tolist()
    for f in INPUTS.features:
        if f.kind != "id":
            continue
        ids = batch.ids[f.name].tolist()
        rows = [ids[r] for r in owner] if f.owner == "user" else ids
        assert coverage.unseen[f.name] == 2 * rows.count(1)
        assert coverage.missing[f.name] == 2 * rows.count(0)
    for name, history in batch.history.items():
        lengths = torch.diff(history.offsets).tolist()
        assert coverage.no_history[name] == 2 * sum(lengths[r] == 0 for r in owner)
    assert coverage.to_dict()["rows"] == coverage.rows == 2 * batch.num_examples


def test_what_is_said_of_it():
    found = {"rows": 5, "unseen": {"ad": 3, "user": 4, "city": 0}, "no_history": {"acts": 5, "seen": 4}}
    assert unseen_text(found) == "user in 4 of 5 rows, ad in 3 of 5 rows"
    (warning,) = history_warnings(found)
    assert warning.startswith("100% of examples have no history (acts)")
    assert unseen_text({}) == ""
    assert history_warnings({"rows": 0, "no_history": {"acts": 0}}) == []

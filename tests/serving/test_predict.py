import numpy as np
import pytest
import torch

from opengem.errors import ConfigError
from opengem.evaluation import read_predictions
from opengem.serving.predict import predict


@pytest.mark.parametrize("workers", [0, 1])
def test_a_split_is_scored_in_the_order_of_the_data_set(made, tmp_path, workers):
    out = tmp_path / "predictions.parquet"
    count = predict(made.package.folder, made.data.folder, "test", out, batch_size=7, workers=workers)
    table = read_predictions(out)
    rows = made.data.split("test")
    assert count == len(table) == len(rows) > 20
    assert table.example_id.tolist() == made.data.example_ids[rows.start : rows.stop].tolist()
    requests = np.array(made.data.requests_of_split("test"))
    batch = made.data.read(requests, made.package.history)
    with torch.no_grad():
        want = torch.sigmoid(made.model(batch).logits_BT.double()).numpy()
    for i, task in enumerate(("click", "buy")):
        np.testing.assert_allclose(table.predictions[task], want[:, i], rtol=0, atol=1e-6)
        np.testing.assert_array_equal(
            table.labels[task], made.data.column(f"y_{task}")[rows.start : rows.stop]
        )
    names = np.array(["other", *made.data.inputs.surfaces])
    assert table.surface.tolist() == names[batch.surface.numpy()].tolist()


def test_another_data_set_is_refused(made, small_data, tmp_path):
    with pytest.raises(ConfigError, match="must have the inputs"):
        predict(made.package.folder, small_data, "test", tmp_path / "out.parquet")

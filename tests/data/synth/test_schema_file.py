import tomllib

import pyarrow.parquet as pq


def test_schema_names_columns_that_exist(small):
    schema = tomllib.loads((small.path / "schema.toml").read_text())
    assert schema["name"] == "world"
    columns = {}
    for name, table in schema["tables"].items():
        files = sorted(small.path.glob(table["path"]))
        assert files, table["path"]
        columns[name] = set(pq.read_schema(files[0]).names)
        named = {v for k, v in table.items() if k not in ("path", "time")}
        if "time" in table:
            assert table["time"] == {"column": "time", "unit": "ms"}
            named.add("time")
        assert named <= columns[name]
    for stream in schema["streams"]:
        assert {attribute["name"] for attribute in stream["attributes"]} <= columns[stream["from"]]
    owner = {"user": "users", "ad": "ads", "context": "impressions"}
    for feature in schema["features"]:
        if "derive" not in feature:
            assert feature["name"] in columns[owner[feature["owner"]]]
    for task in schema["tasks"]:
        if "label" in task:
            assert task["label"] in columns["impressions"]


def test_streams_cover_every_event_type_once(small):
    schema = tomllib.loads((small.path / "schema.toml").read_text())
    listed = [kind for stream in schema["streams"] for kind in stream["types"]]
    assert sorted(listed) == sorted(set(small.events["type"].to_pylist()))


def test_splits_are_those_of_the_settings(small):
    splits = tomllib.loads((small.path / "schema.toml").read_text())["splits"]
    assert splits == {k: [str(a), str(b)] for k, (a, b) in small.config.splits().items()}


def test_no_label_or_truth_is_a_feature(small):
    schema = tomllib.loads((small.path / "schema.toml").read_text())
    used = {f["name"] for f in schema["features"]} | {
        a["name"] for s in schema["streams"] for a in s["attributes"]
    }
    assert used.isdisjoint({"click", "like", "conversion", "position", "impression_id", "request_id"})
    assert not any("truth" in table["path"] for table in schema["tables"].values())

"""What any reader of the logs may rely on."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

DAY = 86_400_000


def column(table, name):
    return table[name].to_numpy(zero_copy_only=False)


def test_identifiers_are_unique_over_shards(small):
    assert len(list((small.path / "impressions").glob("*.part-00001.parquet"))) > 0
    for table, name in ((small.impressions, "impression_id"), (small.events, "event_id")):
        assert len(np.unique(column(table, name))) == table.num_rows
    assert (
        column(small.impressions, "impression_id").tolist() == column(small.truth, "impression_id").tolist()
    )
    assert small.users["user_id"].to_pylist() == list(range(small.config.users))


def test_one_plain_file_a_day_where_one_shard_is_enough(world):
    names = sorted(path.name for path in (world.path / "impressions").iterdir())
    assert len(names) == 60
    assert names[0] == "day=2025-01-06.parquet"
    first = pq.read_table(world.path / "impressions" / names[3])
    assert set((column(first, "time") - world.config.start_ms) // DAY) == {3}
    assert (np.diff(column(first, "time")) >= 0).all()


def test_requests_hold_one_user_surface_moment_and_no_ad_twice(small):
    table = small.impressions
    distinct = ("user_id", "surface", "time", "device", "ad_id")
    groups = table.group_by("request_id").aggregate(
        [*((name, "count_distinct") for name in distinct), ("ad_id", "count"), ("position", "max")]
    )
    for name in ("user_id", "surface", "time", "device"):
        assert set(column(groups, f"{name}_count_distinct")) == {1}
    size = column(groups, "ad_id_count")
    assert (size == column(groups, "ad_id_count_distinct")).all()
    assert (size == column(groups, "position_max") + 1).all()
    assert size.min() == 1
    assert size.max() <= 20


def test_events_repeat_the_impressions_and_their_clicks(small):
    keys = ["request_id", "user_id", "item_id", "surface"]
    shown = small.impressions.rename_columns({"ad_id": "item_id"})

    def rows(table):
        return sorted(zip(*(table[key].to_pylist() for key in keys), strict=True))

    def of_type(kind):
        return small.events.filter(pc.equal(small.events["type"], kind))

    assert rows(of_type("impression")) == rows(shown)
    assert rows(of_type("click")) == rows(shown.filter(pc.equal(shown["click"], 1)))
    clicked = set(rows(of_type("click")))
    assert of_type("conversion").num_rows > 0
    assert set(rows(of_type("conversion"))) <= clicked


def test_clicks_come_after_their_request_and_before_the_next(small):
    starts = small.impressions.group_by(["user_id", "request_id"]).aggregate([("time", "min")])
    order = np.lexsort((column(starts, "time_min"), column(starts, "user_id")))
    user, request, time = (column(starts, c)[order] for c in ("user_id", "request_id", "time_min"))
    following = {
        int(r): int(t) for r, t, same in zip(request, time[1:], user[1:] == user[:-1], strict=False) if same
    }
    began = dict(zip(request.tolist(), time.tolist(), strict=True))
    clicks = small.events.filter(pc.equal(small.events["type"], "click"))
    assert clicks.num_rows > 100
    for r, t in zip(clicks["request_id"].to_pylist(), clicks["time"].to_pylist(), strict=True):
        assert began[r] < t < following.get(r, 2**62)


def test_columns_have_the_agreed_types_and_nulls(small):
    impressions, events, ads = small.impressions.schema, small.events.schema, small.ads.schema
    assert impressions.field("click").type == impressions.field("like").type == pa.int8()
    assert {impressions.field(n).type for n in ("impression_id", "request_id", "time")} == {pa.int64()}
    assert impressions.field("surface").type == events.field("type").type == pa.string()
    assert ads.field("creative").type == pa.list_(pa.float32(), 32)
    liked = small.impressions.filter(pc.is_valid(small.impressions["like"]))
    assert set(liked["surface"].to_pylist()) == {"feed", "reels"}
    assert (
        liked.num_rows == pc.sum(pc.is_in(small.impressions["surface"], pa.array(["feed", "reels"]))).as_py()
    )
    kinds = {}
    for row in small.events.select(["type", "item_id", "category", "advertiser", "request_id"]).to_pylist():
        kinds.setdefault(row["type"], set()).add(tuple(v is not None for v in list(row.values())[1:]))
    assert kinds == {
        "view": {(True, True, False, False)},
        "like": {(True, True, False, False)},
        "search": {(False, True, False, False)},
        "message": {(False, False, False, False)},
        "impression": {(True, True, True, True)},
        "click": {(True, True, True, True)},
        "conversion": {(True, True, True, True)},
    }


def test_category_of_an_event_is_the_category_of_its_item(small):
    category = column(small.ads, "category")
    rows = small.events.filter(pc.is_valid(small.events["item_id"]))
    assert (category[column(rows, "item_id")] == column(rows, "category")).all()
    ads = set(np.flatnonzero(small.ads["price"].is_valid().to_numpy()).tolist())
    assert set(column(small.impressions, "ad_id").tolist()) <= ads
    organic = small.events.filter(pc.is_in(small.events["type"], pa.array(["view", "like"])))
    assert ads.isdisjoint(organic["item_id"].to_pylist())


def test_no_ad_is_shown_before_it_was_created(world):
    created = world.ads["created"].cast(pa.int32()).to_numpy()
    day = column(world.impressions, "time") // DAY
    age = day - created[column(world.impressions, "ad_id")]
    assert age.min() >= 0
    assert (age < 7).mean() > 0.1


def test_world_has_the_agreed_shape(world):
    """The numbers the guide promises for the default settings."""
    info = world.info
    assert 55_000 < info.impressions < 75_000
    assert 150_000 < info.events < 250_000
    assert info.impressions == world.impressions.num_rows
    assert info.events == world.events.num_rows
    events_of_user = np.bincount(column(world.events, "user_id"), minlength=2_000)
    assert 20 < np.median(events_of_user) < 100
    assert 1_500 < events_of_user.max() < 20_000
    day = (column(world.impressions, "time") - world.config.start_ms) // DAY
    assert (day >= 48).sum() > 11_500
    assert set(day) == set(range(60))
    messaging = column(world.impressions, "surface") == "messaging"
    assert 0.02 < messaging.mean() < 0.1
    assert day[messaging].min() == world.config.messaging_day
    rates = world.impressions.group_by("surface").aggregate([("click", "mean")])
    assert all(0.07 < rate < 0.3 for rate in rates["click_mean"].to_pylist())


def test_order_of_search_and_views_is_even(world):
    """Pooling a visit cannot tell the two orders apart: as many searches begin a visit as end one."""
    events = world.events.filter(
        pc.is_in(world.events["type"], pa.array(["view", "like", "search", "message"]))
    )
    order = np.lexsort((column(events, "time"), column(events, "user_id")))
    user, time = column(events, "user_id")[order], column(events, "time")[order]
    search = (column(events, "type") == "search")[order]
    near = (np.diff(time) < 10 * 60_000) & (np.diff(user) == 0)
    first = search & np.append(near, False) & ~np.insert(near, 0, False)
    last = search & np.insert(near, 0, False) & ~np.append(near, False)
    assert first.sum() > 1_000
    assert abs(first.sum() - last.sum()) < 4 * np.sqrt(first.sum() + last.sum())

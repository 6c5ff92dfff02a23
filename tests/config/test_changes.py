from opengem.config import changes


def test_nothing_differs():
    settings = {"a": 1, "b": {"c": [1, 2]}, "d": [{"name": "x", "k": 1}]}
    assert changes(settings, {"d": [{"name": "x", "k": 1}], "b": {"c": (1, 2)}, "a": 1}) == []


def test_each_key_is_named_with_both_values():
    old = {"seed": 1, "training": {"epochs": 1, "order": "time"}, "gone": True}
    new = {"seed": 1, "training": {"epochs": 2, "order": "time"}, "more": [1]}
    assert changes(old, new) == ["training.epochs was 1 and is 2", "gone is gone: True", "more is new: [1]"]


def test_entries_of_lists_go_by_their_name():
    a, b = {"name": "a", "kind": "id"}, {"name": "b", "kind": "id"}
    assert changes({"f": [a, b]}, {"f": [a, b | {"kind": "number"}]}) == ["f.b.kind was 'id' and is 'number'"]
    assert changes({"f": [a, b]}, {"f": [b, a]}) == ["f had the order ['a', 'b'] and has ['b', 'a']"]
    assert changes({"f": [a]}, {"f": [a, b]}) == ["f.b is new: {'name': 'b', 'kind': 'id'}"]
    assert changes({"f": [a]}, {"f": []}) == ["f.a is gone: {'name': 'a', 'kind': 'id'}"]

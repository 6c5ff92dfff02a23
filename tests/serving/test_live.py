import json
import os
import shutil
import threading
import time
from http.client import HTTPConnection
from types import SimpleNamespace

import pytest

from opengem.evaluation import PlattCalibration, TaskCalibration
from opengem.serving import live
from opengem.serving.live import LivePackage
from opengem.serving.machine import check_machine
from opengem.serving.package import Package, checksum
from tests.serving.conftest import running


@pytest.fixture(scope="module")
def other(made, tmp_path_factory):
    """Another package: the same model, calibrated."""
    folder = tmp_path_factory.mktemp("other") / "package"
    shutil.copytree(made.package.folder, folder)
    fit = TaskCalibration(total=(0.5, -1.0))
    PlattCalibration(tasks={"click": fit, "buy": fit}).save(folder / "calibration.json")
    record = json.loads((folder / "package.json").read_text())
    record["files"]["calibration.json"] = checksum(folder / "calibration.json")
    (folder / "package.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def current(made, tmp_path):
    """A link to the first package."""
    link = tmp_path / "current"
    link.symlink_to(made.package.folder)
    return link


@pytest.fixture
def light(monkeypatch):
    """Packages are opened and checked, but their models are not loaded."""

    def load(folder, limits):
        package = Package.open(folder)
        check_machine(package.facts, package.folder)
        return SimpleNamespace(package=package)

    monkeypatch.setattr(live, "Predictor", SimpleNamespace(load=load))


def turn(link, target) -> None:
    """Let a link point to another folder, in one step."""
    waiting = link.with_name("waiting")
    waiting.symlink_to(target)
    os.replace(waiting, link)


def test_a_link_that_is_turned_brings_the_other_package(light, made, other, current):
    served = LivePackage(current)
    assert served.predictor.package.fingerprint == made.package.fingerprint
    assert not served.look()
    turn(current, other)
    assert served.look()
    assert served.predictor.package.folder == other
    assert served.predictor.package.fingerprint != made.package.fingerprint
    assert not served.look()


def test_a_folder_that_is_renamed_into_place_is_taken_over(light, made, other, tmp_path):
    place = tmp_path / "package"
    shutil.copytree(made.package.folder, place)
    shutil.copytree(other, tmp_path / "next")
    served = LivePackage(place)
    before = served.predictor.package.fingerprint
    place.rename(tmp_path / "old")
    assert not served.look()  # nothing stands there for a moment
    (tmp_path / "next").rename(place)
    assert served.look()
    assert served.predictor.package.fingerprint != before


def test_a_copy_of_the_same_package_is_no_change(light, made, current, tmp_path):
    served = LivePackage(current)
    turn(current, shutil.copytree(made.package.folder, tmp_path / "copy"))
    assert not served.look()
    assert served.predictor.package.folder == tmp_path / "copy"  # the old folder may go


def test_a_package_that_is_not_whole_is_refused_and_taken_once_it_is(
    light, other, current, tmp_path, monkeypatch, caplog
):
    served = LivePackage(current)
    first = served.predictor
    half = shutil.copytree(other, tmp_path / "half")
    (half / "model.pt2").rename(tmp_path / "model.pt2")
    turn(current, half)
    assert not served.look()
    assert served.predictor is first
    assert "DataError" in served.problem
    assert "no model.pt2 in it" in served.problem
    assert "package refused" in caplog.text
    (tmp_path / "model.pt2").rename(half / "model.pt2")
    assert not served.look()  # it has just been tried
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3)
    assert served.look()
    assert served.problem == ""


def test_a_package_for_another_machine_does_not_take_over(light, other, current, tmp_path):
    served = LivePackage(current)
    wrong = shutil.copytree(other, tmp_path / "wrong")
    record = json.loads((wrong / "package.json").read_text()) | {"torch": "1.0.0"}
    (wrong / "package.json").write_text(json.dumps(record))
    turn(current, wrong)
    assert not served.look()
    assert "BackendUnavailable" in served.problem
    turn(current, other)  # what comes after it is looked at without delay
    assert served.look()


def test_the_watch_notices_and_ends(light, other, current):
    served = LivePackage(current)
    served.watch(0.01)
    turn(current, other)
    deadline = time.monotonic() + 30
    while served.predictor.package.folder != other:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    served.close()
    assert not served._thread.is_alive()


def test_a_change_under_load_loses_and_mixes_nothing(made, other, current):
    served = LivePackage(current)
    raws = [json.loads(json.dumps(made.logs.request(number))) for number in range(12)]
    expected = {}
    for folder in (made.package.folder, other):
        turn(current, folder)
        served.look()
        for i, raw in enumerate(raws):
            answer = served.predictor.rank(raw)
            expected[answer["package"], i] = answer["ads"]
    seen, wrong, end = {}, [], threading.Event()

    def call(port: int, first: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        number = first
        while not end.is_set():
            number += 1
            connection.request("POST", "/rank", json.dumps(raws[number % 12]))
            answer = connection.getresponse()
            content = json.loads(answer.read())
            if answer.status == 503:
                assert answer.headers["retry-after"] == "1"
                time.sleep(0.01)
                continue
            if answer.status != 200 or content["ads"] != expected[content["package"], number % 12]:
                wrong.append((answer.status, content))
            else:
                seen[content["package"]] = seen.get(content["package"], 0) + 1
        connection.close()

    with running(served) as port:
        callers = [threading.Thread(target=call, args=(port, k)) for k in range(4)]
        for caller in callers:
            caller.start()
        for folder in (made.package.folder, other):
            turn(current, folder)
            assert served.look()
            time.sleep(0.2)
        end.set()
        for caller in callers:
            caller.join(60)
    assert wrong == []
    assert len(seen) == 2
    assert min(seen.values()) > 4

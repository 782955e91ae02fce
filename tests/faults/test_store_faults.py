"""What happens to storage: a store that dies, is busy, slow or breaks off, and a disk that is full."""

import threading
from collections.abc import Callable

import pytest
from disks import disk
from proxy import Weather
from trials import Trial

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(600)]


def absent(trial: Trial) -> None:
    """The store, which was killed, is away for some seconds and is started again."""
    threading.Event().wait(trial.rng.uniform(1, 4))
    trial.stage.gateway.start()


def test_a_store_that_dies_while_judges_work_is_waited_for_or_the_run_started_again(begin):
    trial = begin("kill -9 of the S3 server while judges work")
    driver = trial.start()
    for rows in trial.moments():
        driver = trial.reach_or_again(driver, rows)
        trial.now()
        trial.stage.gateway.kill()
        absent(trial)
    trial.goes_on_or_again(driver)
    trial.check()


def test_a_store_that_dies_in_the_middle_of_a_part_has_no_half(begin):
    trial = begin("kill -9 of the S3 server while a part is written")
    driver = trial.start()
    for rows in trial.moments():
        driver = trial.reach_or_again(driver, rows)
        with trial.in_a_part(driver, rows) as hold:
            trial.stage.gateway.kill()
            hold.release(complete=True)
            absent(trial)
    trial.goes_on_or_again(driver)
    trial.check()


Draw = Callable[[float, float], float]
TROUBLES: dict[str, Callable[[Draw], Weather]] = {
    "an S3 server that answers 503 SlowDown": lambda draw: Weather(busy=draw(0.05, 0.25)),
    "an S3 server that is slow": lambda draw: Weather(slow=draw(0.2, 0.6), seconds=draw(0.5, 2)),
    "an S3 server that breaks connections off": lambda draw: Weather(cut=draw(0.02, 0.1)),
    "an S3 server that is busy, slow and breaks off": lambda draw: Weather(
        draw(0.05, 0.15), draw(0.02, 0.05), draw(0.1, 0.3), 1.0
    ),
}


@pytest.mark.parametrize("fault", TROUBLES)
def test_a_store_with_troubles_slows_a_run_down_and_changes_nothing(begin, fault):
    """Three kinds of weather in one run: from its first request on, and from two moments on."""
    trial = begin(fault)
    proxy, trouble = trial.stage.proxy, TROUBLES[fault]
    proxy.weather = trouble(trial.rng.uniform)
    driver = trial.start()
    trial.now()
    for rows in trial.moments()[1:]:
        driver = trial.reach_or_again(driver, rows)
        trial.now()
        proxy.weather = trouble(trial.rng.uniform)
    trial.goes_on_or_again(driver)
    counts = proxy.counts
    assert counts.busy + counts.slow + counts.cut > 0
    troubled = f"of {counts.requests} requests {counts.busy} got a 503, {counts.slow} waited, {counts.cut} broke off"
    trial.record.note = "; ".join(filter(None, [troubled, trial.record.note]))
    proxy.weather = Weather()
    trial.check()


def test_a_disk_that_is_full_is_one_message_and_the_run_goes_on_with_space(begin, tmp_path):
    trial = begin("a full disk", local=tmp_path / "disk" / "run")
    with disk(tmp_path / "disk", trial.stage.nodes.workers) as small:
        for rows in trial.moments():
            driver = trial.start()
            trial.reach(driver, rows)
            small.fill()
            trial.fails(driver, 1, small.says)
            small.free()
        trial.goes_on(trial.start())
        trial.check()

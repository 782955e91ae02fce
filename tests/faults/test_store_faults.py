"""What happens to storage: a store that dies, is busy, slow or breaks off, and a disk that is full."""

import threading

import pytest
from disks import disk
from proxy import Weather

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.s3, pytest.mark.slow]


def outage(trial) -> None:
    """The store is away for a few seconds more than it takes to start it."""
    trial.stage.gateway.kill()
    threading.Event().wait(trial.rng.uniform(1, 4))
    trial.stage.gateway.start()


def test_a_store_that_dies_while_judges_work_is_waited_for_or_the_run_started_again(begin, number):
    trial = begin("kill -9 of the S3 server while judges work", number)
    driver = trial.start()
    trial.reach(driver)
    outage(trial)
    trial.goes_on_or_again(driver)
    trial.check()


def test_a_store_that_dies_in_the_middle_of_a_part_has_no_half(begin, number):
    trial = begin("kill -9 of the S3 server while a part is written", number)
    driver = trial.start()
    with trial.stage.proxy.holding_a_part(trial.moment()) as hold:
        driver.wait_until(hold.held.is_set, "a part is being written")
        trial.now()
        trial.stage.gateway.kill()
        hold.release(complete=True)
        threading.Event().wait(trial.rng.uniform(1, 4))
        trial.stage.gateway.start()
    trial.goes_on_or_again(driver)
    trial.check()


@pytest.mark.parametrize(
    "fault, weather",
    [
        ("an S3 server that answers 503 SlowDown", lambda draw: Weather(busy=draw(0.05, 0.25))),
        ("an S3 server that is slow", lambda draw: Weather(slow=draw(0.2, 0.6), seconds=draw(0.5, 2))),
        ("an S3 server that breaks connections off", lambda draw: Weather(cut=draw(0.02, 0.1))),
        (
            "an S3 server that is busy, slow and breaks off",
            lambda draw: Weather(draw(0.05, 0.15), draw(0.02, 0.05), draw(0.1, 0.3), 1.0),
        ),
    ],
)
def test_a_store_with_troubles_slows_a_run_down_and_changes_nothing(begin, number, fault, weather):
    trial = begin(fault, number)
    trial.stage.proxy.weather = weather(trial.rng.uniform)
    driver = trial.start()
    trial.reach(driver)
    trial.goes_on_or_again(driver)
    counts = trial.stage.proxy.counts
    assert counts.busy + counts.slow + counts.cut > 0
    troubled = f"of {counts.requests} requests {counts.busy} got a 503, {counts.slow} waited, {counts.cut} broke off"
    trial.record.note = "; ".join(filter(None, [troubled, trial.record.note]))
    trial.stage.proxy.weather = Weather()
    trial.check()


def test_a_disk_that_is_full_is_one_message_and_the_run_goes_on_with_space(begin, number, tmp_path):
    trial = begin("a full disk", number, local=tmp_path / "disk" / "run")
    with disk(tmp_path / "disk", trial.stage.nodes.workers) as small:
        driver = trial.start()
        trial.reach(driver)
        small.fill()
        trial.fails(driver, 1, small.says)
        small.free()
        trial.goes_on(trial.start())
        trial.check()

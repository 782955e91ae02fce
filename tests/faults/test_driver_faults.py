"""What ends the driver: the same command goes on from what was committed. And a second driver on the same folder."""

import signal

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.s3, pytest.mark.slow]


def test_a_driver_that_is_killed_is_started_again(begin, number):
    trial = begin("kill -9 of the driver while judges work", number)
    driver = trial.start()
    trial.reach(driver)
    driver.signal(signal.SIGKILL)
    trial.ends(driver)
    trial.goes_on(trial.start())
    trial.check()


def test_a_part_that_an_orphan_commits_after_its_driver_died_counts_once(begin, number):
    trial = begin("kill -9 of the driver while a part is written", number)
    driver = trial.start()
    with trial.stage.proxy.holding_a_part(trial.moment()) as hold:
        driver.wait_until(hold.held.is_set, "a part is being written")
        trial.now()
        driver.signal(signal.SIGKILL)
        trial.ends(driver)
        hold.release(complete=number != 0)
    trial.goes_on(trial.start())
    trial.check()


def test_a_driver_that_is_preempted_says_so_and_is_started_again(begin, number):
    trial = begin("SIGTERM of the driver", number)
    driver = trial.start()
    trial.reach(driver)
    driver.signal(signal.SIGTERM)
    trial.fails(driver, 143, "stopped; what was judged is saved: the same command goes on from there")
    trial.goes_on(trial.start())
    trial.check()


@pytest.mark.engine
def test_a_driver_that_is_killed_leaves_no_engine_behind(begin, number):
    trial = begin("kill -9 of the driver while the engine works", number, "vLLM")
    driver = trial.start()
    trial.reach(driver)
    trial.in_a_batch(driver)
    driver.signal(signal.SIGKILL)
    trial.ends(driver)
    trial.goes_on(trial.start())
    trial.check()


def test_a_second_run_on_the_same_folder_is_refused_and_disturbs_nothing(begin, number):
    trial = begin("a second run on the same folder", number)
    driver = trial.start()
    trial.reach(driver, trial.moment(0.0, 0.4))
    second = trial.intrude()
    code, out, said = second.end()
    assert (code, out) == (1, ""), said
    assert "Traceback" not in said
    assert driver.process.poll() is None, "the first run was over before the second was refused: nothing is shown"
    trial.record.note = said.splitlines()[-1]
    trial.goes_on(driver)
    trial.check()

"""What ends the driver: the same command goes on from what was committed. And a second driver on the same folder."""

import signal

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_driver_that_is_killed_is_started_again(begin):
    trial = begin("kill -9 of the driver while judges work")
    for rows in trial.moments():
        driver = trial.start()
        trial.reach(driver, rows)
        driver.signal(signal.SIGKILL)
        trial.ends(driver)
    trial.goes_on(trial.start())
    trial.check()


def test_a_part_that_an_orphan_commits_after_its_driver_died_counts_once(begin):
    trial = begin("kill -9 of the driver while a part is written")
    for i, rows in enumerate(trial.moments()):
        driver = trial.start()
        with trial.in_a_part(driver, rows) as hold:
            driver.signal(signal.SIGKILL)
            trial.ends(driver)
            hold.release(complete=i != 1)
    trial.goes_on(trial.start())
    trial.check()


def test_a_driver_that_is_preempted_says_so_and_is_started_again(begin):
    trial = begin("SIGTERM of the driver")
    for rows in trial.moments():
        driver = trial.start()
        trial.reach(driver, rows)
        driver.signal(signal.SIGTERM)
        trial.fails(driver, 143, "stopped; what was judged is saved: the same command goes on from there")
    trial.goes_on(trial.start())
    trial.check()


@pytest.mark.engine
def test_a_driver_that_is_killed_leaves_no_engine_behind(begin):
    trial = begin("kill -9 of the driver while the engine works", "vLLM")
    for rows in trial.moments():
        driver = trial.start()
        trial.reach(driver, rows)
        trial.at_work()
        driver.signal(signal.SIGKILL)
        trial.ends(driver)
    trial.goes_on(trial.start())
    trial.check()


def test_a_second_run_on_the_same_folder_is_refused_and_disturbs_nothing(begin):
    trial = begin("a second run on the same folder")
    driver = trial.start()
    for rows in trial.moments():
        with trial.in_a_part(driver, rows) as hold:  # so that the first is not over before the second is refused
            second = trial.intrude()
            code, out, said = second.end()
            assert (code, out) == (1, ""), said
            assert "another run works on this folder" in said, said
            hold.release(complete=True)
    trial.goes_on(driver)
    trial.check()

"""The short form of the fault suite: one run through every fault that costs no engine, one after another."""

import signal

import pytest
from nodes import speaker
from proxy import Weather

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.slow]


def test_one_run_through_the_faults_ends_as_if_there_had_been_none(begin):
    trial = begin("everything")
    proxy, nodes, tasks = trial.stage.proxy, trial.stage.nodes, trial.work.tasks
    proxy.weather = Weather(busy=0.03, cut=0.01)
    driver = trial.start()
    trial.reach(driver, tasks // 20)
    nodes.judges()[0].kill()
    with trial.in_a_part(driver, tasks // 6) as hold:
        speaker(hold.writer).kill()
        hold.release(complete=False)
    trial.reach(driver, tasks // 3)
    nodes.kill(nodes.node_of(nodes.judges()[0]))
    with trial.in_a_part(driver, tasks // 2) as hold:
        driver.signal(signal.SIGKILL)
        trial.ends(driver)
        hold.release(complete=True)
    driver = trial.start()
    with trial.in_a_part(driver, 2 * tasks // 3) as hold:  # the first must not be over before the second is refused
        second = trial.intrude()
        assert second.end()[0] == 1, second.said
        hold.release(complete=True)
    trial.reach(driver, 4 * tasks // 5)
    trial.stage.gateway.kill()
    trial.stage.gateway.start()
    trial.goes_on_or_again(driver)
    proxy.weather = Weather()
    trial.check()

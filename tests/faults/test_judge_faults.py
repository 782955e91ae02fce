"""What kills a judge, what writes for it, or the node under both: the run goes on by itself."""

import random
import signal

import polars as pl
import psutil
import pytest
import verified
from nodes import speaker

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.s3, pytest.mark.slow]


def test_a_judge_that_is_killed_is_replaced(begin, number):
    trial = begin("kill -9 of a judge", number)
    driver = trial.start()
    trial.reach(driver)
    trial.rng.choice(trial.stage.nodes.judges()).kill()
    trial.goes_on(driver)
    trial.check()


def test_a_writer_that_is_killed_in_the_middle_of_a_part_leaves_no_half(begin, number):
    trial = begin("kill -9 of the process that writes a part", number)
    driver = trial.start()
    with trial.stage.proxy.holding_a_part(trial.moment()) as hold:
        driver.wait_until(hold.held.is_set, "a part is being written")
        trial.now()
        speaker(hold.writer).kill()
        hold.release(complete=trial.rng.random() < 0.5)
    trial.goes_on(driver)
    trial.check()


def test_a_judge_that_is_preempted_gives_its_batch_to_another(begin, number):
    trial = begin("SIGTERM of a judge", number)
    driver = trial.start()
    trial.reach(driver)
    trial.rng.choice(trial.stage.nodes.judges()).send_signal(signal.SIGTERM)
    trial.goes_on(driver)
    trial.check()


def test_a_node_that_goes_takes_no_judgment_with_it(begin, number):
    trial = begin("kill -9 of a node while it judges", number)
    driver = trial.start()
    trial.reach(driver)
    nodes = trial.stage.nodes
    nodes.kill(nodes.node_of(trial.rng.choice(nodes.judges())))
    trial.goes_on(driver)
    trial.check()


def test_a_node_that_goes_in_the_middle_of_a_part_leaves_no_half(begin, number):
    trial = begin("kill -9 of a node while it writes a part", number)
    driver = trial.start()
    nodes = trial.stage.nodes
    with trial.stage.proxy.holding_a_part(trial.moment()) as hold:
        driver.wait_until(hold.held.is_set, "a part is being written")
        trial.now()
        nodes.kill(nodes.node_of(speaker(hold.writer)))
        hold.release(complete=trial.rng.random() < 0.5)
    trial.goes_on(driver)
    trial.check()


@pytest.mark.engine
def test_an_engine_that_is_killed_for_its_memory_is_loaded_again(begin, number):
    trial = begin("out-of-memory kill of the engine", number, "vLLM")
    driver = trial.start()
    trial.reach(driver)
    psutil.Process(trial.in_a_batch(driver)).kill()
    trial.goes_on(driver)
    trial.check()


@pytest.mark.engine
def test_an_engine_that_is_preempted_is_loaded_again(begin, number):
    trial = begin("SIGTERM of the engine", number, "vLLM")
    driver = trial.start()
    trial.reach(driver)
    psutil.Process(trial.in_a_batch(driver)).terminate()
    trial.goes_on(driver)
    trial.check()


def test_an_answer_that_kills_every_engine_becomes_failed_rows_and_the_run_goes_on(begin, number):
    draw = random.Random(f"poison {number}")
    question, model = draw.randrange(24), draw.choice(["m1", "m2", "m3"])
    poison = f"judge.scripted.poison={model} says {2 * question}."
    trial = begin("an answer that kills every engine", number, overrides=(poison, "run.max_failure_rate=0.5"))
    driver = trial.start()
    trial.goes_on(driver)
    shown = (pl.col("question_id") == str(question)) & ((pl.col("model_a") == model) | (pl.col("model_b") == model))
    trial.check(verified.same_but(shown.fill_null(False)))

"""What kills a judge, what writes for it, or the node under both: the run goes on by itself."""

import polars as pl
import psutil
import pytest
import verified
from nodes import speaker
from trials import TIMES

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(600)]


def test_judges_that_are_killed_are_replaced(begin):
    trial = begin("kill -9 of a judge")
    driver = trial.start()
    for rows in trial.moments():
        trial.reach(driver, rows)
        trial.rng.choice(trial.stage.nodes.judges()).kill()
    trial.goes_on(driver)
    trial.check()


def test_writers_that_are_killed_in_the_middle_of_a_part_leave_no_half(begin):
    trial = begin("kill -9 of the process that writes a part")
    driver = trial.start()
    for rows in trial.moments():
        with trial.in_a_part(driver, rows) as hold:
            speaker(hold.writer).kill()
            hold.release(complete=trial.rng.random() < 0.5)
    trial.goes_on(driver)
    trial.check()


def test_judges_that_are_preempted_give_their_batch_to_another(begin):
    trial = begin("SIGTERM of a judge")
    driver = trial.start()
    for rows in trial.moments():
        trial.reach(driver, rows)
        judge = trial.rng.choice(trial.stage.nodes.judges())
        judge.terminate()
        judge.wait(60)
    trial.goes_on(driver)
    trial.check()


def test_nodes_that_go_take_no_judgment_with_them(begin):
    trial = begin("kill -9 of a node while it judges")
    driver, nodes = trial.start(), trial.stage.nodes
    for rows in trial.moments():
        trial.reach(driver, rows)
        nodes.kill(nodes.node_of(trial.rng.choice(nodes.judges())))
        nodes.heal()
    trial.goes_on(driver)
    trial.check()


def test_nodes_that_go_in_the_middle_of_a_part_leave_no_half(begin):
    trial = begin("kill -9 of a node while it writes a part")
    driver, nodes = trial.start(), trial.stage.nodes
    for rows in trial.moments():
        with trial.in_a_part(driver, rows) as hold:
            nodes.kill(nodes.node_of(speaker(hold.writer)))
            hold.release(complete=trial.rng.random() < 0.5)
        nodes.heal()
    trial.goes_on(driver)
    trial.check()


@pytest.mark.engine
@pytest.mark.parametrize("fault, end", [("out-of-memory kill", "kill"), ("SIGTERM", "terminate")])
def test_engines_that_end_at_work_are_loaded_again(begin, fault, end):
    trial = begin(f"{fault} of the engine", "vLLM")
    driver = trial.start()
    for rows in trial.moments():
        trial.reach(driver, rows)
        engine = psutil.Process(trial.at_work())
        getattr(engine, end)()
        engine.wait(60)
    trial.goes_on(driver)
    trial.check()


def test_answers_that_kill_every_engine_become_failed_rows_and_the_run_goes_on(begin):
    model = "m2"
    poison = f"{model} says 3"  # the sums 30, 32 and 34 of the last three questions
    overrides = (f"judge.scripted.poison={poison}", "run.max_failure_rate=0.5")
    trial = begin("three answers that kill every engine", overrides=overrides)
    trial.goes_on(trial.start())
    trial.record.times = TIMES
    asked = pl.col("question_id").is_in([str(trial.work.questions - 1 - i) for i in range(TIMES)])
    shown = asked & ((pl.col("model_a") == model) | (pl.col("model_b") == model).fill_null(False))
    trial.check(verified.same_but(shown))

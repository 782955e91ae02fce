"""What Ray's errors say of an engine: whether it died with its batch, or lives and has refused it."""

import pytest

pytest.importorskip("ray.serve")
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")  # Ray's own


@pytest.mark.parametrize("name", ["OutOfMemoryError", "NodeDiedError"])
def test_a_judge_that_the_memory_monitor_or_its_machine_ended_is_sent_its_batch_again(name):
    from ray import exceptions

    from trustjudge_ray.training.service_front import engine_lost

    lost = engine_lost(getattr(exceptions, name)("killed to free memory\nand a second line"))
    assert lost is not None
    assert lost.begun
    assert str(lost).endswith("killed to free memory")


def test_an_answer_that_is_lost_with_its_process_is_asked_for_again():
    from ray import exceptions

    from trustjudge_ray.training.service_front import engine_lost

    errors = [
        exceptions.ActorDiedError(),
        exceptions.ActorUnavailableError("gone", None),
        exceptions.WorkerCrashedError(),
        exceptions.LocalRayletDiedError(),
        exceptions.ObjectLostError("00" * 28, None, ""),
        exceptions.OwnerDiedError("00" * 28, None, ""),
    ]
    assert [getattr(engine_lost(error), "begun", None) for error in errors] == [True] * 6


def test_where_there_was_no_replica_nothing_has_died():
    from ray.serve._private.common import DeploymentID
    from ray.serve.exceptions import DeploymentUnavailableError

    from trustjudge_ray.training.service_front import engine_lost

    lost = engine_lost(DeploymentUnavailableError(DeploymentID("Judging")))
    assert lost is not None
    assert not lost.begun


def test_what_the_judge_raised_is_no_death_also_where_it_is_an_error_of_ray():
    from ray import exceptions

    from trustjudge_ray.training.service_front import engine_lost

    for cause in (ZeroDivisionError("x"), exceptions.OutOfMemoryError("inside the judge")):
        raised = exceptions.RayTaskError("rewards", "a traceback", cause, "judge", 1, "127.0.0.1")
        assert engine_lost(raised) is None
        assert engine_lost(raised.as_instanceof_cause()) is None
    for other in (exceptions.TaskCancelledError(), exceptions.GetTimeoutError("late"), ValueError("no")):
        assert engine_lost(other) is None

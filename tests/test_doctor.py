"""`trustjudge doctor`: what a run would fail on, said before it, in one message that says what to change."""

import json
import struct
from pathlib import Path

import pytest
from corpora import SCORE, protocol_files, rows, write_corpus
from s3_fixtures import S3Server
from small_judges import small_judge
from small_tokenizers import lower_casing, merging
from test_cli import trustjudge

from trustjudge_ray import config, doctor
from trustjudge_ray.findings import FAILED, PASSED, SKIPPED, Finding
from trustjudge_ray.judging import checks
from trustjudge_ray.judging.model_size import GIB, model_size, stored_parameters
from trustjudge_ray.judging.preview import preview
from trustjudge_ray.store import RunFolder

REFERENCE = SCORE.replace("name: score-5", "name: guided").replace(
    "  Answer:\n", "  Reference:\n  {reference}\n\n  Answer:\n"
)


def tree(tmp_path: Path, **changes: object) -> dict:
    """A configuration whose every check passes, but for the changes."""
    corpus = write_corpus(tmp_path / "corpus.jsonl", rows(4, ["m1", "m2", "m3"]))
    return {
        "out": str(tmp_path / "run"),
        "corpus": {"paths": [str(corpus)]},
        "judge": {"model": str(small_judge(tmp_path / "judge"))},
        "protocols": protocol_files(tmp_path),
        **changes,
    }


def findings(given: dict, load: bool = False) -> dict[str, Finding]:
    return {f.check: f for f in doctor.examine(config.loads(json.dumps(given), "my.yaml"), load)}


def failures(given: dict) -> dict[str, str]:
    return {name: f.says for name, f in findings(given).items() if f.status == FAILED}


def test_every_check_of_a_sound_configuration_passes_without_weights(tmp_path):
    found = findings(tree(tmp_path))
    statuses = {name: f.status for name, f in found.items()}
    assert statuses.pop("judge answers") == SKIPPED
    assert set(statuses.values()) == {PASSED}, {n: f.says for n, f in found.items()}
    expected = {
        "configuration",
        "corpus",
        "corpus rows",
        "run folder",
        "judge",
        "labels of score-5",
        "labels of compare",
    }
    assert set(statuses) == expected | {"chat template", "precision", "context", "memory"}
    table = found["labels of score-5"].details["labels"]
    assert [row["label"] for row in table] == ["1", "2", "3", "4", "5"]
    assert all(len(ids) == 1 for row in table for ids in row["token_ids"])
    assert "body bfloat16, output layer float32" in found["precision"].says


def test_doctor_leaves_no_file_in_the_run_folder(tmp_path):
    findings(tree(tmp_path))
    assert RunFolder(str(tmp_path / "run")).names("") == []


def test_a_tokenizer_that_cannot_separate_the_labels_is_one_message_that_says_what_to_change(tmp_path):
    given = tree(tmp_path, judge={"model": str(small_judge(tmp_path / "lower", lower_casing()))})
    (tmp_path / "score.yaml").write_text(SCORE.replace("labels: 5", "labels: [A, a]").replace("1 to 5", ""))
    wrong = failures(given)
    assert "labels of score-5" in wrong
    assert "cannot be told apart" in wrong["labels of score-5"]
    assert "other label texts" in wrong["labels of score-5"]
    assert "\n" not in wrong["labels of score-5"]


def test_where_the_opener_joins_with_the_labels_doctor_says_where_they_are_read(tmp_path):
    judge = small_judge(tmp_path / "merging", merging("[1", "[2", "[3", "[4", "[5"))
    found = findings(tree(tmp_path, judge={"model": str(judge)}))["labels of score-5"]
    assert found.status == PASSED
    assert any("joins with the labels" in note for note in found.notes)


def test_a_context_too_small_is_one_message_with_the_number_that_would_do(tmp_path):
    given = tree(tmp_path)
    given["judge"]["max_model_len"] = 60
    wrong = failures(given)
    assert list(wrong) == ["context"]
    needed = findings(given)["context"].details["needed"]
    assert f"set judge.max_model_len to {needed} or more (the model takes 2048)" in wrong["context"]
    given["judge"]["max_model_len"] = needed
    assert failures(given) == {}
    given["judge"]["max_model_len"] = needed - 1
    fit = findings(given)["context"].details["protocols"]
    assert sum(f["too_long"] + f["cut"] for f in fit.values()) > 0


def test_a_context_over_the_models_own_is_refused(tmp_path):
    given = tree(tmp_path)
    given["judge"]["max_model_len"] = 4096
    assert "the model takes 2048 tokens" in failures(given)["context"]


def test_responses_that_would_be_cut_are_counted_and_many_of_them_fail(tmp_path):
    given = tree(tmp_path)
    given["judge"]["max_model_len"] = 300
    corpus = rows(20, ["m1", "m2", "m3"])
    corpus[0]["response"] = "word " * 400
    write_corpus(tmp_path / "corpus.jsonl", corpus)
    given["protocols"] = given["protocols"][:1]
    found = findings(given)["context"]
    assert (found.status, found.details["protocols"]["score-5"]["cut"]) == (PASSED, 1)
    assert "1 are cut" in found.notes[0]
    write_corpus(tmp_path / "corpus.jsonl", [row | {"response": "word " * 400} for row in corpus])
    assert "60 lose a part of their responses" in failures(given)["context"]


def test_a_protocol_with_a_reference_is_named_where_rows_have_none(tmp_path):
    (tmp_path / "guided.yaml").write_text(REFERENCE)
    given = tree(tmp_path, protocols=[str(tmp_path / "guided.yaml")])
    assert "12 of 12 sampled rows have no reference" in failures(given)["slots of guided"]
    assert "corpus.fields.reference" in failures(given)["slots of guided"]
    some = [row | ({"reference": "yes"} if row["question_id"] else {}) for row in rows(4, ["m1", "m2", "m3"])]
    write_corpus(tmp_path / "corpus.jsonl", some)
    found = findings(given)["slots of guided"]
    assert found.status == PASSED
    assert "3 of 12" in found.notes[0]
    assert "missing_reference" in found.notes[0]


def test_a_folded_system_role_and_imitable_markers_are_said(tmp_path):
    for template, says in (("gemma", "begins the first user turn"), ("llama2", "responses can imitate its markers")):
        judge = small_judge(tmp_path / template, template=template)
        found = findings(tree(tmp_path, judge={"model": str(judge)}))["chat template"]
        assert found.status == PASSED
        assert says in found.says


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        ({"judge": {"model": "/no/such/model"}}, "judge", "there is no such folder"),
        ({"protocols": ["score-7"]}, "configuration", "not one of"),
        ({"corpus": {"paths": ["nothing.jsonl"]}}, "corpus", "no corpus file there"),
        (
            {"corpus": {"paths": ["{corpus}"], "fields": {"response": "anwser"}}},
            "corpus rows",
            "none of the first rows",
        ),
        ({"out": "/proc/nowhere"}, "run folder", "/proc/nowhere"),
    ],
)
def test_what_is_wrong_is_one_line_in_the_check_that_it_belongs_to(tmp_path, change, check, says):
    given = json.loads(json.dumps(tree(tmp_path, **change)).replace("{corpus}", str(tmp_path / "corpus.jsonl")))
    wrong = failures(given)
    assert list(wrong) == [check]
    assert says in wrong[check]
    assert "\n" not in wrong[check]


def test_the_command_prints_a_line_a_check_and_ends_with_its_status(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(json.dumps(tree(tmp_path, judge={"engine": "scripted"})))
    done = trustjudge("doctor", path)
    assert done.returncode == 0, done.stderr
    assert "passed  judge answers: loaded" in done.stdout
    failed = trustjudge("doctor", path, "corpus.paths=[nothing.jsonl]", "--json")
    assert failed.returncode == 1
    found = json.loads(failed.stdout.splitlines()[-1])
    assert found["passed"] is False
    assert {c["check"] for c in found["checks"] if c["status"] == FAILED} == {"corpus"}
    assert "FAILED  corpus: " in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.s3
@pytest.mark.parametrize("broken", ["bucket", "key"])
def test_a_missing_bucket_and_a_wrong_key_are_one_message_each(tmp_path, s3: S3Server, broken):
    bucket = "no-such-bucket" if broken == "bucket" else s3.bucket
    options = s3.options | ({"secret": "wrong"} if broken == "key" else {})
    says = {"bucket": "check the bucket and the path", "key": "check the credentials and their rights"}[broken]
    given = tree(tmp_path, judge={"engine": "scripted"}, storage_options=options)
    assert failures(given | {"out": f"s3://{bucket}/run"}).keys() == {"run folder"}
    assert says in failures(given | {"out": f"s3://{bucket}/run"})["run folder"]
    wrong = failures(given | {"corpus": {"paths": [f"s3://{bucket}/c.jsonl"]}})
    assert wrong.keys() == {"corpus"}
    assert says in wrong["corpus"]


@pytest.mark.s3
def test_a_sound_bucket_passes_and_keeps_nothing(tmp_path, s3: S3Server):
    top = f"s3://{s3.bucket}/doctor"
    RunFolder(top, s3.options).write_bytes("c.jsonl", _lines())
    given = tree(tmp_path, judge={"engine": "scripted"}, storage_options=s3.options)
    found = findings(given | {"out": f"{top}/run", "corpus": {"paths": [f"{top}/c.jsonl"]}}, load=True)
    assert {f.status for f in found.values()} == {PASSED}, found
    assert RunFolder(f"{top}/run", s3.options).names("") == []


def _lines() -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows(2, ["m1", "m2"])).encode()


def test_weights_are_counted_in_the_files_and_not_guessed(tmp_path):
    folder = small_judge(tmp_path / "judge", num_key_value_heads=2)
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [3, 5]}, "__metadata__": {}, "b": {"dtype": "F32", "shape": [7]}}
    )
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    assert stored_parameters(folder) == 22
    size = model_size(preview(config.JudgeConfig(model=str(folder))).model, str(folder), "bfloat16")
    assert (size.weights, size.counted) == (44, True)
    assert size.cache_per_token == 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("gpus", "tensor_parallel", "status"), [((), 1, PASSED), ((GIB,), 1, FAILED), ((2 * GIB, 2 * GIB), 2, PASSED)]
)
def test_a_model_that_does_not_fit_on_the_gpus_is_refused_with_what_would_help(tmp_path, gpus, tensor_parallel, status):
    big = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "intermediate_size": 5632}
    judge = config.JudgeConfig(model=str(small_judge(tmp_path / "judge", **big)))
    found = checks.check_memory(preview(judge), checks.Machine(False, gpus, None, tensor_parallel))
    assert found.status == status
    if status == FAILED:
        assert "cluster.tensor_parallel" in found.says


def test_a_cache_that_cannot_hold_one_context_is_refused(tmp_path):
    judge = config.JudgeConfig(model=str(small_judge(tmp_path / "judge")), engine_args={"kv_cache_memory_bytes": 1024})
    found = checks.check_memory(preview(judge), checks.Machine(True, (), GIB))
    assert found.status == FAILED
    assert "kv_cache_memory_bytes" in found.says


@pytest.mark.engine
@pytest.mark.slow
def test_the_embedded_judge_loads_and_answers_in_a_process_of_its_own(tmp_path):
    found = findings(tree(tmp_path, judge={"model": "embedded", "max_model_len": 1024}), load=True)
    assert {f.status for f in found.values()} == {PASSED}, {n: f.says for n, f in found.items()}
    answers = found["judge answers"].details
    assert {row["protocol"] for row in answers["judgments"]} == {"score-5", "compare"}
    assert all(0 < row["label_mass"] <= 1 for row in answers["judgments"])
    assert answers["described"]["max_model_len"] == 1024


@pytest.mark.engine
def test_a_judge_whose_weights_are_not_there_fails_with_the_engines_reason(tmp_path):
    found = findings(tree(tmp_path, protocols=protocol_files(tmp_path)[:1]), load=True)
    assert found["judge answers"].status == FAILED
    assert "cannot load" in found["judge answers"].says


def test_two_judges_are_told_apart(tmp_path):
    judges = [{"engine": "scripted", "name": "scripted-a"}, {"engine": "scripted", "name": "scripted-b"}]
    given = tree(tmp_path, judges=judges)
    del given["judge"]
    assert {"scripted-a: judge answers", "scripted-b: judge answers"} <= set(findings(given))

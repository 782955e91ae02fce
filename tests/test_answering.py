"""Questions that nobody has answered yet: how they are read, answered through the pipeline, and judged afterwards."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import protocol_files, write_corpus
from test_cli import trustjudge

from trustjudge_ray import answering, config, doctor, runs
from trustjudge_ray.config import ConfigError
from trustjudge_ray.corpus.formats import NO_RESPONSE, field_map, parse_lines, questions
from trustjudge_ray.findings import FAILED, PASSED
from trustjudge_ray.judging.protocols import ProtocolError

MENDED = "Pim mended the clock of Orle in May. It had stopped at nine."


def asked(number: int = 6) -> list[dict]:
    """Rows of format questions, with the reference that the scripted judge answers with."""
    return [
        {"question_id": f"q{i}", "category": "clocks", "context": f"{MENDED} It cost {i} crowns.",
         "question": f"What did the mending of clock {i} cost?", "reference": f"{i} crowns\n{i}", "set": "mine"}
        for i in range(number)
    ]  # fmt: skip


def loaded(tmp_path: Path, protocols: list[str] | None = None, **changes) -> config.LoadedConfig:
    """Two scripted judges and the questions, and changes by section."""
    corpus = {"format": "questions", "paths": [str(write_corpus(tmp_path / "questions.jsonl", asked()))]}
    judges = [
        {"engine": "scripted", "name": f"scripted-{name}", "scripted": {"answering": share}}
        for name, share in (("good", 1.0), ("poor", 0.0))
    ]
    tree = {"out": str(tmp_path / "answers"), "corpus": corpus, "judges": judges, "run": {"batch_size": 64}}
    tree |= {"protocols": protocols} if protocols else {}
    return config.loads(json.dumps(tree | changes), "test.yaml")


def quiet(*_: object) -> None: ...


def written(out: Path) -> list[dict]:
    files = sorted((out / "answers").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


# --- the format ------------------------------------------------------------------------------


def read(rows: list[dict], format: str = "questions", fields: dict[str, str] | None = None):
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tables,) = parse_lines([lines], "f", format, fields or {})
    return tuple(table.to_pylist() for table in tables)


def test_a_question_is_a_row_without_an_answer_and_its_passage_comes_first():
    (row,), bad = read(asked(1))
    assert not bad
    assert (row["response_id"], row["model"], row["replies"]) == (NO_RESPONSE, NO_RESPONSE, [])
    assert [message["role"] for message in row["messages"]] == ["context", "user"]
    assert row["messages"][0]["content"].startswith(MENDED)
    assert (row["reference"], row["category"]) == ("0 crowns\n0", "clocks")
    assert json.loads(row["meta_json"]) == {"set": "mine"}


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"question": None}, "question is null"),
        ({"context": {"text": MENDED}}, "context: an object"),
        ({"question_id": ""}, "question_id is empty"),
    ],
)
def test_a_question_that_cannot_be_put_is_quarantined_with_the_field(change, detail):
    rows, (bad,) = read([asked(1)[0] | change, asked(2)[1]])
    assert [row["question_id"] for row in rows] == ["q1"]
    assert detail in bad["detail"]


def test_a_passage_may_be_missing_and_a_conversation_may_come_with_one():
    plain = {"question_id": "a", "question": "Why?"}
    turns = {"question_id": "b", "context": MENDED, "messages": [{"role": "user", "content": "When?"}]}
    rows, bad = read([plain, turns])
    assert not bad
    assert [[m["role"] for m in row["messages"]] for row in rows] == [["user"], ["context", "user"]]


def test_only_questions_read_a_passage_that_nobody_mapped():
    """Other corpora call something else context, and the same question would become another one."""
    row = {"question_id": "a", "question": "Why?", "context": {"source": 3}, "model": "m", "response": "Since."}
    nested = {"question_id": "a", "question": "Why?", "context": {"source": 3}, "answers": [{"text": ["Since."]}]}
    for given, format in ((row, "flat"), (nested, "trustjudge")):
        (found,), bad = read([given], format)
        assert not bad
        assert [m["role"] for m in found["messages"]] == ["user"]
        assert json.loads(found["meta_json"])["context"] == {"source": 3}
        (mapped,), _ = read([given | {"context": MENDED}], format, {"context": "context"})
        assert [m["role"] for m in mapped["messages"]] == ["context", "user"]


def test_a_question_has_no_field_for_an_answer():
    with pytest.raises(ValueError, match="no field 'response' in format questions"):
        field_map({"response": "r"}, "questions")
    (row,) = questions({"question_id": "a", "question": "Why?", "response": "x"}, field_map({}, "questions"))
    assert json.loads(row["meta_json"]) == {"response": "x"}


# --- what cannot be meant --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocols", "work", "error", "message"),
    [
        (["score-5"], "judge", ConfigError, "questions have no answers for 'score-5'.*first `trustjudge answer`"),
        (["verify-right-yes-no"], "judge", ConfigError, "no answers for 'verify-right-yes-no' to judge"),
        (["answer", "verify-no-passage"], "judge", ConfigError, "no answers for 'verify-no-passage'"),
        (["answer"], "run", ProtocolError, "'answer' is of kind answer: trustjudge answer asks it"),
        (["score-5", "verify-right-yes-no"], "run", ProtocolError, "of kind verify: trustjudge audit asks it"),
        (["answer", "score-5"], "answer", ProtocolError, "'score-5' is of kind score; `answer` asks those of kind"),
    ],
)
def test_what_no_plan_could_mean_is_refused_before_anything_is_started(tmp_path, protocols, work, error, message):
    do = {"judge": runs.judge, "run": runs.run, "answer": answering.answer}[work]
    given = loaded(tmp_path, protocols)
    corpus = replace(given.config.corpus, format="flat") if work == "run" else given.config.corpus
    with pytest.raises(error, match=message):
        do(replace(given, config=replace(given.config, corpus=corpus)), quiet)
    assert not (tmp_path / "answers" / "config.yaml").exists()


def test_a_protocol_that_is_only_for_some_models_must_be_one_of_the_run(tmp_path):
    given = loaded(tmp_path, ["answer"], plan={"only": {"anwser": ["m1"]}})
    with pytest.raises(ConfigError, match=r"plan.only: 'anwser' is no protocol of this run; it has \['answer'\]"):
        runs.judge(given, quiet)


def test_doctor_names_the_passage_that_a_corpus_does_not_have(tmp_path):
    plain = [{name: value for name, value in row.items() if name != "context"} for row in asked()]
    for rows, statuses in ((asked(), {}), (asked(3) + plain[3:], {PASSED}), (plain, {FAILED})):
        given = loaded(tmp_path, ["answer-passage"])
        write_corpus(tmp_path / "questions.jsonl", rows)
        found = [f for f in doctor.examine(given, load=False) if f.check == "slots of answer-passage"]
        assert {f.status for f in found} == set(statuses)
        assert all("no context, which the protocol shows" in f.says + "".join(f.notes) for f in found)


# --- through the pipeline --------------------------------------------------------------------


@pytest.mark.ray
def test_every_model_answers_every_question_once_and_what_it_said_is_a_corpus_that_is_judged(tmp_path, local_ray):
    given = loaded(tmp_path, ["answer-passage"])
    answered = answering.answer(given, quiet)
    assert (answered.answers, answered.judged.tasks, answered.judged.now) == (12, 12, 12)
    assert answered.judged.statuses == {"ok": 12}
    rows = written(tmp_path / "answers")
    assert {(row["question_id"], row["model"], row["response_id"]) for row in rows} == {
        (f"q{i}", name, name) for i in range(6) for name in ("scripted-good", "scripted-poor")
    }
    by_question = {row["question_id"]: row for row in asked()}
    for row in rows:
        right = row["response"] == by_question[row["question_id"]]["reference"].splitlines()[0]
        assert right == (row["model"] == "scripted-good")
        assert row["messages"][0] == {"role": "context", "content": by_question[row["question_id"]]["context"]}
    again = answering.answer(given, quiet)
    assert (again.judged.now, again.judged.reused, again.answers) == (0, 12, 12)
    assert written(tmp_path / "answers") == rows
    given = _judging(tmp_path, answered.paths, [*protocol_files(tmp_path), "verify-right-yes-no"])
    assert runs.judge(given, quiet).statuses == {"ok": 6 * 2 + 6 * 2 + 6 * 2}
    said = runs.folder_of(given).judgments()[0].filter(emitted="Yes")
    assert sorted(said["question_id"]) == [f"q{i}" for i in range(6)]
    assert set(said["model_a"]) == {"scripted-good"}


def _judging(tmp_path: Path, paths: str, protocols: list[str]) -> config.LoadedConfig:
    """A run over the answers of another, whose judge verifies without a fault."""
    tree = {"out": str(tmp_path / "judged"), "corpus": {"paths": [paths]}, "judge": {"engine": "scripted"}}
    return config.loads(json.dumps(tree | {"protocols": protocols, "run": {"batch_size": 64}}), "second.yaml")


@pytest.mark.heavy
@pytest.mark.ray
def test_several_protocols_and_samples_are_responses_of_their_own_and_failures_are_counted(tmp_path, local_ray):
    (tmp_path / "drawn.yaml").write_text(
        "name: drawn\nkind: answer\nuser: |\n  {question}\nmax_tokens: 8\nsampling: {temperature: 1.0}\nsamples: 2\n"
    )
    judge = {"engine": "scripted", "scripted": {"failure_rate": 0.3}}
    given = loaded(tmp_path, ["answer", str(tmp_path / "drawn.yaml")], judges=[], judge=judge)
    answered = answering.answer(given, quiet)
    failed = answered.judged.statuses["engine_error"]
    assert answered.judged.tasks == 6 * (1 + 2)
    assert failed
    assert answered.answers == answered.judged.statuses["ok"] == 18 - failed
    assert answered.judged.over_limit
    rows = written(tmp_path / "answers")
    assert {row["response_id"] for row in rows} == {"scripted/answer", "scripted/drawn#0", "scripted/drawn#1"}
    assert {row["model"] for row in rows} == {"scripted"}
    assert len({(row["question_id"], row["response_id"]) for row in rows}) == len(rows) == 18 - failed


@pytest.mark.ray
def test_the_command_answers_with_the_default_protocol_and_says_where(tmp_path):
    """The questions of a corpus that has answers are answered anew, its own answers left alone."""
    rows = [{"question_id": i, "question": f"What is {i}?", "model": m, "response": m} for i in range(3) for m in "ab"]
    corpus = write_corpus(tmp_path / "corpus.jsonl", rows)
    tree = {"out": str(tmp_path / "run"), "corpus": {"paths": [str(corpus)]}, "judge": {"engine": "scripted"}}
    (tmp_path / "my.yaml").write_text(json.dumps(tree | {"cluster": {"num_cpus": 2}}))
    done = trustjudge("answer", tmp_path / "my.yaml", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["tasks"], said["answers"], said["statuses"]) == (3, 3, {"ok": 3})
    assert said["paths"] == f"{tmp_path}/run/answers/*.jsonl"
    assert "3 answers: " in done.stderr
    assert {row["question_id"] for row in written(tmp_path / "run")} == {"0", "1", "2"}
    assert all(row["model"] == "scripted" for row in written(tmp_path / "run"))
    assert config.load(tmp_path / "run" / "config.yaml").config.protocols == ["answer"]

"""`trustjudge init`: a configuration that runs as it is, from nothing but the user's files."""

import json
import re
from pathlib import Path

import pytest
import yaml
from called import trustjudge
from corpora import rows, write_corpus
from shared_inputs import shared

from trustjudge_ray import config, initial_config
from trustjudge_ray.training.preference_filters import refuse_bad_filters


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, given: list[dict]) -> str:
    write_corpus(Path(name), given)
    return name


def init(*args: object) -> dict:
    """What init prints, as YAML reads it, once the real loader took it and the corpus could be read by it."""
    done = trustjudge("init", *args)
    assert done.returncode == 0, done.stderr
    with open("made.yaml", "w", encoding="utf-8") as file:
        file.write(done.stdout)
    config.load("made.yaml")
    found = trustjudge("validate", "made.yaml", "--json")
    assert found.returncode == 0, found.stderr
    return yaml.safe_load(done.stdout) | {"text": done.stdout, "said": done.stderr} | json.loads(found.stdout)


def refused(*args: object) -> str:
    done = trustjudge("init", *args)
    assert done.stdout == ""
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    return done.stderr


def own_names(questions: int = 4, models: tuple[str, ...] = ("m1", "m2")) -> list[dict]:
    return [
        {"id": q, "prompt": f"Why {q}?", "output": f"{model}: because {q}", "generator": model, "rating": 3, "ms": 17}
        for q in range(questions)
        for model in models
    ]


def test_the_fields_of_ones_own_names_are_found_and_the_counts_are_those_of_the_file():
    made = init(write("a.jsonl", own_names()))
    wanted = {"question_id": "id", "question": "prompt", "response": "output", "model": "generator"}
    assert made["corpus"]["fields"] == wanted | {"human_score": "rating"}
    assert (made["rows"], made["quarantined"]) == (8, 0)
    assert "4 questions, 8 answers of 2 models (m1, m2). 8 answers have people's score" in made["text"]
    assert "not shown to judges: ms." in made["text"]
    assert "human_score: rating # taken for people's score; if a machine gave it" in " ".join(made["text"].split())
    assert (made["out"], made["judge"]["model"]) == ("runs/a", "embedded")
    assert made["protocols"] == ["score-5", "compare"]
    assert "here 16 judgments" in made["text"]


def test_the_judgments_it_announces_are_those_of_the_plan():
    made = init(write("a.jsonl", own_names(3, tuple("abcdefgh"))))
    assert made["plan"] == {"design": "blocks", "block": 5}
    planned = json.loads(trustjudge("plan", "made.yaml", "judge.engine=scripted", "--json").stdout)["judgments"]
    assert f"here {planned} judgments" in made["text"]


def test_names_that_are_ours_need_no_map():
    made = init(write("a.jsonl", rows(3, ["m1", "m2"])))
    assert "fields" not in made["corpus"]
    assert "Under our own names: question_id, category, question, model, response, human_score." in made["text"]


def test_an_id_of_each_row_is_not_taken_for_the_question():
    """Every answer would be a question of its own, and nothing would be compared."""
    given = [row | {"id": i} for i, row in enumerate(own_names())]
    made = init(write("a.jsonl", given))
    assert made["corpus"]["fields"]["question_id"] == "prompt"
    assert "'id' is another one in each row" in made["text"]
    assert "4 questions" in made["text"]


def test_an_id_that_begins_anew_for_other_questions_is_not_taken():
    given = own_names() + [row | {"prompt": f"other {row['prompt']}", "output": "x"} for row in own_names()]
    made = init(write("a.jsonl", given))
    assert made["corpus"]["fields"]["question_id"] == "prompt"
    assert (made["rows"], made["quarantined"]) == (16, 0)


def test_several_answers_of_a_model_are_told_apart_by_what_numbers_them():
    given = [row | {"sample": s, "output": f"{row['output']} {s}"} for row in own_names() for s in range(2)]
    given = [row | {"uid": f"u{i}"} for i, row in enumerate(given)]
    made = init(write("a.jsonl", given))
    assert made["corpus"]["fields"]["response_id"] == "uid", "both models have a sample 0"
    assert (made["rows"], made["quarantined"]) == (16, 0)


def test_answers_that_cannot_be_told_apart_are_said_before_a_judge_is_paid_for():
    given = [row | {"output": f"{row['output']} {s}"} for row in own_names() for s in range(2)]
    made = init(write("a.jsonl", [*given, {"id": 99, "prompt": "one", "output": "x", "generator": "m"}]))
    assert "8 rows have the question and the model of another row" in made["said"]
    assert "LOOK AT THIS" in made["text"]
    assert made["quarantined"] == 16


def test_an_instruction_with_an_input_shows_both_to_the_judge():
    """The instruction alone is another question."""
    given = [
        {"instruction": "Translate.", "input": f"word {q}", "output": f"mot {q}", "model": m, "qid": q}
        for q in range(3)
        for m in "ab"
    ]
    made = init(write("a.jsonl", given))
    asked = {"context": "input", "question": "instruction"}
    assert made["corpus"]["fields"] == asked | {"question_id": "qid", "response": "output"}
    assert made["protocols"] == ["score-5-conversation", "compare-conversation"]


def test_a_conversation_gets_protocols_that_show_it():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    given = [{"qid": q, "messages": turns, "reply": f"{m} {q}", "model": m} for q in range(2) for m in "ab"]
    made = init(write("a.jsonl", given))
    assert made["protocols"] == ["score-5-conversation", "compare-conversation"]


@pytest.mark.parametrize(("referred", "protocol"), [(4, "score-5-reference"), (3, "score-5"), (0, "score-5")])
def test_a_reference_protocol_is_for_corpora_with_a_reference_for_each_question(referred, protocol):
    """Where one is missing the answer would not be judged."""
    given = [row | ({"gold": "because"} if row["id"] < referred else {}) for row in own_names()]
    made = init(write("a.jsonl", given))
    assert made["protocols"] == [protocol, "compare"]


def test_one_answer_to_each_question_is_scored_and_not_compared():
    made = init(write("gpt.v2.jsonl", [{"id": 1, "q": "a", "a": "b"}, {"id": 2, "q": "c", "a": "d"}]))
    assert made["corpus"]["fields"]["model"] == "={file}"
    assert "2 answers of 1 model (gpt.v2)" in made["text"]
    assert made["protocols"] == ["score-5"]
    assert "plan" not in made


def test_many_models_get_the_design_that_ranks_them_cheaply():
    made = init(write("a.jsonl", own_names(2, tuple(f"m{i}" for i in range(20)))))
    assert made["plan"] == {"design": "matching", "rounds": 4}


def test_files_that_name_no_model_are_each_ones_own():
    """One model for both would make each answer a copy of another one's key."""
    for name in ("gpt-4", "gpt-4.1"):
        write(f"{name}.jsonl", [{"id": q, "prompt": f"x{q}", "output": f"{name}{q}"} for q in range(2)])
    made = init("gpt-4.jsonl", "gpt-4.1.jsonl")
    assert made["corpus"]["fields"]["model"] == "={file}"
    assert "2 questions, 4 answers of 2 models (gpt-4, gpt-4.1)" in made["text"]
    assert (made["rows"], made["quarantined"], made["protocols"]) == (4, 0, ["score-5", "compare"])
    assert made["said"] == ""
    assert init("gpt-4.jsonl", "gpt-4.1.jsonl", "--field", "model==m", "--field", "response_id=output")["rows"] == 4


def test_parts_of_one_models_answers_are_not_taken_for_models_without_a_word():
    """Nothing would be compared, and the report would rank the parts."""
    for part in range(2):
        write(f"part-{part}.jsonl", [{"id": part, "prompt": f"x{part}", "output": "y"}])
    said = init("part-0.jsonl", "part-1.jsonl")["said"]
    assert "no question is in two of them" in said
    assert init("part-0.jsonl", "part-1.jsonl", "--field", "model==m")["said"] == ""


def test_two_files_of_one_name_are_said_to_be_of_one_model(here):
    for folder in "ab":
        (here / folder).mkdir()
        given = [{"id": q, "prompt": f"x{q}", "output": f"{folder}{q}"} for q in range(2)]
        write(f"{folder}/m.jsonl", given[: 1 + (folder == "a")])
    made = init("a/m.jsonl", "b/m.jsonl")
    assert "a/m.jsonl and b/m.jsonl have one name, so their answers count as one model's: m" in made["said"]
    assert "1 rows have the question and the model of another row" in made["said"]
    assert (made["rows"], made["quarantined"]) == (1, 2)


def test_row_ids_of_one_models_samples_are_not_taken_for_questions():
    """Three answers to a question would be questions of their own."""
    given = [{"id": 3 * q + n, "prompt": f"why {q}?", "output": f"{n}"} for q in range(4) for n in range(3)]
    made = init(write("m.jsonl", given))
    assert made["corpus"]["fields"]["question_id"] == "prompt"
    assert made["corpus"]["fields"]["response_id"] == "id"
    assert (made["rows"], made["quarantined"], made["protocols"]) == (12, 0, ["score-5", "compare"])


def test_two_fields_that_may_both_be_the_answer_are_asked_about():
    given = [row | {"completion": "other"} for row in own_names()]
    file = write("a.jsonl", given)
    said = refused(file)
    assert "--field response=completion or --field response=output" in said
    assert init(file, "--field", "response=completion")["corpus"]["fields"]["response"] == "completion"


def test_no_answer_names_the_fields_there_are_and_the_way_for_questions():
    file = write("a.jsonl", [{"qid": 1, "prompt": "x", "score": 2}])
    said = refused(file)
    assert "['qid', 'prompt', 'score']" in said
    assert "--format questions" in said
    made = init(file, "--format", "questions")
    assert (made["protocols"], made["corpus"]["format"]) == (["answer"], "questions")
    assert made["corpus"]["fields"] == {"question_id": "qid", "question": "prompt"}
    assert "trustjudge answer my.yaml" in made["text"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("badutf8", {"question_id": "id", "response": "r", "model": "={file}"}),
        ("bom", {"question_id": "id", "response": "r", "model": "={file}"}),
        ("latefield", {"question_id": "id", "response": "r", "model": "={file}"}),
        ("mixedid", {"model": "={file}"}),
        ("surr", {"model": "={file}"}),
        ("trunc", {"question_id": "id", "response": "r", "model": "={file}"}),
        ("u2028", {"model": "={file}"}),
        ("arena_hard_answer", {"model": "={file}"}),
    ],
)
def test_a_messy_file_gives_a_configuration_that_reads_what_can_be_read(name, fields):
    made = init(shared(f"inputs/files/{name}.jsonl"))
    assert made["corpus"]["fields"] == fields
    assert made["rows"] > 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("inputs/files/empty.jsonl", "it is empty"),
        ("inputs/files/dupkey.jsonl", "line 1: duplicate_key"),
        ("inputs/files/nan.jsonl", "no field looks like the response; the rows have ['id', 'score']"),
        ("inputs/files/two_files", "no field looks like the response"),
        ("inputs/files/nowhere.jsonl", "no corpus file there"),
    ],
)
def test_a_file_that_cannot_be_judged_is_one_clear_message(name, says):
    path = shared("inputs/files").parent.parent / name
    assert says in refused(path)


def test_a_known_format_is_recognised_and_says_by_what():
    turns = {"choices": [{"index": 0, "turns": ["yes"]}]}
    answers = [{"question_id": 1, "answer_id": m, "model_id": m, "tstamp": 1.0} | turns for m in "ab"]
    write("question.jsonl", [{"question_id": 1, "category": "c", "turns": ["why?"]}])
    write("answers.jsonl", answers)
    made = init("question.jsonl", "answers.jsonl")
    assert made["corpus"]["format"] == "fastchat"
    assert "answers.jsonl: answers (by question_id, model_id, choices)" in made["text"]
    assert made["rows"] == 2


def test_pairs_are_to_be_labelled_and_not_every_one_of_them_kept():
    made = init(write("pairs.jsonl", [{"prompt": f"Why {q}?", "chosen": "So.", "rejected": "No."} for q in range(3)]))
    assert made["preferences"]["filters"]["both_orders_agree"] is True
    refuse_bad_filters(made["preferences"]["filters"])
    steps = [line.split()[2] for line in made["text"].splitlines() if line.startswith("#   trustjudge")]
    assert steps == ["validate", "plan", "preferences", "export", "run"]


def test_whatever_a_corpus_writes_the_configuration_says_only_what_it_should():
    """A name with a line break in it would end a comment, `${…}` would be looked up, `#` cut off."""
    nasty = 'a: b # "${oc.env:HOME}"\nout: elsewhere\u2028\x1b[2J\U0001f600'
    given = [
        {
            nasty: row["output"],
            "x\nout: there": 1,
            "id": row["id"],
            "category": "c\nout: there",
            "model": row["generator"],
        }
        for row in own_names()
    ]
    write("my # ${x}.jsonl", given)
    made = init("my # ${x}.jsonl", "--field", f"response={nasty}")
    assert made["out"] == "runs/my # ${x}".replace("${", "\\${")
    assert config.load("made.yaml").config.corpus.fields["response"] == nasty
    assert made["rows"] == 8
    assert "\x1b" not in made["text"]


def test_every_key_in_its_comments_can_be_uncommented():
    """What somebody is told to write must be right: each block alone, beside what is there."""
    text = init(write("a.jsonl", own_names()))["text"]
    blocks = re.findall(r"^# ([a-z_]+:.*\n(?:#   .*\n)*)", text, re.MULTILINE)
    assert {block.split(":")[0] for block in blocks} == {"analysis", "store", "cluster"}
    for block in blocks:
        config.loads(text + re.sub(r"^# ?", "", block, flags=re.MULTILINE).replace("#   ", "  "))
    judge = re.search(r"judge:\n(?:  .*\n)+", text).group()
    endpoint = [line.removeprefix("  # ") for line in judge.splitlines() if re.match(r"  # [a-z_]+: ", line)]
    assert endpoint[0].startswith("model: ")
    for lines in (endpoint[:1], endpoint[1:]):
        other = "judge:\n" + "".join(f"  {line}\n" for line in lines)
        config.loads(text.replace(judge, other))


def test_a_corpus_too_large_to_read_whole_gives_the_same_configuration(monkeypatch):
    file = write("a.jsonl", own_names())
    whole = init(file)
    monkeypatch.setattr(initial_config, "WHOLE_BYTES", 0)
    monkeypatch.setattr(initial_config, "ROWS", 6)
    part = init(file)
    assert (part["corpus"], part["protocols"], part["plan"]) == (whole["corpus"], whole["protocols"], whole["plan"])
    assert "In the first rows of its files: 3 questions, 6 answers" in part["text"]
    assert "more than 12 judgments" in part["text"]


def test_a_file_is_written_over_only_by_force(here):
    file = write("a.jsonl", own_names())
    (here / "my.yaml").write_text("mine")
    assert "is there already" in refused(file, "--out", "my.yaml")
    assert (here / "my.yaml").read_text() == "mine"
    assert trustjudge("init", file, "--out", "my.yaml", "--force").returncode == 0
    assert config.load("my.yaml").config.out == "runs/my"


def test_answers_without_their_questions_are_said_to_be_judged_alone():
    made = init(shared("inputs/odd_answers.jsonl"))
    assert made["corpus"]["format"] == "fastchat"
    assert "10 of 10 answers have no question" in made["said"]
    assert "10 of 10 answers have no question" in " ".join(made["text"].replace("#", "").split())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"id": 1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "arena-hard",
        ),
        ({"id": 1, "question": "a", "answers": ["b", "c"]}, "--field responses=answers --field prompt=question"),
        ({"id": 1, "question": "a", "responses": ["b", "c"], "model": "m"}, "=responses --field prompt=question"),
        ({"data": [{"id": 1, "prompt": "a", "output": "b"}]}, "'data' holds a list of objects"),
        ({"id": 1, "prompt": "a", "output": {"text": "b"}}, "'output' holds an object with text"),
        ({"model_a": "x", "model_b": "y", "winner": "model_a"}, "`trustjudge import battles` reads them"),
    ],
)
def test_rows_of_another_shape_are_told_how_they_are_read(row, said):
    """That no field looks like the answer is true and of no use."""
    assert said in refused(write("a.jsonl", [row]))


def test_what_a_refusal_tells_to_say_is_right():
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    file = write("a.jsonl", [{"id": 1, "talk": talk}])
    more = "--format arena-hard --field response=talk --field question_id=id --field model=={file}"
    assert init(file, *more.split())["rows"] == 1
    file = write("a.jsonl", [{"id": 1, "question": "a", "responses": ["b", "c"]}])
    more = "--format prompt-responses --field responses=responses --field prompt=question"
    assert init(file, *more.split())["rows"] == 2
    assert init(file, "--field", "response=responses")["rows"] == 1


def test_where_a_question_comes_from_is_not_taken_for_the_model():
    """Both files' answers would be one model's, and each other's duplicates."""
    for name in "ab":
        write(f"{name}.jsonl", [{"qid": q, "prompt": f"x{q}", "output": name, "source": "book"} for q in range(2)])
    made = init("a.jsonl", "b.jsonl")
    assert made["corpus"]["fields"]["model"] == "={file}"
    assert (made["rows"], made["quarantined"]) == (4, 0)
    for name in "ab":
        write(f"{name}.jsonl", [{"qid": q, "prompt": f"x{q}", "output": name, "source": name} for q in range(2)])
    assert init("a.jsonl", "b.jsonl")["corpus"]["fields"]["model"] == "source"


def test_answers_that_no_judge_is_asked_about_are_not_promised_as_judgments():
    given = own_names()
    given[0]["output"] = ""
    made = init(write("a.jsonl", given))
    assert "here at most 16 judgments" in made["text"]


def test_any_name_of_a_file_is_read_back_as_it_is():
    names = [
        "new\nline: x",
        "- x",
        "a: b #c",
        "{d}",
        "ü“”",
        "quo'te\"",
        "*",
        "null",
        "1e3",
        "@a",
        "[x]",
        "${oc.env:HOME}",
    ]
    files = [write(f"{name}.jsonl", own_names()) for name in names]
    made = init("--", *files)
    assert made["corpus"]["paths"][:-1] == files[:-1]
    assert config.load("made.yaml").config.corpus.paths == files
    assert config.load("made.yaml").config.out == "runs/new\nline: x"
    assert made["rows"] == 8


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/gpt-4.1.jsonl.gz", "gpt-4.1"), ("s3://b/x/", "x"), ("a/*.jsonl", "mine"), ("..", "mine"), (".x.json", "x")],
)
def test_a_run_is_called_as_its_corpus_is_and_never_above_its_folder(path, name):
    assert initial_config.run_name(path) == name

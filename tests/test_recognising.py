"""`corpus.format: auto`: every format told by its fields alone, and refused where they do not tell."""

import copy
import gzip
import itertools
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from corpora import protocol_files
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from shared_inputs import shared

from trustjudge_ray import answering, config, doctor, estimate, labelling_preferences, opening, runs, tally
from trustjudge_ray.cli import cli
from trustjudge_ray.config import ConfigError, with_sections
from trustjudge_ray.config_values import choices
from trustjudge_ray.corpus import formats, reader
from trustjudge_ray.corpus.formats import CorpusConfigError, CorpusError
from trustjudge_ray.corpus.recognising import NoFormatError, recognise
from trustjudge_ray.manifest import Clock, manifest_of
from trustjudge_ray.preferences_config import PreferencesConfig
from trustjudge_ray.store import RunFolder


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def parts(text):
    return [{"type": "text", "text": text, "image": None, "mimeType": None}]


PAIR = {"chosen": [user("Hm?"), assistant("Yes.")], "rejected": [user("Hm?"), assistant("No.")]}
TALK = [user("Hm?"), assistant("Yes.")]
BATTLE = {"id": 1, "model_a": "otter", "model_b": "heron"}

FILES = {
    ("flat", "responses"): {"question_id": 1, "question": "Hm?", "model": "otter", "response": "Yes."},
    ("flat", "turns"): {"question_id": "q", "messages": [user("Hm?")], "model": "otter", "response": ["Yes.", "No."]},
    ("questions", "texts"): {"question_id": 1, "question": "Hm?", "context": "A passage.", "reference": "Yes."},
    ("questions", "messages"): {"question_id": 1, "messages": [user("Hm?")]},
    ("trustjudge", "answers"): {"question_id": 1, "question": "Hm?", "answers": [{"score": 3, "text": ["Yes."]}]},
    ("trustjudge", "messages"): {"question_id": 1, "messages": [user("Hm?")], "answers": [{"text": ["Yes."]}]},
    ("trl", "explicit"): {"prompt": "Hm?", "chosen": "Yes.", "rejected": "No."},
    ("trl", "implicit"): {"chosen": "Hm? Yes.", "rejected": "Hm? No."},
    ("trl", "transcript prompt"): {"prompt": "\n\nHuman: Hm?\n\nAssistant:", "chosen": " Yes.", "rejected": " No."},
    ("hh-rlhf", "pairs"): {
        "chosen": "\n\nHuman: Hm?\n\nAssistant: Yes.",
        "rejected": "\n\nHuman: Hm?\n\nAssistant: No.",
    },
    ("trl-conversational", "explicit"): {
        "prompt": [user("Hm?")],
        "chosen": [assistant("Yes.")],
        "rejected": [assistant("No.")],
    },
    ("trl-conversational", "implicit"): PAIR,
    ("trl-conversational", "text beside"): {"prompt": "Hm?", **PAIR},
    ("ultrafeedback-binarized", "pairs"): {
        "prompt": "Hm?",
        "prompt_id": "p",
        **PAIR,
        "messages": TALK,
        "score_chosen": 8.0,
        "score_rejected": 2.0,
    },
    ("ultrafeedback", "prompts"): {
        "source": "own",
        "instruction": "Hm?",
        "models": ["otter", "heron"],
        "completions": [{"model": "otter", "response": "Yes."}, {"model": "heron", "response": "No."}],
    },
    ("prompt-responses", "prompts"): {"prompt": "Hm?", "responses": ["Yes.", "No."]},
    ("fastchat", "questions"): {"question_id": 81, "category": "writing", "turns": ["Hm?", "And now?"]},
    ("fastchat", "answers"): {
        "question_id": 81,
        "answer_id": "a",
        "model_id": "otter",
        "choices": [{"index": 0, "turns": ["Yes.", "No."]}],
        "tstamp": 1.5,
    },
    ("arena-hard", "questions of v0.1"): {"question_id": "a", "cluster": "c", "turns": [{"content": "Hm?"}]},
    ("arena-hard", "answers of v0.1"): {
        "question_id": "a",
        "answer_id": "b",
        "model_id": "otter",
        "choices": [{"index": 0, "turns": [{"content": "Yes.", "token_len": 2}]}],
    },
    ("arena-hard", "questions of v2"): {"uid": "a", "category": "hard", "subcategory": "code", "prompt": "Hm?"},
    ("arena-hard", "answers of v2"): {
        "uid": "a",
        "ans_id": "b",
        "model": "otter",
        "messages": [user("Hm?"), {"role": "assistant", "content": {"answer": "Yes."}}],
        "metadata": {"token_len": 2},
    },
    ("alpaca-eval", "outputs"): {"instruction": "Hm?", "output": "Yes.", "generator": "otter", "dataset": "own"},
    ("openai-batch", "requests"): {
        "custom_id": "r1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "otter", "messages": [user("Hm?")]},
    },
    ("openai-batch", "answers"): {
        "id": "b1",
        "custom_id": "r1",
        "response": {"status_code": 200, "body": {"model": "otter", "choices": [{"message": assistant("Yes.")}]}},
        "error": None,
    },
    ("openai-batch", "failures"): {"custom_id": "r2", "response": None, "error": {"message": "too long"}},
    ("lmarena", "55k"): {
        **BATTLE,
        "prompt": '["Hm?", "And now?"]',
        "response_a": '["Yes.", null]',
        "response_b": '["No.", ""]',
        "winner_model_a": 1,
        "winner_model_b": 0,
        "winner_tie": 0,
    },
    ("lmarena", "100k"): {
        "question_id": "q",
        "model_a": "otter",
        "model_b": "heron",
        "winner": "tie",
        "conversation_a": TALK,
        "conversation_b": TALK,
        "turn": 1,
    },
    ("lmarena", "140k"): {
        **BATTLE,
        "winner": "both_bad",
        "conversation_a": [{"role": "user", "content": parts("Hm?")}, {"role": "assistant", "content": parts("Yes.")}],
        "conversation_b": [{"role": "user", "content": parts("Hm?")}, {"role": "assistant", "content": parts("No.")}],
        "is_code": False,
    },
    ("reward-bench", "v1"): {
        "prompt": "Hm?",
        "chosen": "Yes.",
        "chosen_model": "otter",
        "rejected": "No.",
        "rejected_model": "heron",
        "subset": "own-easy",
        "id": 3,
    },
    ("reward-bench", "v2"): {
        "id": "3",
        "prompt": "Hm?",
        "chosen": ["Yes."],
        "rejected": ["No.", "Hm."],
        "num_correct": 1,
        "models": ["otter", "heron", "heron"],
        "subset": "Ties",
    },
}
"""An object of each role of each format."""


def objects_of(role, count=3):
    """Objects that differ in what they say."""
    return [json.loads(json.dumps(FILES[role]).replace("Yes.", f"Yes {i}.")) for i in range(count)]


# --- what is told ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", FILES, ids=str)
def test_each_role_of_each_format_is_told_from_all_others(role):
    found = recognise({"a.jsonl": objects_of(role)})
    assert found.format == role[0]
    assert list(found.says) == ["a.jsonl"]


def test_every_format_that_can_be_configured_can_be_recognised():
    assert {form for form, _ in FILES} == set(formats.FORMATS) == set(choices("corpus.format")) - {"auto"}


@pytest.mark.parametrize("role", FILES, ids=str)
def test_what_is_recognised_as_a_format_is_read_by_it(role):
    lines = b"".join(json.dumps(content).encode() + b"\n" for content in objects_of(role, 1))
    [(rows, bad)] = formats.parse_lines([lines], "x.jsonl", role[0], {})
    assert len(rows) + len(bad) > 0
    assert set(bad["reason"].to_pylist()) <= {"request_failed"}


def test_two_files_are_one_corpus_where_their_roles_are_of_one_format_and_only_there():
    for one, other in itertools.combinations(FILES, 2):
        samples = {"a.jsonl": objects_of(one), "b.jsonl": objects_of(other)}
        if one[0] == other[0]:
            assert recognise(samples).format == one[0]
            continue
        with pytest.raises(CorpusError, match="different formats") as error:
            recognise(samples)
        assert f"a.jsonl is {one[0]}" in str(error.value)
        assert f"b.jsonl is {other[0]}" in str(error.value)


def test_a_column_of_nulls_is_no_field_as_parquet_files_have_them():
    nulls = dict.fromkeys(FILES["alpaca-eval", "outputs"])
    assert recognise({"a": [nulls | FILES["flat", "responses"]]}).format == "flat"


@settings(max_examples=150)
@given(st.sampled_from(sorted(FILES)), st.randoms(use_true_random=False), st.integers(1, 6))
def test_order_of_rows_and_keys_and_further_fields_make_no_difference(role, rng: random.Random, count):
    plain = objects_of(role, count)
    shuffled = []
    for content in copy.deepcopy(plain):
        further = {f"x_{rng.randrange(9)}": rng.choice([1, "text", [1], {"a": None}]) for _ in range(rng.randrange(3))}
        items = list((content | further | {"nothing": None}).items())
        rng.shuffle(items)
        shuffled.append(dict(items))
    rng.shuffle(shuffled)
    assert recognise({"a": shuffled}) == recognise({"a": plain})


def test_a_broken_row_among_many_is_the_readers_to_name_and_is_told():
    rows = [*objects_of(("flat", "responses")), {"question_id": 1}]
    found = recognise({"a": rows})
    assert found.format == "flat"
    assert "3 of the first 4" in found.says["a"]


def test_a_file_without_an_object_decides_nothing_and_does_not_hide_the_others():
    found = recognise({"a": objects_of(("flat", "responses")), "empty": []})
    assert found.format == "flat"
    assert "no object" in found.says["empty"]


def test_questions_that_fit_two_formats_are_decided_by_the_answers_beside_them():
    both = [{"question_id": 81, "question": "Hm?", "turns": ["Hm?"]}]
    with pytest.raises(CorpusError, match="2 formats fit"):
        recognise({"q": both})
    assert recognise({"q": both, "a": objects_of(("fastchat", "answers"))}).format == "fastchat"


def test_mapped_fields_are_looked_for_under_the_users_names():
    rows = [{"id": 1, "r": "Yes."}]
    found = recognise({"a": rows}, {"question_id": "id", "response": "r", "model": "=unknown"})
    assert found.format == "flat"
    with pytest.raises(CorpusConfigError, match="no format has a field 'respnse'; did you mean 'response'"):
        recognise({"a": rows}, {"respnse": "r"})
    with pytest.raises(NoFormatError, match="lacks response"):
        recognise({"a": rows}, {"question_id": "id", "response": "rr", "model": "=unknown"})


def test_a_mapping_that_only_one_of_two_formats_knows_decides():
    rows = [{"question_id": 1, "question": "Hm?", "turns": ["Hm?"]}]
    assert recognise({"a": rows}, {"context": "passage"}).format == "questions"


# --- what is refused -------------------------------------------------------------------------


def refused(samples, fields=None):
    with pytest.raises(CorpusError) as error:
        recognise(samples, fields)
    return str(error.value)


def test_rows_that_two_formats_fit_are_refused_with_both_names_and_the_way_out():
    rows = [FILES["flat", "responses"] | FILES["alpaca-eval", "outputs"]]
    message = refused({"answers.jsonl": rows})
    assert "answers.jsonl: 2 formats fit" in message
    assert "flat: responses (by question_id, model, response)" in message
    assert "alpaca-eval: outputs (by instruction, output, generator)" in message
    assert "set corpus.format" in message


def test_a_pair_with_a_subset_and_no_models_may_be_reward_bench_or_not():
    rows = [{"id": 1, "subset": "own", "prompt": "Hm?", "chosen": "Yes.", "rejected": "No."}]
    message = refused({"a": rows})
    assert "trl:" in message
    assert "reward-bench:" in message


def test_free_names_are_refused_with_the_mapping_that_would_read_them():
    message = refused({"a.jsonl": [{"id": 1, "r": "a"}, {"id": 2, "r": "b"}]})
    assert "a.jsonl: no format fits; its first 2 objects have id, r" in message
    assert "nearest is flat" in message
    assert "lacks question_id, model, response" in message
    mapping = message.split("corpus.fields: {")[1].split("}")[0]
    fields = OmegaConf.to_container(OmegaConf.create("{" + mapping + "}"))
    assert recognise({"a": [{"id": 1, "r": "a"}]}, fields).format == "flat"


@pytest.mark.parametrize(
    ("content", "near", "lacks"),
    [
        ({"question_id": 1, "response": "a"}, "flat", "model"),
        ({"question_id": 1, "model_id": "m", "choices": "Yes."}, "fastchat", "choices as a list of {turns: texts}"),
        ({"instruction": "Hm?", "output": "Yes."}, "alpaca-eval", "generator"),
        ({"custom_id": "a", "method": "POST"}, "openai-batch", "body"),
        (BATTLE | {"prompt": "[]", "response_a": "[]"}, "lmarena", "response_b"),
        ({"prompt": "Hm?", "chosen": "Yes."}, "trl", "rejected"),
    ],
)
def test_the_nearest_format_is_named_with_what_is_missing(content, near, lacks):
    message = refused({"a": [content]})
    assert f"The nearest is {near} " in message
    assert f"lacks {lacks}" in message


@pytest.mark.parametrize(
    ("content", "importer"),
    [
        ({"model_a": "m", "model_b": "n", "winner": "tie"}, "battles"),
        ({"instruction": "Hm?", "output_1": "a", "output_2": "b", "preference": 1.0}, "alpaca-eval"),
        ({"question_id": 1, "model_1": "m", "model_2": "n", "g1_winner": "tie"}, "fastchat"),
        ({"question_id": 1, "model": "m", "judge": ["j", "single"], "user_prompt": "…", "judgment": "…"}, "fastchat"),
        ({"uid": "a", "model": "m", "judge": "j", "games": [{"score": "A>B"}]}, "arena-hard"),
    ],
)
def test_judgments_of_other_systems_are_sent_to_their_importer(content, importer):
    assert f"trustjudge import {importer}" in refused({"a": [content]})


def test_a_folder_of_nothing_readable_names_a_file():
    assert "x.jsonl: no object" in refused({"x.jsonl": []})


known_names = sorted({name for content in FILES.values() for name in content})
any_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "turns"]), inner),
    max_leaves=6,
)


@settings(max_examples=100)
@given(st.lists(st.dictionaries(st.sampled_from(known_names), any_value, max_size=6), max_size=4))
def test_whatever_the_objects_hold_the_answer_is_a_format_or_one_refusal(objects):
    try:
        told = recognise({"a": objects}).format
    except CorpusError as error:
        told = str(error)
    assert told in formats.FORMATS or told.startswith("corpus.format: auto: a")


# --- files and configurations ----------------------------------------------------------------


def configured(paths, **corpus):
    return config.loads(json.dumps({"out": "unused", "corpus": {"paths": paths, "format": "auto"} | corpus}))


def resolved(paths, **corpus):
    said = []
    return opening.resolved(configured(paths, **corpus), said.append), said


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["odd_answers.jsonl", "dup_answers.jsonl"])
def test_the_odd_answers_are_fastchat_answers(name):
    found, said = resolved([str(shared(f"inputs/{name}"))])
    assert found.config.corpus.format == "fastchat"
    assert "answers (by question_id, model_id, choices)" in said[1]


def test_an_arena_hard_answer_whose_content_is_an_object_is_recognised():
    found, _ = resolved([str(shared("inputs/files/arena_hard_answer.jsonl"))])
    assert found.config.corpus.format == "arena-hard"


@pytest.mark.parametrize("name", ["badutf8", "bom", "latefield", "mixedid", "nan", "surr", "trunc", "u2028"])
def test_files_of_the_users_own_names_are_refused_and_the_message_has_the_mapping(name):
    with pytest.raises(NoFormatError, match=r"The nearest is flat .*corpus\.fields: \{.*model: \"=unknown\""):
        resolved([str(shared(f"inputs/files/{name}.jsonl"))])


def test_any_container_is_looked_into(tmp_path):
    rows = objects_of(("flat", "responses"))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    cells = "\n".join(",".join(str(value) for value in row.values()) for row in rows)
    (tmp_path / "d.csv").write_text(",".join(rows[0]) + "\n" + cells + "\n")
    found, said = resolved([str(tmp_path)])
    assert found.config.corpus.format == "flat"
    assert "4 files" in said[0]
    assert found.recognised["files"] == len(found.recognised["by"]) == 4


def test_the_resolved_configuration_is_that_which_names_the_format(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", objects_of(("hh-rlhf", "pairs")))
    found, _ = resolved([path], fields={"human_chosen": "=1", "human_rejected": "=0"})
    named = config.loads(configured([path], fields=dict(found.config.corpus.fields), format="hh-rlhf").unresolved_yaml)
    assert found.config == named.config
    assert config.loads(found.unresolved_yaml).config == named.config


def test_a_configuration_that_names_its_format_is_not_looked_at(tmp_path):
    given = configured([str(tmp_path / "missing.jsonl")], format="flat")
    assert opening.resolved(given, pytest.fail) is given


def test_references_to_the_environment_stay_unresolved_in_the_text(tmp_path, monkeypatch):
    monkeypatch.setenv("CORPUS_HERE", str(tmp_path))
    write_lines(tmp_path / "a.jsonl", objects_of(("flat", "responses")))
    found, _ = resolved(["${oc.env:CORPUS_HERE}/a.jsonl"])
    assert "${oc.env:CORPUS_HERE}" in found.unresolved_yaml
    assert str(tmp_path) not in found.unresolved_yaml


def test_of_very_many_files_some_are_looked_into_and_how_many_is_said(tmp_path):
    for i in range(70):
        write_lines(tmp_path / f"{i:03d}.jsonl", objects_of(("flat", "responses"), 1))
    found, said = resolved([str(tmp_path)])
    assert "64 of 70 files" in said[0]
    assert "and 61 more" in said[1]
    looked = sorted(found.recognised["by"])
    assert (len(looked), looked[0][-9:], looked[-1][-9:]) == (64, "000.jsonl", "069.jsonl")


@given(st.integers(1, 1000))
def test_the_files_to_look_into_are_different_ones_from_first_to_last(count):
    files = [f"{i:04d}" for i in range(count)]
    some = opening.spread(files)
    assert len(some) == len(set(some)) == min(count, opening.FILES)
    assert some == sorted(some)
    assert (some[0], some[-1]) == (files[0], files[-1])


def test_a_beginning_is_read_however_long_the_file_or_its_lines_are(tmp_path):
    rows = objects_of(("flat", "responses"))
    long = json.dumps({"question_id": 2, "model": "m", "response": "x" * 6_000_000})
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + long + "\n")
    assert reader.first_objects(str(path), 20) == rows
    assert reader.first_objects(str(path), 2) == rows[:2]


def test_a_run_folder_that_was_read_as_another_format_is_not_read_anew_unasked(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", objects_of(("flat", "responses")))
    found, _ = resolved([path])
    folder = RunFolder(str(tmp_path / "run"))
    opening.refuse_another_format(found, folder)
    folder.write_bytes("config.yaml", found.unresolved_yaml.encode())
    opening.refuse_another_format(found, folder)
    write_lines(tmp_path / "a.jsonl", objects_of(("alpaca-eval", "outputs")))
    changed, _ = resolved([path])
    with pytest.raises(ConfigError, match="are alpaca-eval now.*read its corpus as flat"):
        opening.refuse_another_format(changed, folder)
    opening.refuse_another_format(configured([path], format="alpaca-eval"), folder)


def test_a_run_folder_of_a_configuration_without_a_format_was_read_as_flat(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", objects_of(("alpaca-eval", "outputs")))
    found, _ = resolved([path])
    folder = RunFolder(str(tmp_path / "run"))
    folder.write_bytes("config.yaml", b"corpus: {paths: [a.jsonl]}\n")
    with pytest.raises(ConfigError, match="as flat"):
        opening.refuse_another_format(found, folder)
    folder.write_bytes("config.yaml", b"analysis: {}\n")
    opening.refuse_another_format(found, folder)


def scripted(tmp_path, role, **more):
    """A configuration of a corpus of one role, judged by nobody yet."""
    path = write_lines(tmp_path / "a.jsonl", objects_of(role))
    out = str(tmp_path / "run")
    text = {"out": out, "corpus": {"paths": [path], "format": "auto"}, "judge": {"engine": "scripted"}} | more
    return config.loads(json.dumps(text))


def test_a_run_refuses_before_it_begins_and_has_said_what_it_recognised(tmp_path):
    given = scripted(tmp_path, ("alpaca-eval", "outputs"))
    RunFolder(given.config.out).write_bytes("config.yaml", b"corpus: {paths: [a.jsonl], format: flat}\n")
    for start in (runs.run, runs.judge):
        said = []
        with pytest.raises(ConfigError, match="are alpaca-eval now"):
            start(given, lambda what, _, said=said: said.append(what))
        assert said[0] == "corpus.format: auto: alpaca-eval, by the first objects of 1 file"


def test_questions_that_were_recognised_are_not_judged_either(tmp_path):
    with pytest.raises(ConfigError, match="questions have no answers"):
        runs.judge(scripted(tmp_path, ("questions", "texts")), lambda *_: None)


def test_a_plan_of_a_recognised_corpus_is_that_of_a_named_one(tmp_path):
    given = scripted(tmp_path, ("trl", "explicit"))
    named = config.loads(given.unresolved_yaml, overrides=["corpus.format=trl"])
    found = [estimate.estimate(loaded, tmp_path / str(i)) for i, loaded in enumerate((given, named))]
    assert found[0] == found[1]
    assert found[0]["responses"] > 0


def test_the_doctor_names_the_format_or_why_it_cannot_be_told(tmp_path):
    findings = {f.check: f for f in doctor.examine(scripted(tmp_path, ("trl", "explicit")), load=False)}
    assert findings["corpus format"].says.startswith("corpus.format: auto: trl")
    assert findings["corpus rows"].status == "passed"
    given = scripted(tmp_path, ("trl", "explicit"))
    write_lines(tmp_path / "a.jsonl", [{"id": 1, "r": "a"}])
    findings = {f.check: f for f in doctor.examine(given, load=False)}
    assert findings["corpus format"].status == "FAILED"
    assert "corpus rows" not in findings


def test_the_manifest_tells_by_what_the_format_was_recognised(tmp_path):
    found = opening.resolved(scripted(tmp_path, ("flat", "responses")), lambda _: None)
    clock = Clock()
    clock.lap("judge")
    written = manifest_of(found, {}, [], [], [], tally.total([]), {}, clock)["corpus"]["recognised"]
    assert written == {"files": 1, "by": {str(tmp_path / "a.jsonl"): "responses (by question_id, model, response)"}}
    assert with_sections(found, protocols=["score-5"]).recognised == written


def called(*arguments):
    return CliRunner().invoke(cli, list(arguments))


def test_the_command_says_what_was_recognised_beside_its_result(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", objects_of(("flat", "responses"), 1))
    (tmp_path / "c.yaml").write_text(json.dumps({"corpus": {"paths": [path], "format": "auto"}}))
    done = called("validate", str(tmp_path / "c.yaml"), "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 1
    assert len(done.stdout.splitlines()) == 1
    assert "corpus.format: auto: flat" in done.stderr
    assert path in done.stderr


def test_validate_tells_rows_without_a_question_from_rows_that_cannot_be_used(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [*objects_of(("fastchat", "answers"), 1), {"question_id": 1}])
    (tmp_path / "c.yaml").write_text(json.dumps({"corpus": {"paths": [path], "format": "fastchat"}}))
    said = called("validate", str(tmp_path / "c.yaml")).stdout
    assert "1 rows can be judged, 1 cannot be used" in said
    assert "NOTE: 1 response has no question" in said


def test_a_corpus_that_nobody_can_tell_is_refused_before_it_is_read(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"id": 1, "r": "a"}])
    (tmp_path / "c.yaml").write_text(json.dumps({"corpus": {"paths": [path], "format": "auto"}}))
    for command in ("validate", "plan"):
        done = called(command, str(tmp_path / "c.yaml"))
        assert isinstance(done.exception, CorpusError)
        assert "The nearest is flat" in str(done.exception)


# --- on a real Ray ---------------------------------------------------------------------------


def benchmark(folder):
    """MT-Bench's folder with four questions of two turns, two models, references, and what else lies there."""
    (folder / "model_answer").mkdir(parents=True)
    (folder / "reference_answer").mkdir()
    (folder / "README.md").write_text("# no corpus\n")
    numbers = range(81, 85)
    write_lines(folder / "question.jsonl", [{"question_id": n, "turns": [f"What is {n}?", "Why?"]} for n in numbers])
    for place, models in (("model_answer", ("otter", "heron")), ("reference_answer", ("people",))):
        for model in models:
            rows = [(n, [{"index": 0, "turns": [f"{model} says {n}.", f"{model} knows."]}]) for n in numbers]
            written = [{"question_id": str(n), "model_id": model, "choices": choices} for n, choices in rows]
            write_lines(folder / place / f"{model}.jsonl", written)
    return str(folder)


@pytest.mark.heavy
@pytest.mark.ray
def test_a_recognised_corpus_is_judged_once_also_where_its_format_is_named_later(tmp_path, local_ray):
    text = {
        "out": str(tmp_path / "run"),
        "corpus": {"paths": [benchmark(tmp_path / "bench")], "format": "auto"},
        "judge": {"engine": "scripted"},
        "protocols": protocol_files(tmp_path),
    }
    given, said = config.loads(json.dumps(text)), []
    first = runs.judge(given, lambda what, _: said.append(what))
    assert (first.tasks, first.now, first.statuses) == (4 * 2 + 4 * 2, 16, {"ok": 16})
    assert said[0].startswith("corpus.format: auto: fastchat, by the first objects of 4 files")
    assert not any("no question" in line for line in said)
    folder = runs.folder_of(given)
    assert set(folder.responses()["reference"]) == {
        f"[Turn 1]\npeople says {n}.\n\n[Turn 2]\npeople knows." for n in range(81, 85)
    }
    assert OmegaConf.create(folder.read_bytes("config.yaml").decode()).corpus.format == "fastchat"
    again = runs.judge(given, lambda *_: None)
    assert (again.now, again.reused) == (0, 16)
    text["corpus"]["format"] = "fastchat"
    named = runs.judge(config.loads(json.dumps(text)), lambda *_: None)
    assert (named.now, named.reused) == (0, 16)


@pytest.mark.ray
def test_answers_alone_are_judged_and_everybody_is_told_that_nothing_was_asked(tmp_path, local_ray):
    given = scripted(tmp_path, ("fastchat", "answers"), protocols=protocol_files(tmp_path)[:1])
    said, models = [], ("otter", "heron")
    write_lines(tmp_path / "a.jsonl", [FILES["fastchat", "answers"] | {"model_id": model} for model in models])
    runs.judge(given, lambda what, _: said.append(what))
    note = "2 responses have no question"
    assert any(note in line for line in said)
    folder = runs.folder_of(given)
    assert note in runs.evaluate(folder, given.config.analysis).warnings[0]
    assert runs.validate(given, tmp_path / "scratch")["unasked"] == 2


@pytest.mark.heavy
@pytest.mark.ray
def test_pairs_and_questions_are_recognised_where_they_are_labelled_and_answered(tmp_path, local_ray):
    pairs = [{"prompt": f"What is {n}?", "chosen": f"{n}.", "rejected": f"{n}?"} for n in range(3)]
    path = write_lines(tmp_path / "pairs.jsonl", pairs)
    text = {"out": str(tmp_path / "pairs"), "corpus": {"paths": [path], "format": "auto"}}
    text |= {"judge": {"engine": "scripted"}, "protocols": protocol_files(tmp_path)[1:]}
    labelled = labelling_preferences.label(config.loads(json.dumps(text)), PreferencesConfig(), lambda *_: None)
    assert labelled.card["counts"]["rows"] == 3
    asked = [{"question_id": n, "question": f"What is {n}?"} for n in range(3)]
    text = {"out": str(tmp_path / "asked"), "judge": {"engine": "scripted"}}
    text |= {"corpus": {"paths": [write_lines(tmp_path / "asked.jsonl", asked)], "format": "auto"}}
    assert answering.answer(config.loads(json.dumps(text)), lambda *_: None).answers == 3

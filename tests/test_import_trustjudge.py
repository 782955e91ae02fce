"""The reference program's own files, built here from the oracle's inputs and from its hard cases."""

import io
import json
import math
import tracemalloc

import pytest
from shared_inputs import shared

from trustjudge_ray.corpus.json_stream import Broken, Element, End, walk
from trustjudge_ray.imports import ImportFileError, oracle, trustjudge
from trustjudge_ray.imports.extraction import Unreadable, clean, merged, verdict_position
from trustjudge_ray.imports.reading import read_judgment

LABELS = {
    "single_5": [str(i) for i in range(1, 6)],
    "single_100": [str(i) for i in range(1, 101)],
    "pairwise": list("ABC"),
}
CASES = [json.loads(line) for line in shared("oracle/extraction/cases.jsonl").read_text("utf-8").splitlines()]
SINGLE, PAIRS = "judge-x_single_answer_grade_5_points.jsonl", "judge-x_pairwise_comparison.jsonl"


def rows_of(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def stored(positions, cumulative_logprob=-1.0, count=None):
    """One judgment as the program stores it; `positions` are dictionaries token → probability, sampled first."""
    originals = [
        {
            str(100 * t + i): {"logprob": math.log(p) if p > 0 else -math.inf, "rank": i + 1, "decoded_token": token}
            for i, (token, p) in enumerate(position.items())
        }
        for t, position in enumerate(positions)
    ]
    filler = {"7": {"logprob": -0.1, "rank": 1, "decoded_token": "so"}}
    count = len(positions) if count is None else count
    front = [filler] * max(count - len(positions), 0)
    if count < len(positions):  # the program itself only ever counts them
        originals = [filler] * count
    return {
        "prompt": "p",
        "prompt_token_ids": [1, 2, 3],
        "cumulative_logprob": cumulative_logprob,
        "output_text": "Fine. Score: [4]",
        "output_token_ids": [int(next(iter(o), "0")) for o in [*front, *originals]],
        "original_output_logprobs": [*front, *originals],
        "output_logprobs": [],
        "output_probs": [{"so": 0.9}] * len(front) + positions,
    }


def spelled(row):
    """The oracle's reading as a whole output: prose, `[`, the verdict, `]`."""
    if row["status"] == "missing":
        return None
    if row["status"] == "unparseable":
        return stored([{"no": 0.5}, {"verdict": 0.5}], row.get("cumulative_logprob"), row.get("token_count"))
    verdict = {row["sampled"]: row["probs"][row["sampled"]]} | row["probs"]
    positions = [{" [": 0.9, "(": 0.1}, verdict, {"]\n": 0.9, ".": 0.1}]
    return stored(positions, row.get("cumulative_logprob", -1.0), row.get("token_count") or None)


def reference_files(suite):
    """The files that the program would have written for a suite."""
    folder = shared(f"oracle/{suite}")
    heads, files = {}, {}
    for question in rows_of(folder / "questions.jsonl"):
        empty = set(question["empty_responses"])
        answers = ["" if i in empty else f"answer {i}" for i in range(question["n_responses"])]
        heads[question["question_id"]] = {
            "question_id": question["question_id"],
            "question": "Why?",
            "candidate_answers": [{"global_index": i, "local_index": 0, "text": t} for i, t in enumerate(answers)],
        }
    files["questions.jsonl"] = [
        {"question_id": q["question_id"], "category": q["category"], "question": "Why?", "answers": []}
        for q in rows_of(folder / "questions.jsonl")
    ]
    for scale in (5, 100):
        records = {q: head | {"judgements": []} for q, head in heads.items()}
        for row in rows_of(folder / "single.jsonl"):
            if row["scale"] == scale:
                element = {"candidate_global_index": row["response_id"], "judgement": spelled(row)}
                records[row["question_id"]]["judgements"].append(element)
        files[f"oracle_single_answer_grade_{scale}_points.jsonl"] = list(records.values())
    records = {q: head | {"judgements": []} for q, head in heads.items()}
    pairs = {}
    for row in rows_of(folder / "pairwise.jsonl"):
        key = (row["question_id"], row["i"], row["j"])
        pairs.setdefault(key, {})[f"judgement_order{row['order']}"] = spelled(row)
    for (question, i, j), both in pairs.items():
        element = {"candidate_global_index1": i, "candidate_global_index2": j, **both}
        records[question]["judgements"].append(element)
    files["oracle_pairwise_comparison.jsonl"] = list(records.values())
    return files


def streams(files):
    return {
        name: io.BytesIO("".join(json.dumps(record) + "\n" for record in records).encode())
        for name, records in files.items()
    }


def read_all(imported):
    return [row for table in imported.judgments for row in table.to_pylist()]


def record(judgments, answers=("x", "y"), question_id=1):
    candidates = [{"global_index": i, "local_index": 0, "text": text} for i, text in enumerate(answers)]
    return {"question_id": question_id, "question": "Q", "candidate_answers": candidates, "judgements": judgments}


def single(judgment, index=0):
    return {"candidate_global_index": index, "judgement": judgment}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['case']}-{case['tag']}")
def test_the_verdict_is_found_where_it_should_be(case):
    want = case["disputed"]["recommended"] if "disputed" in case else case["expected"]
    tokens = case["tokens"] or []
    try:
        at = verdict_position([position[0][0] if position else None for position in tokens], LABELS[case["kind"]])
    except Unreadable:
        assert want is None
        return
    assert clean(tokens[at][0][0]) == want["sampled"]
    assert merged(map(tuple, tokens[at])) == pytest.approx(want["probs"], abs=1e-12)


def test_a_quoted_label_does_not_stand_in_for_a_verdict_that_was_split_into_digits():
    with pytest.raises(Unreadable, match=r"\[85\] is not one token"):
        verdict_position(["not", "[", "4", "]", "but", "[", "8", "5", "]"], LABELS["single_100"])


def test_a_remark_in_brackets_after_the_verdict_does_not_hide_it():
    assert verdict_position(["[", "4", "]", "see", "[", "the", "note", "]"], LABELS["single_5"]) == 1


@pytest.mark.parametrize("suite", ["tiny", "weak", "edge_scores", "edge_ties"])
def test_files_of_the_program_give_the_same_judgments_as_the_neutral_form(suite):
    names = oracle.FILES
    neutral = read_all(oracle.read({name: shared(f"oracle/{suite}/{name}").open("rb") for name in names}))
    imported = trustjudge.read(streams(reference_files(suite)))
    found = {row["task_id"]: row for row in read_all(imported)}
    dropped = 0
    for want in neutral:
        got = found[want["task_id"]]
        if want["status"] == "ok" and want["emitted"] is None:  # sampled `3.0`: no verdict in the text
            assert got["status"] == "unparseable"
            dropped += 1
            continue
        same = ("status", "emitted", "category", "order", "response_a", "response_b")
        assert {name: got[name] for name in same} == {name: want[name] for name in same}
        if want["status"] == "ok":
            assert got["label_logprobs"] == pytest.approx(want["label_logprobs"], abs=1e-12, nan_ok=True)
        if want["status"] == "ok" and want["kind"] == "compare":
            assert (got["cumulative_logprob"], got["output_tokens"]) == (
                want["cumulative_logprob"],
                want["output_tokens"],
            )
    assert len(found) == len(neutral)
    assert dropped == (2 if suite == "edge_scores" else 0)
    assert imported.quarantine.num_rows == 0
    assert set(imported.protocols) == {"score-5", "score-100", "compare"}


def test_two_token_ids_with_one_text_are_added_up():
    judgment = stored([{"[": 1.0}, {"4": 0.25, "5": 0.5}, {"]": 1.0}])
    judgment["original_output_logprobs"][1]["999"] = {"logprob": math.log(0.125), "rank": 3, "decoded_token": "4"}
    assert read_judgment(judgment, LABELS["single_5"]).probs == pytest.approx({"4": 0.375, "5": 0.5})


def test_an_openai_judge_said_what_it_sampled_not_what_was_most_probable():
    def position(token, p, *others):
        top = [{"token": t, "logprob": math.log(q)} for t, q in others]
        return {"token": token, "logprob": math.log(p), "top_logprobs": top}

    judgment = {
        "output_probs": [{"[": 1.0}, {"5": 0.6, "4": 0.3}, {"]": 1.0}],
        "original_output_logprobs": [
            position("[", 1.0, ("[", 1.0)),
            position("2", 0.05, ("5", 0.6), ("4", 0.3)),
            position("]", 1.0, ("]", 1.0)),
        ],
        "output_token_ids": None,
    }
    reading = read_judgment(judgment, LABELS["single_5"])
    assert reading.sampled == "2"
    assert reading.probs == pytest.approx({"5": 0.6, "4": 0.3, "2": 0.05})


def test_lengths_that_only_stand_for_the_token_count_are_counted_and_not_read():
    judgment = stored([{"[": 1.0}, {"4": 0.25}, {"]": 1.0}]) | {"original_output_logprobs": [{}] * 50}
    reading = read_judgment(judgment, LABELS["single_5"])
    assert (reading.output_tokens, reading.probs) == (50, {"4": 0.25})


def test_a_judgment_that_gave_nothing_and_one_without_a_verdict_are_rows_with_a_reason():
    files = {SINGLE: [record([single(None), single(stored([{"good": 1.0}]), 1)])]}
    rows = read_all(trustjudge.read(streams(files)))
    assert [(row["response_a"], row["status"], row["detail"]) for row in rows] == [
        ("0", "missing", "the judge gave nothing: null in the file"),
        ("1", "unparseable", "no opening bracket was written"),
    ]
    assert {row["judge"] for row in rows} == {"judge-x"}


def test_a_scale_that_nothing_tells_is_asked_for_and_not_guessed():
    files = {"scores.jsonl": [record([single(stored([{"[": 1.0}, {"4": 1.0}, {"]": 1.0}]))])]}
    with pytest.raises(ImportFileError, match=r"scores\.jsonl: on which scale"):
        read_all(trustjudge.read(streams(files)))
    rows = read_all(trustjudge.read(streams(files), judge="me", scale=10))
    assert (rows[0]["judge"], rows[0]["protocol"], len(rows[0]["label_logprobs"])) == ("me", "score-10", 10)


@pytest.mark.parametrize("prompt", ["a single integer from [1] (poor) to [5](excellent)", "from 1 (poor) to 5 (best)"])
def test_a_scale_is_read_from_the_prompt_where_the_name_says_nothing(prompt):
    verdict = stored([{"[": 1.0}, {"4": 1.0}, {"]": 1.0}]) | {"prompt": prompt}
    assert read_all(trustjudge.read(streams({"x.jsonl": [record([single(verdict)])]})))[0]["protocol"] == "score-5"


def test_a_file_without_one_judgment_is_refused_with_the_first_problem():
    with pytest.raises(ImportFileError, match=r"no judgment found; x\.jsonl, line 1: missing_field: question 1: no"):
        read_all(trustjudge.read(streams({"x.jsonl": [record([{"verdict": "A"}])]})))


def test_files_about_different_answers_are_not_imported_as_one():
    verdict = stored([{"[": 1.0}, {"4": 1.0}, {"]": 1.0}])
    files = {
        SINGLE: [record([single(verdict)])],
        "judge-x_single_answer_grade_100_points.jsonl": [record([single(verdict)], answers=("other", "y"))],
    }
    with pytest.raises(ImportFileError, match=r"question 1, answer 0 has another text than in judge-x_single.*line 1"):
        read_all(trustjudge.read(streams(files)))


def test_a_question_written_twice_is_counted_once_and_said():
    verdict = stored([{"[": 1.0}, {"4": 1.0}, {"]": 1.0}])
    imported = trustjudge.read(
        streams({SINGLE: [record([single(verdict), single(verdict)]), record([single(verdict)])]})
    )
    assert len(read_all(imported)) == 1
    lines = [(row["line"], row["reason"]) for row in imported.quarantine.to_pylist()]
    assert lines == [(1, "duplicate_judgment"), (2, "duplicate_row")]


def test_human_scores_and_texts_come_along():
    verdict = stored([{"[": 1.0}, {"4": 1.0}, {"]": 1.0}])
    answers = [{"score": 1, "text": ["x"]}, {"score": 5, "text": ["y"]}]
    questions = [{"question_id": 1, "category": "Writing", "question": "Q", "answers": answers}]
    imported = trustjudge.read(streams({SINGLE: [record([single(verdict)])], "q.jsonl": questions}))
    assert read_all(imported)[0]["category"] == "Writing"
    rows = imported.responses.to_pylist()
    assert [(r["response_id"], r["replies"], r["human_score"]) for r in rows] == [("0", ["x"], 1.0), ("1", ["y"], 5.0)]


def test_a_line_cut_off_costs_only_what_is_missing():
    verdict = stored([{"[": 1.0}, {"4": 1.0}, {"]": 1.0}])
    lines = [json.dumps(record([single(verdict), single(verdict, 1)], question_id=q)) for q in (1, 2, 3)]
    cut = lines[1][: lines[1].rindex('"candidate_global_index"') + 30]
    imported = trustjudge.read({SINGLE: io.BytesIO("\n".join([lines[0], cut, lines[2]]).encode())})
    found = [(row["question_id"], row["response_a"]) for row in read_all(imported)]
    assert found == [("1", "0"), ("1", "1"), ("2", "0"), ("3", "0"), ("3", "1")]
    assert [(row["line"], row["reason"]) for row in imported.quarantine.to_pylist()] == [(2, "invalid_json")]


class Trickle(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a network does, so that values are cut anywhere."""

    def __init__(self, data, step):
        self.data, self.step, self.at = data, step, 0

    def read(self, size=-1):
        part = self.data[self.at : self.at + self.step]
        self.at += len(part)
        return part


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("layout", ["lines", "array", "indented"])
def test_values_cut_between_two_reads_are_read_whole(step, layout):
    records = [{"id": 12345, "a": [1.5e-3, 'é\\"]', {"x": [True, None]}, -17], "z": {"k": "v"}}, {"id": 2, "a": []}]
    text = "\n".join(map(json.dumps, records)) if layout == "lines" else json.dumps(records, ensure_ascii=False)
    if layout == "indented":
        text = json.dumps(records, indent=1)
    events = list(walk(Trickle(text.encode(), step), "a", ["id"]))
    assert [e.value for e in events if isinstance(e, Element)] == records[0]["a"]
    rest = [{k: v for k, v in r.items() if k != "a"} for r in records]
    assert [e.fields for e in events if isinstance(e, End)] == rest


def test_an_array_before_the_ids_that_it_needs_is_still_read():
    events = list(walk(io.BytesIO(b'{"a": [1, 2], "id": 5}'), "a", ["id"]))
    assert [(e.head["id"], e.value) for e in events if isinstance(e, Element)] == [(5, 1), (5, 2)]


@pytest.mark.parametrize(
    "text, broken",
    [
        ('{"a": [1,\n{"a": [2]}\n', [1]),
        ('{"a": [1}\n{"a": [2]}\n', [1]),
        ('nonsense\n[]\n{"a": [2]}\n', [1, 2]),
        ('{"a": ["x\n{"a": [2]}\n', [1]),
    ],
)
def test_a_broken_line_does_not_take_the_next_one_along(text, broken):
    events = list(walk(io.BytesIO(text.encode()), "a"))
    assert [e.line for e in events if isinstance(e, Broken)] == broken
    assert [e.value for e in events if isinstance(e, Element)][-1] == 2


def test_memory_follows_one_judgment_not_one_question():
    element = json.dumps(single(stored([{"[": 1.0}, {"4": 1.0}, {"]": 1.0}], count=200)))
    head = json.dumps(record([]))[:-2]
    total = 20_000_000

    class Endless(io.RawIOBase):
        """One question of 20 MB, never in memory as a whole."""

        def __init__(self):
            self.parts = self.generate()

        def generate(self):
            yield head.encode()
            for _ in range(total // len(element)):
                yield element.encode() + b", "
            yield element.encode() + b"]}\n"

        def read(self, size=-1):
            return next(self.parts, b"")

    tracemalloc.start()
    count = sum(isinstance(event, Element) for event in walk(Endless(), "judgements", ["question_id"]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == total // len(element) + 1
    assert peak < 5_000_000

"""`trustjudge plan`: what a run would come to, counted on the real prompts; nothing is written."""

import json
from collections import Counter
from itertools import accumulate, combinations
from pathlib import Path

import pytest
from corpora import protocol_files, rows, write_corpus
from small_judges import small_judge
from test_cli import trustjudge

from trustjudge_ray import config, estimate
from trustjudge_ray.config import PlanConfig
from trustjudge_ray.judging import plan, protocols
from trustjudge_ray.judging.preview import preview
from trustjudge_ray.judging.prompt_tokens import PrefixCache, count_tokens
from trustjudge_ray.judging.vllm_reading import Asked, asked
from trustjudge_ray.schema import PLACED_RESPONSES, from_rows


def tree(tmp_path: Path, questions: int = 6, models: int = 4, **changes: object) -> dict:
    corpus = write_corpus(tmp_path / "corpus.jsonl", rows(questions, [f"m{i}" for i in range(models)]))
    judge = small_judge(tmp_path / "judge") if not (tmp_path / "judge").exists() else tmp_path / "judge"
    given = {
        "out": str(tmp_path / "run"),
        "corpus": {"paths": [str(corpus)]},
        "judge": {"model": str(judge), "engine_args": {"block_size": 16}},
        "protocols": protocol_files(tmp_path),
    }
    return given | changes


def estimated(tmp_path: Path, given: dict, sample: int = 50) -> dict:
    scratch = tmp_path / f"scratch{sum(1 for _ in tmp_path.glob('scratch*'))}"
    scratch.mkdir()
    return estimate.estimate(config.loads(json.dumps(given), "my.yaml"), scratch, sample)


def judge_of(found: dict) -> dict:
    (only,) = found["judges"].values()
    return only


def test_judgments_are_those_that_a_run_would_plan(tmp_path):
    corpus = rows(6, ["m0", "m1", "m2", "m3"])
    corpus[0]["response"] = " "
    corpus[5]["response"] = corpus[4]["response"]
    given = tree(tmp_path)
    write_corpus(tmp_path / "corpus.jsonl", corpus)
    found = estimated(tmp_path, given)
    by = {row["protocol"]: row for row in found["by_protocol"]}
    assert by["score-5"] == {"protocol": "score-5", "kind": "score", "judgments": 23, "known": {"empty_response": 1}}
    assert by["compare"]["judgments"] == 6 * 6 * 2 - 2 * 3 - 2
    assert by["compare"]["known"] == {"empty_response": 6, "identical": 2}
    assert (found["pairs"], found["judgments"]) == (36, 23 + 64)
    limited = estimated(tmp_path, given | {"run": {"limit": 2}})
    assert (limited["questions"], limited["responses"]) == (2, 8)


def test_tokens_are_those_of_the_requests_that_the_engine_would_be_sent(tmp_path):
    given = tree(tmp_path, protocols=["score-100", *protocol_files(tmp_path)[1:]])
    found = judge_of(estimated(tmp_path, given))["tokens"]
    judge = config.JudgeConfig(model=given["judge"]["model"])
    seen = preview(judge)
    responses = from_rows([_response(row) for row in rows(6, ["m0", "m1", "m2", "m3"])], PLACED_RESPONSES)
    for name in given["protocols"]:
        protocol = protocols.load(name)
        reader = seen.reader(protocol)
        tasks = plan.plan(responses, [plan.Spec("j", protocol, "s")], PlanConfig(), [])
        sent = [asked(reader, task) for task in plan.with_texts(tasks, responses).to_pylist()]
        assert all(isinstance(one, Asked) for one in sent)
        requests = [request["prompt_token_ids"] for one in sent for request in one.questions()]
        counted = found[protocol.name]
        assert (counted["requests"], counted["sent"]) == (len(requests), sum(map(len, requests)))
        assert counted["prompt"] == sum(one.put for one in sent)
    assert found["score-100"]["requests"] == 11 * found["score-100"]["judgments"]


def _response(row: dict) -> dict:
    return {
        "question_id": str(row["question_id"]),
        "category": row["category"],
        "messages": [{"role": "user", "content": row["question"]}],
        "response_id": row["model"],
        "model": row["model"],
        "replies": [row["response"]],
        "source": "test",
        "line": 1,
    }


def computed_by_definition(requests: list[tuple[int, ...]], block: int) -> int:
    """Every full block whose tokens, and all before them, some earlier request began with is not computed again."""
    seen: set[tuple[int, ...]] = set()
    total = 0
    for request in requests:
        starts = list(accumulate([block] * ((len(request) - 1) // block)))
        total += len(request) - max((end for end in starts if request[:end] in seen), default=0)
        seen |= {request[:end] for end in range(block, len(request) + 1, block)}
    return total


@pytest.mark.parametrize("block", [1, 3, 16])
def test_shared_prefixes_are_counted_once_in_full_blocks(block):
    requests = [tuple(range(n)) for n in (7, 7, 3, 16, 17)] + [(0, 1, 9, 3, 4, 5), (0, 1, 9, 3, 4, 5, 6), (5,), (5,)]
    cache = PrefixCache(block)
    assert sum(cache.add(request) for request in requests) == computed_by_definition(requests, block)


def test_sharing_pays_most_where_prompts_have_most_in_common(tmp_path):
    found = judge_of(estimated(tmp_path, tree(tmp_path, protocols=["score-100", "compare"])))["tokens"]
    for counted in found.values():
        assert counted["computed"] < counted["sent"]
    assert found["score-100"]["computed"] / found["score-100"]["sent"] < 0.15, "eleven requests a prompt"


def test_repetitions_share_nothing_with_the_first_judgments(tmp_path):
    protocol = protocols.load(protocol_files(tmp_path)[0])
    reader = preview(config.JudgeConfig(model=str(small_judge(tmp_path / "judge")))).reader(protocol)
    responses = from_rows([_response(row) for row in rows(1, ["m0"])], PLACED_RESPONSES)
    planned = plan.plan(responses, [plan.Spec("j", protocol, "s")], PlanConfig(repeat=1, repeat_share=1.0), [])
    tasks = plan.with_texts(planned, responses).to_pylist()
    counted = count_tokens(reader, tasks, PrefixCache(16))
    assert (counted.judgments, counted.computed) == (2, counted.sent)


def test_a_sample_scales_up_to_the_whole_corpus(tmp_path):
    given = tree(tmp_path, questions=30, models=3)
    whole, sampled = (judge_of(estimated(tmp_path, given, n))["tokens"] for n in (50, 10))
    for name in whole:
        assert sampled[name]["judgments"] == whole[name]["judgments"]
        assert sampled[name]["sent"] == pytest.approx(whole[name]["sent"], rel=0.03)
        assert sampled[name]["computed"] == pytest.approx(whole[name]["computed"], rel=0.1)


def test_what_the_judge_may_write_is_counted_up_to_its_budget(tmp_path):
    found = judge_of(estimated(tmp_path, tree(tmp_path, protocols=["score-5-rationale"])))
    budget = protocols.load("score-5-rationale").rationale.max_tokens
    counted = found["tokens"]["score-5-rationale"]
    assert counted["written"] == 24 * budget
    assert counted["requests"] == 48
    assert counted["sent"] > 24 * budget
    assert counted["computed"] < counted["sent"] / 3, "what was written is in the cache and is not computed again"


def test_hours_and_cost_come_from_stated_rates_only(tmp_path):
    given = tree(tmp_path)
    assert judge_of(estimated(tmp_path, given))["hours"] is None
    cluster = {
        "tokens_per_second": 100.0,
        "replicas": 2,
        "gpus_per_replica": 4,
        "tensor_parallel": 4,
        "price_per_gpu_hour": 2.0,
    }
    found = judge_of(estimated(tmp_path, given | {"cluster": cluster}))
    hours = sum(t["computed"] for t in found["tokens"].values()) / 100 / 3600
    assert found["hours"] == pytest.approx({"replica": hours, "clock": hours / 2, "gpu": 4 * hours})
    assert found["cost"] == pytest.approx(8 * hours)
    writing = given | {"cluster": cluster, "protocols": ["score-5-rationale"]}
    found = judge_of(estimated(tmp_path, writing))
    assert (found["hours"], found["cost"]) == (None, None), "hours without what is written would be far too few"
    assert "output_tokens_per_second" in found["notes"][-1]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"design": "matching", "rounds": 1}, "k = 3: no"),
        ({"design": "anchor", "anchor": "m0"}, "k = 3: no"),
        ({"design": "blocks", "block": 3}, "k = 3: yes, from about 6 of 24"),
        ({"design": "blocks", "block": 3}, "k = 4: no"),
        ({"design": "full"}, "k = 4: yes, from about 6 of 6"),
        ({"design": "full", "orders": "one"}, "no conflict and no non-transitivity ratio"),
        ({"design": "full", "orders": "one"}, "no flip rate and no order effect"),
        ({"design": "full", "orders": "one"}, "ranking: yes"),
        ({"design": "full", "orders": "share"}, "ranking: yes"),
        ({"design": "anchor", "anchor": "m0"}, "discouraged"),
        (
            {"design": "anchor", "anchor": "m0"},
            "conflict ratio: yes, from 18 pairs in both orders, each with the anchor",
        ),
        ({"design": "matching", "rounds": 1}, "12 of 36 pairs of the round robin (33.3%)"),
        ({"design": "matching", "rounds": 1}, "closes none of 24 subsets of 3 answers"),
        (
            {"design": "matching", "rounds": 1},
            "non-transitivity needs plan.design blocks (with plan.block at least k) or full",
        ),
        ({"design": "anchor", "anchor": "m9"}, "no comparisons, as no answer is by plan.anchor 'm9'"),
        ({"design": "full"}, "yes, from about 24 of 24 subsets of 3 answers to a question, in 6 of 6"),
        ({"design": "full"}, "order effect from 36 pairs in both orders (100%)"),
    ],
)
def test_what_a_design_cannot_show_is_said(tmp_path, settings, says):
    found = estimated(tmp_path, tree(tmp_path, plan=settings))
    assert any(says in sentence for sentence in found["supports"]), found["supports"]


def test_what_a_share_of_pairs_in_both_orders_can_show_is_counted_on_its_own_tasks(tmp_path):
    """The promise before a run is what `evaluate` will find: every count here is by the definition."""
    given = tree(tmp_path, questions=12, models=6, plan={"orders": "share", "both_share": 0.4})
    said = estimated(tmp_path, given)["supports"]
    responses = from_rows([_response(row) for row in rows(12, [f"m{i}" for i in range(6)])], PLACED_RESPONSES)
    protocol = protocols.load(given["protocols"][1])
    settings = PlanConfig(orders="share", both_share=0.4)
    orders: dict[tuple[str, frozenset[str]], set[str]] = {}
    for task in plan.plan(responses, [plan.Spec("j", protocol, "s")], settings, []).to_pylist():
        pair = frozenset({task["response_a"], task["response_b"]})
        orders.setdefault((task["question_id"], pair), set()).add(task["order"])
    both = {key for key, seen in orders.items() if len(seen) == 2}
    closed = Counter(
        q
        for q in {q for q, _ in orders}
        for three in combinations([f"m{i}" for i in range(6)], 3)
        if all((q, frozenset(two)) in both for two in combinations(three, 2))
    )
    assert 0 < closed.total() < 12 * 20 / 2
    assert any(f"order effect from {len(both)} pairs" in sentence for sentence in said), said
    (circles,) = [sentence for sentence in said if "k = 3" in sentence]
    assert "hardly" in circles
    assert f"about {closed.total()} of 240 subsets of 3 answers to a question, in {len(closed)} of 12" in circles


def test_models_that_never_meet_are_said_to_be_ranked_apart(tmp_path):
    corpus = [row for row in rows(6, ["m0", "m1", "m2", "m3"]) if (row["question_id"] % 2) == (row["model"] > "m1")]
    given = tree(tmp_path)
    write_corpus(tmp_path / "corpus.jsonl", corpus)
    said = estimated(tmp_path, given)["supports"]
    assert any("2 groups of models never meet" in sentence for sentence in said), said


def test_a_question_whose_answers_nobody_can_judge_closes_no_subset(tmp_path):
    corpus = rows(2, ["m0", "m1", "m2"])
    corpus[0]["response"] = " "
    given = tree(tmp_path)
    write_corpus(tmp_path / "corpus.jsonl", corpus)
    said = estimated(tmp_path, given)["supports"]
    assert any("yes, from about 1 of 2 subsets of 3 answers" in sentence for sentence in said), said


def test_a_run_of_scores_alone_says_so(tmp_path):
    given = tree(tmp_path)
    found = estimated(tmp_path, given | {"protocols": given["protocols"][:1]})
    assert found["supports"] == [
        "no comparisons: no conflict ratio, no non-transitivity ratio; ranking by mean score only"
    ]


def test_a_run_that_can_compare_nothing_and_scores_nothing_ranks_nothing(tmp_path):
    given = tree(tmp_path, models=1)
    found = estimated(tmp_path, given | {"protocols": given["protocols"][1:]})
    assert found["supports"] == ["no comparisons: no conflict ratio, no non-transitivity ratio; no ranking"]


def test_the_command_writes_nothing(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(json.dumps(tree(tmp_path)))
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    done = trustjudge("plan", path, "cluster.tokens_per_second=1000", "cluster.gpus_per_replica=1")
    assert done.returncode == 0, done.stderr
    assert "24 responses, 36 pairs: 96 judgments" in done.stdout
    assert "GPU-hours" in done.stdout
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before
    found = json.loads(trustjudge("plan", path, "--sample", "2", "--json").stdout.splitlines()[-1])
    assert (found["judgments"], found["sampled_questions"]) == (96, 2)


def test_a_judge_that_is_not_there_is_one_message(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(json.dumps(tree(tmp_path) | {"judge": {"model": "/no/such/model"}}))
    done = trustjudge("plan", path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "/no/such/model" in done.stderr

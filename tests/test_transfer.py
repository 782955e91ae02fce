"""The transfer matrix against brute force, its tests against enumeration and textbooks, and the paper's directions."""

from itertools import product

import numpy as np
import polars as pl
import pytest

from trustjudge_ray.analysis.inference import ratio_intervals
from trustjudge_ray.analysis.paired import paired_ratios
from trustjudge_ray.audit.lora_report import AS_PAPER, NOT_AS_PAPER, NOT_SHOWN, claims_of
from trustjudge_ray.audit.transfer import ANSWERS, MATRIX, READS, holm, swap_test, transfer_matrix

RNG = np.random.default_rng
PROTOCOLS = ("verify-one", "verify-two")


def world(arms=("base", "generation", "both"), seeds=2, passages=6, items=3, seed=0, accepts=None, correct=None):
    """Answers and reads of random arms; `accepts` and `correct` plant an arm's accept and answer rates."""
    rng = RNG(seed)
    answers, reads = [], []
    for arm, s in [(a, s) for a in arms for s in (range(seeds) if a != "base" else [0])]:
        for p, i in product(range(passages), range(items)):
            keys = {"arm": arm, "seed": s, "item_id": f"{p}.{i}", "passage_id": f"p{p}", "benchmark": "ab"[p % 2]}
            right = bool(rng.random() < (correct or {}).get(arm, 0.5))
            status = rng.choice(["ok", "ok", "ok", "empty_response", "too_long"])
            given = {"ok": right, "empty_response": False, "too_long": None}[status]
            answers.append(keys | {"status": status, "output": "x", "cut": False, "correct": given})
            for candidate, truth in (("own", given), ("gold", True), ("swap", False)):
                for protocol in PROTOCOLS:
                    bad = status if candidate == "own" and status != "ok" else None
                    bad = bad or ("bad_logprob" if rng.random() < 0.05 else None)
                    p_accept = float(rng.random() < (accepts or {}).get(arm, 0.5)) * 0.8 + 0.1
                    mass = float(rng.choice([0.3, 0.9, 0.99], p=[0.1, 0.4, 0.5]))
                    values = {"p_accept": None if bad else p_accept, "label_mass": None if bad else mass}
                    named = {"candidate": candidate, "truth": truth, "protocol": protocol, "status": bad or "ok"}
                    reads.append(keys | named | values)
    return pl.DataFrame(answers, schema=ANSWERS), pl.DataFrame(reads, schema=READS)


def cell(matrix, arm, measure, benchmark=None):
    rows = matrix.filter(arm=arm, measure=measure).filter(pl.col("benchmark").eq_missing(benchmark))
    assert len(rows) == 1
    return rows.to_dicts()[0]


def numbers(row, *names):
    return [np.nan if row[name] is None else row[name] for name in names]


def brute_cases(answers, reads, arm, measure, benchmark, min_mass=0.5):
    """{(seed, item, candidate): (passage, hit or None)} of one cell, row by row."""
    fits = [r for r in answers.to_dicts() if r["arm"] == arm and benchmark in (None, r["benchmark"])]
    if measure == "generation_accuracy":
        hits = {"ok": lambda r: float(r["correct"]), "empty_response": lambda r: 0.0, "too_long": lambda r: None}
        return {(r["seed"], r["item_id"], ""): (r["passage_id"], hits[r["status"]](r)) for r in fits}
    found = {}
    for r in reads.to_dicts():
        if r["arm"] == arm and benchmark in (None, r["benchmark"]):
            found.setdefault((r["seed"], r["item_id"], r["candidate"]), []).append(r)
    cases = {}
    for key, ways in found.items():
        own, truth = key[2] == "own", ways[0]["truth"]
        reasons = [w["status"] if w["status"] != "ok" else "" for w in ways]
        p = None if any(reasons) else sum(w["p_accept"] for w in ways) / len(ways)
        accepts = None if p is None else 0.5 if abs(p - 0.5) < 1e-9 else float(p > 0.5)
        if measure == "unreadable":
            never = min([r for r in reasons if r], default="") in ("empty_response", "too_long")
            low = any(w["label_mass"] is not None and w["label_mass"] < min_mass for w in ways)
            cases[key] = (ways[0]["passage_id"], None if never else float(p is None or low))
            continue
        wanted = {
            "self_accuracy": own and truth is not None,
            "controlled_accuracy": not own,
            "false_accept": not own and truth is False,
            "false_reject": not own and truth is True,
            "self_false_accept": own and truth is False,
        }[measure]
        if not wanted:
            continue
        turned = measure == "false_reject" or (measure.endswith("accuracy") and not truth)
        hit = None if accepts is None else 1 - accepts if turned else accepts
        cases[key] = (ways[0]["passage_id"], hit)
    return cases


def sums(cases, passages):
    hits = [sum(h for p, h in cases.values() if p == name and h is not None) for name in passages]
    counts = [sum(1 for p, h in cases.values() if p == name and h is not None) for name in passages]
    return np.array(hits, dtype=float), np.array(counts, dtype=float)


MEASURES = (
    "generation_accuracy",
    "self_accuracy",
    "controlled_accuracy",
    "false_accept",
    "false_reject",
    "self_false_accept",
    "unreadable",
)


@pytest.fixture(scope="module")
def measured():
    answers, reads = world()
    return answers, reads, transfer_matrix(answers, reads)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("benchmark", [None, "a", "b"])
def test_every_cell_counts_what_a_loop_over_rows_counts(measured, measure, benchmark):
    answers, reads, matrix = measured
    passages = [f"p{p}" for p in range(6)]
    for arm in ("base", "generation", "both"):
        cases = brute_cases(answers, reads, arm, measure, benchmark)
        hits, counts = sums(cases, passages)
        found = cell(matrix, arm, measure, benchmark)
        assert (found["hits"], found["cases"]) == (hits.sum(), counts.sum())
        assert found["excluded"] == sum(h is None for _, h in cases.values())
        interval = ratio_intervals(hits, counts)
        assert numbers(found, "low", "high") == pytest.approx([float(interval.low), float(interval.high)], nan_ok=True)
        for seed, value in enumerate(found["by_seed"]):
            own = [h for (s, _, _), (_, h) in cases.items() if s == seed and h is not None]
            assert value == (pytest.approx(np.mean(own)) if own else None)


@pytest.mark.parametrize("measure", MEASURES)
def test_differences_are_those_of_the_same_passages_and_their_p_values_all_sign_flips(measured, measure):
    answers, reads, matrix = measured
    passages = [f"p{p}" for p in range(6)]
    base = sums(brute_cases(answers, reads, "base", measure, None), passages)
    for arm in ("generation", "both"):
        own = [part / 2 for part in sums(brute_cases(answers, reads, arm, measure, None), passages)]
        found = cell(matrix, arm, measure)
        witness = paired_ratios(base, tuple(own), RNG(0))
        got = numbers(found, "difference", "difference_low", "difference_high", "p_t")
        assert got == pytest.approx([float(getattr(witness, n)[0]) for n in ("value", "low", "high", "p_value")])
        shared = [i for i in range(6) if base[1][i] and own[1][i]]
        shares = [hits[shared].sum() / counts[shared].sum() for hits, counts in (own, base)]
        extreme, seen = 0, abs(shares[0] - shares[1])
        for flips in product((False, True), repeat=len(shared)):
            sides = [[0.0, 0.0], [0.0, 0.0]]
            for i, flip in zip(shared, flips, strict=True):
                for side, (hits, counts) in enumerate((own, base) if flip else (base, own)):
                    sides[side][0] += hits[i]
                    sides[side][1] += counts[i]
            extreme += abs(sides[1][0] / sides[1][1] - sides[0][0] / sides[0][1]) >= seen - 1e-12
        assert found["p_value"] == pytest.approx(extreme / 2 ** len(shared))


def test_the_base_is_compared_with_nothing_and_stands_first(measured):
    matrix = measured[2]
    assert matrix["arm"][0] == "base"
    assert matrix.filter(arm="base")["difference"].null_count() == len(matrix.filter(arm="base"))
    assert dict(matrix.schema) == MATRIX


def test_one_benchmark_is_not_tested_twice():
    answers, reads = world()
    one = [frame.with_columns(benchmark=pl.lit("a")) for frame in (answers, reads)]
    assert transfer_matrix(*one)["benchmark"].unique().to_list() == [None]


def test_a_planted_rise_is_found_and_its_direction_said():
    answers, reads = world(("base", "generation"), passages=30, accepts={"base": 0.1, "generation": 0.95})
    matrix = transfer_matrix(answers, reads)
    found = cell(matrix, "generation", "false_accept")
    assert found["difference_low"] > 0.3
    assert found["p_holm"] < 0.01
    assert cell(matrix, "generation", "false_reject")["difference_high"] < 0


def test_seeds_that_agree_do_not_narrow_the_interval_as_new_passages_would():
    answers, reads = world(("base", "generation"), seeds=1, passages=10, items=4)
    trained = [frame.filter(arm="generation") for frame in (answers, reads)]
    copies = [[t.with_columns(seed=pl.lit(s, pl.Int32)) for s in range(1, 9)] for t in trained]
    many = [pl.concat([frame, *more]) for frame, more in zip((answers, reads), copies, strict=True)]
    one, nine = (cell(transfer_matrix(*pair), "generation", "false_accept") for pair in ((answers, reads), many))
    assert nine["cases"] == 9 * one["cases"]
    assert nine["difference"] == pytest.approx(one["difference"])
    assert nine["difference_high"] == pytest.approx(one["difference_high"])
    assert nine["p_value"] == pytest.approx(one["p_value"])


def test_arms_that_do_not_differ_raise_an_alarm_in_one_of_twenty_tests_at_most():
    alarms = [
        swap_test((rng.binomial(3, 0.4, 9), np.full(9, 3)), (rng.binomial(3, 0.4, 9), np.full(9, 3)), rng) <= 0.05
        for rng in map(RNG, range(400))
    ]
    assert np.mean(alarms) <= 0.06


def test_random_flips_of_many_passages_agree_with_the_t_test():
    rng = RNG(3)
    counts = np.full(60, 4.0)
    first, second = rng.binomial(4, 0.4, 60).astype(float), rng.binomial(4, 0.5, 60).astype(float)
    witness = float(paired_ratios((first, counts), (second, counts), rng).p_value[0])
    assert swap_test((first, counts), (second, counts), RNG(0)) == pytest.approx(witness, abs=0.02)


def test_few_passages_that_all_agree_cannot_have_a_small_p_value():
    none, every, counts = np.zeros(4), np.ones(4), np.ones(4)
    assert swap_test((none, counts), (every, counts), RNG(0)) == 2 / 2**4
    assert np.isnan(swap_test((none, counts * 0), (every, counts), RNG(0)))


def test_holm_is_the_textbook_step_down_and_leaves_missing_tests_out():
    p = np.array([0.01, np.nan, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(holm(p), [0.03, np.nan, 0.06, 0.06, 0.02])
    assert holm(np.array([0.9, 0.8])).tolist() == [1, 1]


def test_holm_rejects_whatever_bonferroni_does_and_no_closed_test_less():
    """Holm is the closure of Bonferroni: a hypothesis falls if every set that holds it has a p ≤ α/size."""
    for seed in range(30):
        p, alpha = RNG(seed).random(4) ** 3, 0.1
        for i in range(4):
            sets = [s for s in product((False, True), repeat=4) if s[i]]
            closed = all(min(q for q, inside in zip(p, s, strict=True) if inside) <= alpha / sum(s) for s in sets)
            assert (holm(p)[i] <= alpha) == closed


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.1, 0.4, AS_PAPER), (-0.4, -0.1, NOT_AS_PAPER), (-0.1, 0.4, NOT_SHOWN), (None, None, NOT_SHOWN)],
)
def test_a_direction_is_claimed_only_where_the_interval_leaves_out_zero(measured, low, high, expected):
    planted = measured[2].with_columns(difference_low=pl.lit(low, pl.Float64), difference_high=pl.lit(high, pl.Float64))
    found = {(c["arm"], c["measure"]): c["verdict"] for c in claims_of(planted)}
    assert found["generation", "false_accept"] == expected
    assert ("evaluation", "generation_accuracy") not in found


def test_a_fall_in_answering_is_as_in_the_paper():
    answers, reads = world(("base", "evaluation"), passages=30, correct={"base": 0.95, "evaluation": 0.05})
    found = claims_of(transfer_matrix(answers, reads))
    assert [(c["arm"], c["verdict"]) for c in found] == [("evaluation", AS_PAPER)]


def test_frames_of_other_columns_and_runs_without_a_base_are_refused():
    answers, reads = world()
    with pytest.raises(ValueError, match="base"):
        transfer_matrix(answers.filter(pl.col("arm") != "base"), reads)
    with pytest.raises(ValueError, match="reads: columns"):
        transfer_matrix(answers, reads.drop("truth"))

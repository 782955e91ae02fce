"""The contradictions that a report lists: which there are, how many, in which order; by their plain definitions."""

from itertools import combinations, permutations

import numpy as np
import polars as pl
import pytest
import reported_runs as world
from comparisons import game, score, table

from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.analysis.tolerances import parse_tolerances
from trustjudge_ray.analysis.verdicts import pairs_of, verdicts
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.report.cells import Inputs
from trustjudge_ray.report.contradictions import conflicts, flips
from trustjudge_ray.report.cycles import cycles

PROTOCOLS = {"score": world.PROTOCOLS["score-5"], "compare": world.PROTOCOLS["compare"]}
NONE = pl.DataFrame()
NAMES = ("question_id", "response_a", "response_b")
TOLERANT = {"tolerances": {"score": [0.3], "likelihood": [0.02], "ppl": [0.5]}, "k": [3]}


@pytest.fixture(scope="module")
def run():
    which = {"judges": world.JUDGES[:2], "scales": ("score-5", "score-100"), "comparisons": ("compare",)}
    return world.inputs(AnalysisConfig(**TOLERANT), questions=6, **which)


def overall(inputs, metric, **which):
    """The hits and cases of a metric over all categories."""
    same = [pl.col(name).eq_missing(pl.lit(value)) for name, value in which.items()]
    row = inputs.metrics.filter(pl.col("metric") == metric, pl.col("category").is_null(), *same).row(0, named=True)
    return row["hits"], row["cases"]


def found_in(inputs, settings=None, listed=10_000):
    settings = settings or inputs.settings
    return conflicts(inputs.scores, inputs.verdicts, inputs.protocols, settings, listed)


# --- conflicts -------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["normalised", "likelihood", "ppl", "baseline"])
def test_the_total_of_conflicts_is_not_another_number_than_the_conflict_ratio_of_the_same_report(run, rule):
    settings = AnalysisConfig(**TOLERANT, verdict_rules=[rule], score_rules=["softmax_weighted"])
    found = found_in(run, settings)
    assert len(found) == 2 * 2 * 1
    for lane in found:
        same = {name: getattr(lane, name) for name in ("judge", "protocol", "pair_protocol")}
        same |= {name: getattr(lane, name) for name in ("score_rule", "verdict_rule", "tolerance", "verdict_tolerance")}
        assert (lane.verdict_rule, lane.score_rule) == (rule, "softmax_weighted")
        assert (lane.total, lane.cases) == overall(run, "conflict_ratio", **same)
        for kind in ("reversal", "score_tie", "pair_tie"):
            assert lane.by_type.get(kind, 0) == overall(run, f"conflict_{kind}", **same)[0]
        assert lane.rows.height == lane.total > 0


def test_conflicts_are_the_pairs_that_the_plain_definition_gives_strongest_first(run):
    for lane in found_in(run):
        scale = run.protocols[lane.protocol].values
        mine = run.scores.filter(judge=lane.judge, protocol=lane.protocol, rule="expected")
        said = {(q, r): s for q, r, s in mine.select("question_id", "response_id", "score").rows()}
        wanted = []
        pairs = run.verdicts.filter(judge=lane.judge, protocol=lane.pair_protocol, rule="normalised")
        for row in pairs.to_dicts():
            gap = said[row["question_id"], row["response_a"]] - said[row["question_id"], row["response_b"]]
            sign = 0 if abs(gap) < 0.3 else (1 if gap > 0 else -1)
            if sign == row["outcome"]:
                continue
            p = {1: row["p_a"], -1: row["p_b"], 0: row["p_tie"]}
            lead = p[row["outcome"]] - max(value for outcome, value in p.items() if outcome != row["outcome"])
            share = abs(gap) / (max(scale) - min(scale)) if sign else 0.0
            wanted.append((-min(share, lead), -max(share, lead), *(row[name] for name in NAMES)))
        got = lane.rows.select(-pl.col("strength"), *NAMES).rows()
        assert [row[1:] for row in got] == [row[2:] for row in sorted(wanted)]
        assert [row[0] for row in got] == pytest.approx([row[0] for row in sorted(wanted)])


def test_a_pair_without_known_probabilities_is_listed_last_and_not_as_the_strongest():
    rows = [score("q", m, p) for m, p in (("x", (0.9, 0.1, 0, 0, 0)), ("y", (0, 0, 0, 0, 1)), ("z", (0, 0, 1, 0, 0)))]
    for a, b in combinations("xyz", 2):
        unknown = {"label_logprobs": None} if (a, b) == ("x", "y") else {}
        rows += [game("q", *pair, (0.5, 0.3, 0.2), emitted="a", **unknown) for pair in ((a, b), (b, a))]
    settings = AnalysisConfig(tolerances=[0], verdict_rules=["baseline"])
    lane = found_in(evaluated(rows, settings), settings)[0]
    assert lane.rows.select("response_a", "response_b", "strength").rows()[-1] == ("x", "y", None)
    assert lane.total == 2, "x is scored below y and z, and emitted as better than both"


def evaluated(rows, settings, protocols=PROTOCOLS):
    """These judgments with their SCORES and VERDICTS, as a report has them."""
    said = table(rows)
    made = {"scores": scores(said, protocols), "verdicts": verdicts(said, parse_tolerances(settings.tolerances))}
    return Inputs("t", said, **made, metrics=NONE, ratings=NONE, protocols=protocols, settings=settings)


def test_imported_verdicts_without_probabilities_are_not_lost_because_the_main_rule_needs_them():
    rows = [score("q", m, np.eye(5)[i], label_logprobs=None) for i, m in enumerate("xy")]
    rows += [game("q", *pair, "tie", emitted="a", label_logprobs=None) for pair in (("x", "y"), ("y", "x"))]
    settings = AnalysisConfig(tolerances=[0])
    lane = found_in(evaluated(rows, settings), settings)[0]
    assert (lane.total, lane.score_rule, lane.verdict_rule) == (1, "baseline", "baseline")


def test_identical_answers_conflict_with_nothing_unless_they_are_included():
    rows = [score("q", m, np.eye(5)[i]) for i, m in enumerate("xy")]
    rows += [game("q", *pair, "tie", status="identical") for pair in (("x", "y"), ("y", "x"))]
    for included, total in (("exclude", 0), ("include", 1)):
        settings = AnalysisConfig(tolerances=[0], identical=included)
        assert found_in(evaluated(rows, settings), settings)[0].total == total


# --- cycles ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["normalised", "ppl_tiebreak", "baseline"])
def test_the_total_of_cycles_is_not_another_number_than_the_non_transitivity_ratio_of_the_same_report(run, rule):
    for lane in cycles(run.verdicts, AnalysisConfig(**TOLERANT, verdict_rules=[rule])):
        same = {"judge": lane.judge, "protocol": lane.pair_protocol, "verdict_rule": rule, "k": 3}
        same["tolerance"] = lane.verdict_tolerance
        assert (lane.total, lane.cases) == overall(run, "non_transitivity_ratio", **same)
        for kind in ("strict_cycle", "chain", "ties"):
            assert lane.by_type.get(kind, 0) == overall(run, f"non_transitivity_{kind}", **same)[0]


def planted(seed, questions=5, models="abcdefg", share=0.8, ties=0.3):
    """VERDICTS of random outcomes, some pairs missing."""
    rng, rows = np.random.default_rng(seed), []
    for q in range(questions):
        for a, b in combinations(models, 2):
            if rng.random() < share:
                p = rng.dirichlet(np.ones(3) * (0.4 if rng.random() > ties else 2))
                rows += [game(q, *pair, p if pair[0] == a else p[[1, 0, 2]]) for pair in ((a, b), (b, a))]
    settings = AnalysisConfig(tolerances=[0])
    return evaluated(rows, settings).verdicts


def by_definition(table_of_verdicts):
    """type rank, −weakest margin, question, the three answers: every triple that no ordering with ties can give."""
    signs, margins = {}, {}
    for row in table_of_verdicts.filter(rule="normalised").to_dicts():
        p = {1: row["p_a"], -1: row["p_b"], 0: row["p_tie"]}
        lead = p[row["outcome"]] - max(value for outcome, value in p.items() if outcome != row["outcome"])
        for sign, pair in ((1, ("response_a", "response_b")), (-1, ("response_b", "response_a"))):
            signs[row["question_id"], row[pair[0]], row[pair[1]]] = sign * row["outcome"]
            margins[row["question_id"], row[pair[0]], row[pair[1]]] = lead
    questions = sorted({q for q, _, _ in signs})
    found = []
    for q in questions:
        for three in combinations(sorted({a for p, a, _ in signs if p == q}), 3):
            pairs = [(q, x, y) for x, y in combinations(three, 2)]
            if not all(pair in signs for pair in pairs):
                continue
            ranks = [dict(zip(three, (i, j, k), strict=True)) for i in range(3) for j in range(3) for k in range(3)]
            fits = any(all(np.sign(r[y] - r[x]) == signs[q, x, y] for _, x, y in pairs) for r in ranks)
            if not fits:
                tied = sum(signs[pair] == 0 for pair in pairs)
                found.append((tied, -min(margins[pair] for pair in pairs), q, three))
    return sorted(found), signs, margins


@pytest.mark.parametrize("seed", range(4))
def test_cycles_are_the_triples_that_no_ordering_gives_strict_ones_first_by_their_weakest_margin(seed):
    said = planted(seed)
    wanted, signs, margins = by_definition(said)
    (lane,) = cycles(said, AnalysisConfig(tolerances=[0]), listed=10_000)
    got = lane.rows.to_dicts()
    assert [(r["question_id"], tuple(sorted((r["x"], r["y"], r["z"])))) for r in got] == [w[2:] for w in wanted]
    assert [r["strength"] for r in got] == pytest.approx([-w[1] for w in wanted])
    told = {"strict_cycle": (1, 1, -1), "chain": (1, 1, 0), "ties": (0, 0, 1)}
    for r in got:
        pairs = [(r["question_id"], r[x], r[y]) for x, y in ("xy", "yz", "xz")]
        assert tuple(signs[pair] for pair in pairs) == told[r["type"]], "told the wrong way round"
        assert [r["margin_xy"], r["margin_yz"], r["margin_xz"]] == pytest.approx([margins[pair] for pair in pairs])
    (short,) = cycles(said, AnalysisConfig(tolerances=[0]), listed=7)
    assert short.rows.equals(lane.rows.head(7))
    assert short.total == len(wanted)


def test_a_question_with_too_many_answers_is_said_to_be_left_out():
    models = [f"m{i:03d}" for i in range(101)]
    ring = [(models[i], models[(i + 1) % 101]) for i in range(101)]
    rows = [game("wide", *pair, "first" if pair == told else "second") for told in ring for pair in (told, told[::-1])]
    rows += [game("small", *pair, "first" if pair[0] < pair[1] else "second") for pair in permutations("xyz", 2)]
    said = evaluated(rows, AnalysisConfig(tolerances=[0])).verdicts
    (lane,) = cycles(said, AnalysisConfig(tolerances=[0]))
    assert (lane.too_many, lane.cases, lane.total) == (1, 1, 0)


# --- flips -----------------------------------------------------------------------------------


def test_flips_are_the_pairs_of_the_flip_rate_opposite_ones_first(run):
    for lane in flips(pairs_of(run.judgments), listed=10_000):
        assert (lane.total, lane.cases) == overall(run, "flip_rate", judge=lane.judge, protocol=lane.pair_protocol)
        mine = run.judgments.filter(judge=lane.judge, protocol=lane.pair_protocol)
        said = {}
        for row in mine.to_dicts():
            p = np.exp(row["label_logprobs"])
            p, at = p / p.sum(), ("a", "b", "tie").index(row["emitted"])
            said[tuple(row[name] for name in NAMES), row["order"]] = row["emitted"], p[at] - np.delete(p, at).max()
        wanted = []
        for pair in {pair for pair, _ in said}:
            (ab, first), (ba, second) = said[pair, "AB"], said[pair, "BA"]
            if ab != ba:
                kind = "one_tie" if "tie" in (ab, ba) else "first_shown" if ab == "a" else "second_shown"
                wanted.append((kind == "one_tie", -min(first, second), *pair, kind, ab, ba))
        got = lane.rows.select(*NAMES, "type", "emitted_ab", "emitted_ba").rows()
        assert got == [row[2:] for row in sorted(wanted)]
        assert lane.rows["strength"].to_list() == pytest.approx([-row[1] for row in sorted(wanted)])


def test_a_run_without_judgments_or_of_one_kind_alone_has_no_contradiction_and_no_error():
    nothing = evaluated([], AnalysisConfig())
    assert (found_in(nothing), cycles(nothing.verdicts, nothing.settings), flips(pairs_of(nothing.judgments))) == (
        [],
        [],
        [],
    )
    scored = evaluated([score("q", "x", np.eye(5)[0])], AnalysisConfig())
    assert (found_in(scored), cycles(scored.verdicts, scored.settings)) == ([], [])
    compared = evaluated([game("q", "x", "y", "first", emitted="a")], AnalysisConfig())
    assert found_in(compared) == []
    assert [lane.cases for lane in cycles(compared.verdicts, compared.settings)] == [0]
    assert [(lane.cases, lane.rows.height) for lane in flips(pairs_of(compared.judgments))] == [(0, 0)]

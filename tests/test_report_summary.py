"""The three sentences on top of a report: right where the run is odd, and never surer than the ranks are."""

from dataclasses import replace

import polars as pl
import pytest
import reported_runs as world
from comparisons import game, table

from trustjudge_ray.analysis.games import POOLED
from trustjudge_ray.analysis.metrics import COLUMNS, frame
from trustjudge_ray.config import AnalysisConfig
from trustjudge_ray.corpus.canary import NAME
from trustjudge_ray.report.cells import Inputs
from trustjudge_ray.report.summary import standings, summary
from trustjudge_ray.schema import RATINGS

GAMES = [game(q, "a", "b", "first", judge=judge) for judge in ("mine", "yours") for q in range(3)]


def board(*models, judge="mine", protocol="compare", rule="davidson", component=1):
    """RATINGS of one leaderboard: (model, rank, its lowest and highest) each, with what differs from a usual row."""
    rows = []
    for model, rank, low, high, *more in models:
        usual = {"rating": 1100.0 - 40 * rank, "low": 1000.4, "high": 1199.6, "status": "bounded", "games": 9.0}
        about = {"judge": judge, "protocol": protocol, "rule": rule, "component": component, "model": model}
        usual |= {"wins": 4.0, "losses": 4.0, "ties": 1.0, "rank": rank, "rank_low": low, "rank_high": high}
        rows.append(usual | about | (more[0] if more else {}))
    return rows


def inputs(ratings, judgments=None, metrics=(), **more):
    rows = [{field.name: row.get(field.name) for field in RATINGS} for row in ratings]
    kinds = {"string": pl.String, "int32": pl.Int32, "double": pl.Float64}
    shape = {field.name: kinds[str(field.type)] for field in RATINGS}
    said = table([row for row in GAMES if row["judge"] == "mine"]) if judgments is None else judgments
    found, nothing = pl.DataFrame(rows, schema=shape), pl.DataFrame()
    return Inputs("run", said, nothing, nothing, frame(list(metrics)), found, {}, AnalysisConfig(), **more)


def told(*args, **more):
    return [str(sentence.says) for sentence in summary(inputs(*args, **more))]


def test_a_leader_that_others_reach_is_named_with_those_who_may_lead_as_well():
    who, sure, _ = told(board(("a", 1, 1, 3), ("b", 2, 1, 3), ("c", 3, 2, 4), ("d", 4, 3, 4)))
    assert who == "a comes first of 4 models with a rating of 1060 (Davidson), judged by mine (compare) on 3 questions."
    assert sure == "The 95 % interval of its rating is 1000 … 1200, and its rank is 1 to 3: b may lead as well."


def test_a_leader_that_no_other_reaches_is_said_to_be_above_each():
    _, sure, _ = told(board(("a", 1, 1, 1), ("b", 2, 2, 3), ("c", 3, 2, 3)))
    assert sure.endswith("and each of the 2 others is significantly below it, compared pair by pair.")


def test_a_leader_that_cannot_be_told_from_anyone_is_not_said_to_be_sure():
    _, sure, _ = told(board(("a", 1, 1, 3), ("b", 2, 1, 3), ("c", 3, 1, 3)))
    assert sure.endswith("its rank is 1 to 3: it cannot be told from any other model, each of which may lead.")


def test_a_shared_first_rank_is_no_lead_of_the_first_in_the_table():
    who, sure, _ = told(board(("a", 1, 1, 2), ("b", 1, 1, 2), ("c", 3, 3, 3)))
    assert who == "a and b share the lead by mine (compare)."
    assert sure == "Nothing tells those at the top apart: they have the same rank."
    who, _, _ = told(board(("a", 1, 1, 2), ("b", 1, 1, 2)))
    assert who == "No model leads: all 2 models share the first rank by mine (compare)."


def test_a_leader_that_won_everything_has_no_rating_and_no_interval():
    endless = {"rating": None, "low": None, "high": None, "status": "unbounded"}
    who, sure, _ = told(board(("a", 1, 1, 1, endless), ("b", 2, 2, 2)))
    assert who.startswith("a leads the 2 models with a rating without bound, judged by")
    assert sure.startswith("It took every point from those it met, so its rating has no bound, and the other model is")


def test_a_leader_without_an_interval_of_ranks_is_not_said_to_be_sure():
    none = {"rank_low": None, "rank_high": None, "low": None, "high": None}
    _, sure, _ = told(board(("a", 1, 1, 1, none), ("b", 2, 1, 1, none)))
    assert sure == "That cannot be said: the rank of a has no interval, for too few questions."


def test_one_model_leads_nobody():
    who, sure, _ = told(board(("a", 1, 1, 1), rule="mean_score"))
    assert who == "a is the only model, so there is nothing to rank it against."
    assert sure == "There is nothing to be sure of: one model cannot be ranked."


def test_one_model_on_two_scales_is_no_disagreement_of_leaderboards():
    twice = [row for name in ("s5", "s10") for row in board(("a", 1, 1, 1), rule="mean_score", protocol=name)]
    who, sure, _ = told(twice)
    assert who == "a is the only model, so there is nothing to rank it against."
    assert sure == "There is nothing to be sure of: no two models met."


def test_what_has_no_interval_is_not_said_to_be_better_than_chance():
    rows = [row | {"low": None, "high": None} for row in measured()]
    _, _, trusted = told(board(("a", 1, 1, 1), ("b", 2, 2, 2)), metrics=rows)
    assert trusted.startswith("mine was not audited, and nothing here can be held against chance: its scores and")
    assert trusted.endswith("in 70.0 % of pairs (no interval).")


def test_groups_that_never_met_have_no_common_leader():
    apart = [*board(("a", 1, 1, 1), ("b", 2, 2, 2)), *board(("c", 1, 1, 2), ("d", 2, 1, 2), component=2)]
    who, sure, _ = told([*apart, *board(("e", 1, 1, 1), component=3)])
    assert who.startswith("No model leads them all: the models fall into 3 groups that never met")
    assert "(a among 2, c among 2 and e alone leads)" in who
    assert sure == (
        "The leader is significantly above every other model (95 %, pair by pair) in 1 of the 2 groups; models of "
        "different groups cannot be compared."
    )


def test_judges_that_differ_on_the_leader_are_both_heard_and_judges_that_agree_are_one():
    mine, yours = (
        board(("a", 1, 1, 1), ("b", 2, 2, 2)),
        board(("b", 1, 1, 2), ("a", 2, 1, 2), judge="yours"),
    )
    who, sure, _ = told([*mine, *yours])
    assert who == "The leaderboards differ on who leads: a by mine (compare) and b by yours (compare)."
    assert sure.endswith("every other model (95 %, pair by pair) in 1 of the 2 leaderboards.")
    agreed = board(("a", 1, 1, 2), ("b", 2, 1, 2), judge="yours")
    who, _, _ = told([*mine, *agreed])
    assert who == "a leads on each of 2 leaderboards: mine (compare) and yours (compare)."


def test_the_leaderboard_of_all_judges_together_counts_where_there_is_one():
    pooled = board(("b", 1, 1, 1), ("a", 2, 2, 2), judge=POOLED)
    who, _, _ = told([*pooled, *board(("a", 1, 1, 1), ("b", 2, 2, 2))])
    assert who.startswith(
        "b leads the 2 models with a rating of 1060 (Davidson), judged by all judges together (compare)"
    )


def test_a_run_without_ratings_or_judgments_says_so():
    who, sure, trusted = told([])
    assert who == "No model leads: the run has no readable comparison and no readable score to rank by."
    assert sure == "There is nothing to be sure of: no model has a rating."
    assert trusted.startswith(
        "mine was not audited, and nothing here can be held against chance: neither its consistency"
    )
    assert told([], table(GAMES).clear())[2] == "There is no judge: the run has no judgments."


def test_a_canary_that_leads_is_named_as_one():
    who, _, _ = told(board((NAME, 1, 1, 1), ("b", 2, 2, 2)))
    assert who.startswith(f"{NAME} (the canary, an empty answer) leads the 2 models")


def test_a_name_with_braces_is_a_name():
    who, sure, _ = told(board(("{0} {x}", 1, 1, 2), ("{}", 2, 1, 2)))
    assert who.startswith("{0} {x} comes first of 2 models")
    assert "each of which may lead" in sure


def measured(cr=(0.3, -0.1), ntr=(0.1, -0.1), decisive=(0.7, 0.6)):
    """METRICS of a judge: a ratio with the upper end of its difference from chance, and agreement with its lower."""
    about = {"judge": "mine", "protocol": "score-5", "pair_protocol": "compare", "score_rule": "expected"}
    conflict = about | {"verdict_rule": "normalised", "tolerance": 0.0, "cases": 40}
    circle = {"judge": "mine", "protocol": "compare", "verdict_rule": "normalised", "tolerance": 0.0, "k": 3}
    circle |= {"cases": 40}
    rows = []
    for like, metric, (value, over) in ((conflict, "conflict_ratio", cr), (circle, "non_transitivity_ratio", ntr)):
        rows.append(like | {"metric": metric, "value": value, "low": value - 0.1, "high": value + 0.1})
        rows.append(like | {"metric": f"chance_{metric}", "value": value + 0.05})
        over_chance = {"metric": f"{metric}_minus_chance", "value": over - 0.01, "low": over - 0.02, "high": over}
        rows.append(like | over_chance)
    agreed = {name: circle[name] for name in ("judge", "protocol", "verdict_rule", "tolerance", "cases")}
    value, low = decisive
    return [*rows, agreed | {"metric": "agreement_pair_decisive", "value": value, "low": low, "high": 0.9}]


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ({}, "mine was not audited; it beats chance in all that was measured: "),
        ({"cr": (0.3, 0.01)}, "mine was not audited, and it does not beat chance in all that was measured: "),
        (
            {"cr": (0.3, 0.01), "ntr": (0.1, 0.01), "decisive": (0.55, 0.5)},
            "mine was not audited, and nothing shows that it beats chance: ",
        ),
    ],
)
def test_an_unaudited_judge_is_only_as_good_as_its_intervals_show(which, says):
    _, _, trusted = told(board(("a", 1, 1, 1), ("b", 2, 2, 2)), metrics=measured(**which))
    assert trusted.startswith(says)
    assert "its scores and verdicts conflict in 30.0 % of pairs (chance: 35.0 %)" in trusted
    assert "its verdicts contradict each other in 10.0 % of subsets of 3 answers (chance: 15.0 %)" in trusted


CARD = {"verdict": "WARN", "gates": [], "figures": [], "items": 1, "passages": 1, "benchmarks": {}, "judge": {}}


def test_an_audited_judge_has_its_verdict_and_a_card_of_another_judge_is_doubted():
    identity = {"model": "m", "revision": "1", "precision": "p"}
    card = CARD | {"judge": {"name": "mine", "identity": identity}}
    same = {"judges": {"mine": identity}}
    _, _, trusted = told(board(("a", 1, 1, 1)), audits={"mine": card}, manifest=same)
    assert trusted.startswith("The audit of mine says WARN: at least one gate")
    assert "another judge" not in trusted
    other = {"judges": {"mine": identity | {"revision": "2"}}}
    _, _, trusted = told(board(("a", 1, 1, 1)), audits={"mine": card}, manifest=other)
    assert trusted.endswith("but the card may be of another judge.")
    _, _, trusted = told(board(("a", 1, 1, 1)), table(GAMES), audits={"mine": card}, manifest=same)
    assert trusted.startswith("mine: audit WARN; yours: not audited, nothing here can be held against chance.")


def test_the_counts_of_the_sentences_are_those_of_standings():
    apart = [*board(("a", 1, 1, 1), ("b", 2, 2, 2)), *board(("c", 1, 1, 2), ("d", 2, 1, 2), component=2)]
    found = standings(inputs(apart))
    assert (found["leaderboards"], found["ranked"], found["sure"]) == (1, 2, 1)
    assert [(g["models"], g["leaders"], g["rivals"]) for g in found["groups"]] == [(2, 1, 0), (2, 1, 1)]


def test_a_judged_run_is_summed_up_with_the_numbers_of_its_tables():
    run = world.inputs(judges=world.JUDGES[:1], scales=world.SCALES[:1], comparisons=world.COMPARISONS[:1])
    first = run.ratings.filter(pl.col("category").is_null(), rule="davidson").sort("rank").row(0, named=True)
    who, sure, trusted = summary(run)
    assert first["rating"] in who.says.values
    verb = "leads the" if first["rank_high"] == 1 else "comes first of"
    assert str(who.says).startswith(f"{first['model']} {verb} 4 models")
    assert {first["low"], first["high"]} <= set(sure.says.values)
    assert "not audited" in trusted.says
    nothing = replace(run, metrics=pl.DataFrame(schema=COLUMNS))
    assert "neither its consistency" in summary(nothing)[2].says

"""Rewards: a judge's whole distribution about a completion as one number, for training with reinforcement learning.

`score` is the expected score, `anchor` the order-debiased probability of beating a reference, `group` the mean of that
over a group (GRPO). A completion that cannot be judged has no reward and a status that says why, never 0.
"""

import asyncio
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from trustjudge_ray.analysis.scoring import scores
from trustjudge_ray.analysis.verdicts import mean_probabilities, order_by_order, outcomes, pairs_of, rule_status
from trustjudge_ray.judging import base
from trustjudge_ray.judging.plan import Spec, spec
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.rewards_config import RewardConfig, reward_faults
from trustjudge_ray.schema import JUDGMENTS, from_rows
from trustjudge_ray.training.reward_tasks import (
    REFERENCE,
    Asked,
    Key,
    Place,
    asked,
    keys_of,
    mode_of,
    refuse_unreadable,
)
from trustjudge_ray.training.reward_tasks import RewardError as RewardError
from trustjudge_ray.training.reward_tasks import RewardRequest as RewardRequest

_KINDS: Final = {"score_protocol": "score", "pair_protocol": "compare"}
"""Of the settings that name a protocol the kind that it must be of."""
_NAMED: Final = {"score": "score_protocol", "anchor": "pair_protocol", "group": "pair_protocol"}
"""Of each mode the setting that names its protocol."""
_TEXTS: Final = ("rationale", "thinking", "output")
"""Columns of a judgment that hold what the judge wrote."""
_FLIPPED: Final = {"AB": "BA", "BA": "AB"}


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one completion.

    Attributes:
        value: None where it could not be judged.
        status: `ok`, or why there is no value: a judgment's status (`empty_response`, `engine_error` …),
            `no_reference` (mode `anchor` without one), `alone_in_group` (with nothing to compare with: no other
            completion, or only empty ones).
        calls: judgments that the judge was asked for it. One that several requests of a batch rest on, such as the
            comparison of two of a group, counts for the first, so that the calls of a batch add up.
        details: of a score `score` (in points), `label_mass`, `entropy` (nats); of pairs `p_win`, `p_tie`, `label_mass`
            (of the order with less), `order_effect` (P(the first shown wins) − P(the second does), both orders; absent
            with one), `agree` (share of pairs whose orders have the same likeliest outcome), and in a group `opponents`
            (readable ones, copies included) of how many `asked`. `cut` (1) where a text did not fit the judge's context
            and was cut; absent elsewhere.
    """

    value: float | None
    status: str
    calls: int = 0
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        """Whether no failure is in it: there is a value, and in a group all opponents that were asked for were read."""
        return self.value is not None and self.details.get("opponents") == self.details.get("asked")


@dataclass(frozen=True, slots=True)
class Pair:
    """One compared pair after its orders. `p_win` is about response a; NaN where `status` says that there is none."""

    p_win: float
    status: str
    details: Mapping[str, float]

    def of(self, first: bool) -> float:
        """The win probability of response a, or of response b."""
        return self.p_win if first else 1 - self.p_win


class TrustJudgeReward:
    """Rewards completions with a judge. May be called from several threads; the judge is asked by one at a time."""

    def __init__(
        self,
        settings: RewardConfig,
        judge: base.Judge,
        protocols: Mapping[str, Protocol],
        *,
        name: str = "judge",
        identity: Mapping[str, Any] | None = None,
        temperature: float = 0.0,
    ) -> None:
        """`protocols` by the names that `settings` gives them; `judge` was built with them.

        Args:
            name, identity, temperature: what the judge is called, what its engine says decides its answers, and at
                which temperature `emitted` is drawn: with those of a run, tasks have the ids and seeds of the run.

        Raises:
            RewardError: a setting makes no sense, or a protocol is missing or of another kind.
        """
        faults = reward_faults(settings)
        if faults:
            raise RewardError(faults[0])
        self.settings = settings
        self._judge, self._temperature = judge, temperature
        chosen = {kind: _protocol(settings, setting, kind, protocols) for setting, kind in kinds_of(settings).items()}
        self._protocols = {protocol.name: protocol for protocol in chosen.values()}
        self._specs: dict[str, Spec] = {
            kind: spec(name, dict(identity or {}), protocol, temperature) for kind, protocol in chosen.items()
        }
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._turn = threading.Lock()
        self._gathered = _Gathering(self.rewards, settings.gather_seconds)
        self._numbers = itertools.count()

    def rewards(self, requests: Sequence[RewardRequest]) -> list[Reward]:
        """A reward for each request, in order. The judge is asked at most once, for all that is not known.

        Completions of one conversation are a group, of those that name a group each of the same name.

        Raises:
            RewardError: a text is none, or there is no message: names the request and its field.
            base.JudgeGone, base.JudgeError: the judge itself is gone or cannot be used.
        """
        requests = list(requests)
        if not requests:
            return []
        refuse_unreadable(requests)
        with self._turn:
            wanted = asked(requests, self.settings, self._specs)
            judgments, fresh = self._judged(wanted.tasks)
        return _Rule(wanted, judgments, self._protocols, self.settings).rewards(fresh)

    async def arewards(self, requests: Sequence[RewardRequest]) -> list[Reward]:
        """The same in a worker thread. Calls that come within `gather_seconds`, or while the judge is busy, are judged
        as one batch; each has groups of its own, so that no reward hangs on who else asked at the time. An exception
        reaches all of a batch."""
        requests = list(requests)
        refuse_unreadable(requests)
        mine = f"\0call {next(self._numbers)}"
        own = [
            replace(r, group=f"{mine}\0{r.group or ''}") if mode_of(r, self.settings) == "group" else r
            for r in requests
        ]
        return await asyncio.wrap_future(self._gathered.submit(own))

    def _judged(self, tasks: pa.Table) -> tuple[pa.Table, set[str]]:
        """JUDGMENTS of all tasks, and the ids of those that the judge was asked for."""
        known = pc.is_valid(tasks["status"])
        found = [base.preset_judgments(tasks.filter(known))]
        open_tasks = tasks.filter(pc.invert(known))
        ids = open_tasks["task_id"].to_pylist()
        kept = {task for task in ids if task in self._kept}
        for task in kept:
            self._kept.move_to_end(task)
        found.append(from_rows([self._kept[task] for task in ids if task in kept], JUDGMENTS))
        asking = open_tasks.filter(pa.array([task not in kept for task in ids], pa.bool_()))
        if len(asking):
            readings = self._judge.judge(asking)
            judged = base.judgments(asking, readings, self._protocols, self._temperature)
            self._keep(judged)
            found.append(judged)
        return pa.concat_tables(found), set(ids) - kept

    def _keep(self, judged: pa.Table) -> None:
        """Keep what was judged, without its texts, which no reward rests on; a failure may not happen again, and is not
        kept."""
        for row in judged.filter(pc.equal(judged["status"], "ok")).to_pylist() if self.settings.cache else []:
            self._kept[row["task_id"]] = row | dict.fromkeys(_TEXTS)
        while len(self._kept) > self.settings.cache:
            self._kept.popitem(last=False)


class _Rule:
    """From the judgments of a batch to its rewards."""

    def __init__(
        self, wanted: Asked, judgments: pa.Table, protocols: dict[str, Protocol], settings: RewardConfig
    ) -> None:
        self._wanted, self._settings = wanted, settings
        self._compared = [_by_response(keys) for _, keys in wanted.groups]
        self._ids: dict[Key, list[str]] = {}
        self._cut: set[Key] = set()
        columns = (judgments[name].to_pylist() for name in ("task_id", "truncated"))
        for key, task, cut in zip(keys_of(judgments), *columns, strict=True):
            self._ids.setdefault(key, []).append(task)
            if cut:
                self._cut.add(key)
        frame = pl.DataFrame(judgments)
        kinds = frame["kind"].unique()
        self._scores = _scores(frame, protocols, settings) if "score" in kinds else {}
        self._pairs = read_pairs(frame, settings.both_orders, settings.dead_zone) if "compare" in kinds else {}

    def rewards(self, fresh: set[str]) -> list[Reward]:
        """The rewards, with the tasks in `fresh` counted where they are first needed."""
        left, found = set(fresh), []
        for place in self._wanted.places:
            keys = self._keys(place)
            mine = {task for key in keys for task in self._ids.get(key, ())} & left
            left -= mine
            reward = self._reward(place, keys)
            cut = {"cut": 1.0} if not self._cut.isdisjoint(keys) else {}
            found.append(replace(reward, calls=len(mine), details={**reward.details, **cut}))
        return found

    def _keys(self, place: Place) -> list[Key]:
        """What a request's reward rests on."""
        if place.mode == "score":
            return [(place.question, place.response, None)]
        if place.group is None:
            return [(place.question, *_ordered(place.response, REFERENCE))]
        return self._compared[place.group].get(place.response, [])

    def _reward(self, place: Place, keys: list[Key]) -> Reward:
        if place.mode == "score":
            return self._scores[keys[0]]
        if place.group is not None:
            return self._group(place, keys)
        pair = self._pairs.get(keys[0])
        if pair is None:
            return Reward(None, "no_reference")
        if pair.status != "ok":
            return Reward(None, pair.status)
        value = pair.of(keys[0][1] == place.response)
        return Reward(value, "ok", details={"p_win": value} | dict(pair.details))

    def _group(self, place: Place, keys: list[Key]) -> Reward:
        """The mean over readable opponents, each as often as it is in the group; ½ against copies of itself.

        Where opponents are drawn, copies count by the share that was drawn, so that they weigh no more than in the
        whole group. No value where others are in the group and none of them could be read.
        """
        assert place.group is not None
        counts, _ = self._wanted.groups[place.group]
        if place.empty:
            return Reward(None, "empty_response")
        copies = counts[place.response] - 1
        others = sum(counts.values()) - copies - 1
        if not others and not copies:
            return Reward(None, "alone_in_group")
        weights = {key: counts[_other(key, place.response)] for key in keys}
        read = {key: self._pairs[key] for key in keys if self._pairs[key].status == "ok"}
        if others and not read:
            return Reward(None, self._failure(keys), details={"opponents": 0.0, "asked": float(sum(weights.values()))})
        share = sum(weights.values()) / others if others else 1.0
        weighed: list[tuple[float, float, Mapping[str, float]]]
        weighed = [(pair.of(key[1] == place.response), weights[key], pair.details) for key, pair in read.items()]
        weighed += [(0.5, share * copies, {"p_tie": 1.0})] if copies else []
        value = _mean([(win, weight) for win, weight, _ in weighed])
        details = {"p_win": value, "opponents": float(sum(weights[key] for key in read) + copies)}
        details["asked"] = float(sum(weights.values()) + copies)
        for name in ("p_tie", "label_mass", "order_effect", "agree"):
            some = [(told[name], weight) for _, weight, told in weighed if name in told]
            details |= {name: _mean(some)} if some else {}
        return Reward(value, "ok", details=details)

    def _failure(self, keys: list[Key]) -> str:
        """Why nothing of a group could be read: the commonest status of its pairs."""
        told = [self._pairs[key].status for key in keys]
        return max(sorted(set(told)), key=told.count)


def read_pairs(judgments: pl.DataFrame, both_orders: bool, dead_zone: float) -> dict[Key, Pair]:
    """The normalised verdict of every compared pair: p = P(a wins) + P(tie)/2 after both orders.

    Identical texts are a certain tie and "ok". With one order its distribution stands for both.
    """
    compared = judgments.filter(pl.col("kind") == "compare")
    if not both_orders:
        twins = compared.with_columns(order=pl.col("order").replace_strict(_FLIPPED, return_dtype=pl.String))
        compared = pl.concat([compared, twins])
    pairs = pairs_of(compared)
    mean = mean_probabilities(pairs)
    verdict = outcomes(pairs, "normalised", 0.0)
    status = pairs.named(rule_status(pairs, "normalised", verdict)).replace({"identical": "ok"})
    orders = order_by_order(pairs)
    agree = orders.outcomes[:, 0] == orders.outcomes[:, 1]
    p = mean[:, 0] + mean[:, 2] / 2
    p = np.where(np.abs(p - 0.5) < dead_zone, 0.5, p)
    keys = pairs.keys.select("question_id", "response_a", "response_b").rows()
    found: dict[Key, Pair] = {}
    for i, (key, told) in enumerate(zip(keys, status.to_list(), strict=True)):
        details = {"p_tie": float(mean[i, 2])}
        if told == "ok" and not np.isnan(orders.label_mass[i]):
            details["label_mass"] = float(orders.label_mass[i])
            if both_orders:
                details["order_effect"] = float(orders.wins[i, 0] - orders.wins[i, 1])
                details["agree"] = float(agree[i])
        found[key] = Pair(float(p[i]), told, details)
    return found


def _scores(judgments: pl.DataFrame, protocols: dict[str, Protocol], settings: RewardConfig) -> dict[Key, Reward]:
    """The reward of every response that was scored."""
    table = scores(judgments, protocols).filter(pl.col("rule") == settings.score_rule)
    found: dict[Key, Reward] = {}
    for row in table.iter_rows(named=True):
        key, points = (row["question_id"], row["response_id"], None), row["score"]
        if points is None:
            found[key] = Reward(None, row["status"])
            continue
        values = protocols[row["protocol"]].values
        unit = (points - min(values)) / (max(values) - min(values))
        details = {"score": points, "label_mass": row["label_mass"], "entropy": row["entropy"]}
        found[key] = Reward(unit if settings.scale == "unit" else points, "ok", details=details)
    return found


class _Gathering:
    """Brings concurrent calls together into batches, which one thread works off one after the other."""

    def __init__(self, answer: Callable[[Sequence[RewardRequest]], list[Reward]], seconds: float) -> None:
        self._answer, self._seconds = answer, seconds
        self._lock, self._pause = threading.Lock(), threading.Event()
        self._waiting: list[tuple[Sequence[RewardRequest], Future[list[Reward]]]] = []
        self._working = False

    def submit(self, requests: Sequence[RewardRequest]) -> "Future[list[Reward]]":
        """The rewards of these requests, when their batch is judged."""
        future: Future[list[Reward]] = Future()
        with self._lock:
            self._waiting.append((requests, future))
            start, self._working = not self._working, True
        if start:
            threading.Thread(target=self._work, name="rewards", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            self._pause.wait(self._seconds)
            with self._lock:
                batch, self._waiting = self._waiting, []
                if not batch:
                    self._working = False
                    return
            self._give(batch)

    def _give(self, batch: Sequence[tuple[Sequence[RewardRequest], "Future[list[Reward]]"]]) -> None:
        live = [(requests, future) for requests, future in batch if future.set_running_or_notify_cancel()]
        try:
            found = iter(self._answer([request for requests, _ in live for request in requests]))
        except BaseException as error:  # whatever it is: who waits must not wait for ever
            for _, future in live:
                future.set_exception(error)
            return
        for requests, future in live:
            future.set_result(list(itertools.islice(found, len(requests))))


def kinds_of(settings: RewardConfig) -> dict[str, str]:
    """The settings whose protocols are needed, each with the kind that it must be of."""
    modes = [settings.mode] if settings.mode else ["score", "anchor"]
    return {_NAMED[mode]: _KINDS[_NAMED[mode]] for mode in modes}


def _protocol(settings: RewardConfig, setting: str, kind: str, protocols: Mapping[str, Protocol]) -> Protocol:
    name = getattr(settings, setting)
    if name not in protocols:
        raise RewardError(f"rewards.{setting}: got {name!r}; one of the judge's protocols {sorted(protocols)}")
    if protocols[name].kind != kind:
        raise RewardError(f"rewards.{setting}: {name!r} is of kind {protocols[name].kind}; one of kind {kind}")
    return protocols[name]


def _by_response(keys: Iterable[Key]) -> dict[str, list[Key]]:
    """Of each response of a group the pairs that it is in, in their order."""
    found: dict[str, list[Key]] = {}
    for key in keys:
        for response in key[1:]:
            found.setdefault(str(response), []).append(key)
    return found


def _ordered(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first < second else (second, first)


def _other(key: Key, response: str) -> str:
    return str(key[2] if key[1] == response else key[1])


def _mean(weighed: Sequence[tuple[float, float]]) -> float:
    return float(sum(value * weight for value, weight in weighed) / sum(weight for _, weight in weighed))

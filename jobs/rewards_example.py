"""A tiny policy learns from a judge whose mind is known: `python jobs/rewards_example.py [--seeds N] [--plot X.svg]`.

What it shows: trained on TrustJudge rewards the policy gets better beyond the interval of its mean reward; beside it,
from the same seeds, trained on the labels that the judge emits. Nothing is a language model here. The policy is a
softmax over candidate answers, with weights that all questions share, and takes GRPO's steps: samples, rewards
normalised within a question, the exact gradient of their log-probabilities. The judge is the scripted one: it knows a
quality, misperceives it a little, and most of the candidates lie within the range of one label.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from trustjudge_ray.judging import protocols, scripted
from trustjudge_ray.report.drawing import svg
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.training.reward_tasks import REFERENCE, response_id
from trustjudge_ray.training.rewards import RewardRequest, TrustJudgeReward

Floats = NDArray[np.float64]
PARTS: Final = {"answer": 0.10, "reason": 0.07, "example": 0.05, "limit": 0.03, "aside": -0.05}
"""What a sentence of each kind adds to an answer's quality, which begins at BASE."""
BASE, NOISE, POSITION_BIAS = 0.60, 0.05, 0.20
"""The judge's: the quality of nothing said, what it misperceives (standard deviation, anew for each answer and seed),
and its weight for what is shown first."""
STEPS, SAMPLES, RATE = 50, 8, 0.3

TEXTS: Final = {
    "explain": [
        (
            "Why does bread rise?",
            "Yeast makes gas in the dough, and the gas lifts it.",
            "It feeds on sugar, and the stretchy dough keeps the bubbles in.",
            "A dough left in a warm kitchen doubles within an hour.",
            "Flat breads do without.",
            "My neighbour owns a blue bicycle.",
        ),
        (
            "Why are there seasons?",
            "The Earth's axis is tilted, so each half leans to the sun for a part of the year.",
            "Light that falls steeply warms more, and the days are longer then.",
            "In June the north has summer and the south winter.",
            "Near the equator little of it is felt.",
            "Calendars make a fine present.",
        ),
        (
            "Why does ice float?",
            "Ice is less dense than water.",
            "Frozen water takes up more room because its molecules stand further apart.",
            "A bottle forgotten in the freezer bursts.",
            "Most other substances sink when they freeze.",
            "Lemons came to Europe long ago.",
        ),
    ],
    "advise": [
        (
            "How do I keep houseplants alive?",
            "Water only when the soil is dry, and give them light.",
            "Roots that stand in water rot for want of air.",
            "Push a finger into the pot before each watering.",
            "Cacti want far less.",
            "Windows were once taxed.",
        ),
        (
            "How can I remember names?",
            "Say the name aloud at once and tie it to something that you see.",
            "What has a picture is easier to find again.",
            "Think of a rose in the hair of a Rosa.",
            "It fails where you never heard the name.",
            "Some rivers flow north.",
        ),
        (
            "How do I learn to cook?",
            "Cook three simple dishes again and again.",
            "Repeating them trains timing and taste.",
            "Begin with rice, an omelette and a tomato sauce.",
            "Baking asks for scales as well.",
            "The piano has black keys too.",
        ),
    ],
    "choose": [
        (
            "Train or plane for three hundred kilometres?",
            "Take the train.",
            "From door to door it is as fast, and it needs less fuel.",
            "Going to the airport and waiting there take two hours.",
            "Across water there may be no train.",
            "Whales sing in the deep.",
        ),
        (
            "Paper or a screen for long texts?",
            "Read long texts on paper.",
            "Most people remember more of them, and their eyes tire less.",
            "Mark a page and you find it again by its place.",
            "A search is quicker on a screen.",
            "Violins are made of maple.",
        ),
        (
            "Rent or buy a drill?",
            "Rent it.",
            "Most drills run for minutes in their lives.",
            "Two holes a year cost less than the cheapest machine.",
            "Who builds a house had better own one.",
            "Owls turn their heads very far.",
        ),
    ],
}
"""By task: a question and its sentences in the order of PARTS. The last question of each task is for validation."""

_SCORE: Final = RewardConfig(mode="score", score_protocol="score-5")
SETTINGS: Final[dict[str, tuple[RewardConfig, float]]] = {
    "discrete": (replace(_SCORE, score_rule="baseline"), 0.0),
    "discrete, sampled": (replace(_SCORE, score_rule="baseline"), 1.0),
    "TrustJudge score": (_SCORE, 0.0),
    "TrustJudge group": (RewardConfig(mode="group", pair_protocol="compare"), 0.0),
}
"""What the policy is trained on, and the temperature at which the judge emits its label."""
PROTOCOLS: Final = {name: protocols.load(name) for name in ("score-5", "compare")}


@dataclass(frozen=True, slots=True)
class Question:
    """A question with all its candidate answers: every choice of its sentences but none at all."""

    task: str
    messages: tuple[dict[str, str], ...]
    answers: tuple[str, ...]


CHOICES: Final[Floats] = np.array([c for c in product((0.0, 1.0), repeat=len(PARTS)) if any(c)])
"""(candidates, parts): which sentences each candidate has."""
QUALITY: Final[Floats] = BASE + CHOICES @ np.array(list(PARTS.values()))


def questions(validation: bool) -> list[Question]:
    """The questions that are trained on, or those that are held out."""
    return [
        Question(task, ({"role": "user", "content": asked},), tuple(_answer(sentences, choice) for choice in CHOICES))
        for task, rows in TEXTS.items()
        for asked, *sentences in (rows[-1:] if validation else rows[:-1])
    ]


def _answer(sentences: Sequence[str], choice: Floats) -> str:
    return " ".join(sentence for sentence, has in zip(sentences, choice, strict=True) if has)


def rewarder(settings: RewardConfig, temperature: float, seed: int) -> TrustJudgeReward:
    """Rewards of the planted judge; with another seed it misperceives other answers."""
    planted: dict[str, Any] = {"noise": NOISE, "position_bias": POSITION_BIAS}
    planted["quality"] = {REFERENCE: BASE} | {
        response_id(text): float(quality)
        for question in questions(False) + questions(True)
        for text, quality in zip(question.answers, QUALITY, strict=True)
    }
    identity = scripted.identity(planted) | {"seed": seed}
    judge = scripted.ScriptedJudge(planted, PROTOCOLS)
    return TrustJudgeReward(settings, judge, PROTOCOLS, name="scripted", identity=identity, temperature=temperature)


def trained(settings: RewardConfig, temperature: float, seed: int, note: Callable[[int, Floats, float], None]) -> None:
    """Train a policy; `note` is told step, policy and mean reward of the step's samples."""
    rng, weights = np.random.default_rng(seed), np.zeros(len(PARTS))
    rewards, asked = rewarder(settings, temperature, seed), questions(False)
    for step in range(STEPS + 1):
        p = policy(weights)
        drawn = [rng.choice(len(p), size=SAMPLES, p=p) for _ in asked]
        requests = [
            RewardRequest(question.messages, question.answers[i])
            for question, mine in zip(asked, drawn, strict=True)
            for i in mine
        ]
        values = np.array([r.value for r in rewards.rewards(requests)], dtype=float).reshape(len(asked), SAMPLES)
        note(step, p, float(values.mean()))
        spread = values.std(axis=1, keepdims=True)
        advantage = np.where(spread > 1e-9, (values - values.mean(axis=1, keepdims=True)) / (spread + 1e-4), 0.0)
        gradient = CHOICES[np.array(drawn)] - p @ CHOICES
        weights = weights + RATE * (advantage[:, :, None] * gradient).mean(axis=(0, 1))


def policy(weights: Floats) -> Floats:
    """P of each candidate, the same for every question."""
    logits = CHOICES @ weights
    p = np.exp(logits - logits.max())
    return p / p.sum()


@dataclass(frozen=True, slots=True)
class Curves:
    """Of one reward, over seeds: (seeds, steps + 1) mean training reward and mean quality, and the final policies."""

    reward: Floats
    quality: Floats
    final: Floats

    def ends(self) -> tuple[Floats, Floats]:
        """(seeds,) mean training reward of the first five and of the last five steps."""
        return self.reward[:, :5].mean(axis=1), self.reward[:, -5:].mean(axis=1)


def curves(settings: RewardConfig, temperature: float, seeds: int) -> Curves:
    """Train once for each seed."""
    reward, quality = np.zeros((seeds, STEPS + 1)), np.zeros((seeds, STEPS + 1))
    final = np.zeros((seeds, len(CHOICES)))
    for seed in range(seeds):

        def note(step: int, p: Floats, mean: float, seed: int = seed) -> None:
            reward[seed, step], quality[seed, step], final[seed] = mean, p @ QUALITY, p

        trained(settings, temperature, seed, note)
    return Curves(reward, quality, final)


def validation(seeds: int) -> dict[str, Floats]:
    """By protocol, (seeds, questions, candidates): the reward of every candidate for the held-out questions."""
    found = {}
    for name in ("discrete", "TrustJudge score"):
        settings, temperature = SETTINGS[name]
        table = []
        for seed in range(seeds):
            held = questions(True)
            requests = [RewardRequest(question.messages, text) for question in held for text in question.answers]
            values = [reward.value for reward in rewarder(settings, temperature, seed).rewards(requests)]
            table.append(np.array(values, dtype=float).reshape(len(held), -1))
        found[name] = np.array(table)
    return found


def half_width(values: Floats) -> Floats:
    """Half the width of the 95 % interval of a mean over seeds, the first axis (Student's t)."""
    return stdtrit(len(values) - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(len(values))


def interval(values: Floats) -> str:
    """Mean of the seeds and half the width of its interval, in words."""
    return f"{values.mean():.3f} ± {half_width(values):.3f}"


def learning_table(by_reward: dict[str, Curves]) -> list[list[str]]:
    """Whether the mean training reward rises beyond its interval, and the quality that the judge knows; the last column
    is a difference of equal seeds. A group's mean reward is ½ whatever is learnt."""
    head = ["trained on", "training reward, first 5 steps", "last 5 steps", "rise"]
    rows = [[*head, "true quality at the end", "that less the first row's"]]
    other = next(iter(by_reward.values())).quality[:, -1]
    for name, run in by_reward.items():
        first, last = run.ends()
        quality = run.quality[:, -1]
        told = [interval(values) for values in (first, last, last - first, quality)]
        rows.append([name, *told, interval(quality - other) if len(rows) > 1 else ""])
    return rows


def authors_table(by_reward: dict[str, Curves], held: dict[str, Floats]) -> list[list[str]]:
    """The validation reward of each policy under both protocols, and by task under TrustJudge's."""
    tasks = list(TEXTS)
    rows = [["policy", "discrete protocol", "TrustJudge protocol", *(f"TrustJudge, {task}" for task in tasks)]]
    seeds = len(held["discrete"])
    policies = {"original": np.full((seeds, len(CHOICES)), 1 / len(CHOICES))}
    policies |= {f"trained on {name}": run.final for name, run in by_reward.items()}
    for name, p in policies.items():
        expected = {protocol: np.einsum("sqc,sc->sq", table, p) for protocol, table in held.items()}
        both = [interval(expected[protocol].mean(axis=1)) for protocol in ("discrete", "TrustJudge score")]
        rows.append([name, *both, *(interval(expected["TrustJudge score"][:, i]) for i in range(len(tasks)))])
    return rows


def chart(by_reward: dict[str, Curves]) -> str:
    """True quality over training, mean and 95 % interval over seeds, as SVG."""
    import altair as alt

    rows = []
    for name, run in by_reward.items():
        mean = run.quality.mean(axis=0)
        half = half_width(run.quality)
        rows += [
            {"step": step, "quality": float(mean[step]), "low": float(mean[step] - half[step])}
            | {"high": float(mean[step] + half[step]), "trained on": name}
            for step in range(STEPS + 1)
        ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("step:Q"), color=alt.Color("trained on:N", sort=list(by_reward))
    )
    scale = alt.Scale(zero=False)
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title="mean true quality", scale=scale), y2="high:Q")
    line = base.mark_line().encode(y=alt.Y("quality:Q", scale=scale))
    return svg((band + line).properties(width=520, height=300))


def markdown(rows: list[list[str]]) -> str:
    """Rows as a table; the first is its head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def main() -> None:
    """Train, print the tables, draw the plot if asked; the last line is JSON."""
    parser = argparse.ArgumentParser(description="A tiny policy learns from a scripted judge.")
    parser.add_argument("--seeds", type=int, default=8, help="how often each training is repeated (2 or more)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw true quality over training")
    given = parser.parse_args()
    if given.seeds < 2:
        parser.error(f"--seeds: got {given.seeds}; 2 or more, or there is no interval")
    by_reward = {name: curves(*settings, given.seeds) for name, settings in SETTINGS.items()}
    print(f"Mean and 95 % interval over {given.seeds} seeds, {STEPS} steps of {SAMPLES} samples for 6 questions.\n")
    print(markdown(learning_table(by_reward)), end="\n\n")
    print(markdown(authors_table(by_reward, validation(given.seeds))), end="\n\n")
    if given.plot:
        given.plot.parent.mkdir(parents=True, exist_ok=True)
        given.plot.write_text(chart(by_reward), encoding="utf-8")
        print(f"Plot: {given.plot}\n")
    rises = {name: last - first for name, run in by_reward.items() for first, last in [run.ends()]}
    figures = {
        name: {"rise": float(rises[name].mean()), "half_width": float(half_width(rises[name]))}
        | {"quality": float(run.quality[:, -1].mean())}
        for name, run in by_reward.items()
    }
    print(json.dumps({"example": "rewards", "seeds": given.seeds, "trained_on": figures}))


if __name__ == "__main__":
    main()

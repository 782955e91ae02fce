"""Davidson's model of paired comparisons with ties, on soft outcomes, with an order effect.

With d = θ_first − θ_second + γ, in natural logarithms:

    P(first better) ∝ exp(d/2),   P(second better) ∝ exp(−d/2),   P(tie) ∝ ν.

Davidson, JASA 65 (1970) 317-328, doi:10.1080/01621459.1970.10481082; the order effect is that of Davidson and
Beaver, Biometrics 33 (1977) 693-702, doi:10.2307/2529467 (theirs: worths π = exp θ, the second multiplied by
exp(−γ), and ν·exp(−γ/2) for their tie parameter). γ is the log-odds with which the first slot wins between
equals. ν = 0 is Bradley and Terry's model (Biometrika 39, 1952, 324-345, doi:10.2307/2334029).

A soft outcome is a distribution over the three; the likelihood is the multinomial one with probabilities for
counts (a quasi-likelihood), concave in (θ, γ, ln ν). It says nothing true about variance, so the covariance is the
sandwich over questions: games of one question are one observation.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from trustjudge_ray.analysis.connectivity import order_is_bounded, seen_outcomes, ties_are_bounded
from trustjudge_ray.analysis.games import Array, Games, Index, binned

_DENSE = 20_000_000


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model.

    Attributes:
        theta: (models,) log-worths, of mean zero within each group.
        cov: (models, models) question-clustered covariance of theta; NaN with fewer than two questions.
        order_effect, order_effect_se: γ and its standard error; NaN where it was not fitted but taken to be 0.
        log_nu, log_nu_se: ln ν; −inf and NaN where ties are not part of the model.
        questions: how many questions the games come from: the clusters.
        notes: what could not be estimated, in plain words.
    """

    theta: Array
    cov: Array
    order_effect: float
    order_effect_se: float
    log_nu: float
    log_nu_se: float
    questions: int
    converged: bool
    iterations: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Cells:
    """Games summed by ordered pair, and the parameters to fit: θ, then γ if `order`, then ln ν if `ties`."""

    first: Index
    second: Index
    outcome: Array
    models: int
    order: bool
    ties: bool

    @property
    def width(self) -> int:
        return self.models + self.order + self.ties

    def split(self, x: Array) -> tuple[Array, float]:
        """d of every cell, and ln ν."""
        d = x[self.first] - x[self.second] + (x[self.models] if self.order else 0.0)
        return d, float(x[-1]) if self.ties else -np.inf


def fit_davidson(games: Games, group: Index) -> Fit:
    """Fit θ, γ and ν. Games between groups are left out: they are won with probability one in the limit.

    Where the games cannot bound γ (no pair in both orders, or the order explains every outcome) it is 0.
    Where they cannot bound ν (ties only, or ties only between neighbours of a perfect line) ties count as half
    wins and the model is Bradley and Terry's; without any tie ν is 0. `notes` says so.

    Args:
        games: `Games`; at least one row.
        group: (models,) labels from `connectivity.structure`: θ is bounded within each.
    """
    inside = _within(games, group)
    cells = _cells(inside)
    seen = seen_outcomes(cells.outcome)
    notes = []
    order = _both_orders(cells) and order_is_bounded(cells.first, cells.second, seen, cells.models)
    ties = ties_are_bounded(cells.first, cells.second, seen, cells.models)
    if len(cells.first) and not order:
        reason = (
            "explains every outcome" if _both_orders(cells) else "cannot be told: no pair was judged in both orders"
        )
        notes.append(f"the order effect {reason}; it is taken to be 0")
    if not ties and seen[:, 2].any():
        notes.append("the games do not bound the tie parameter; ties count as half wins (Bradley-Terry)")
        inside, order = _halved(inside), order and order_is_bounded(*_seen_halved(cells), cells.models)
    fit = fit_fixed(inside, group, order=order, ties=ties)
    return replace(fit, notes=tuple(notes))


def fit_bradley_terry(games: Games, group: Index) -> Fit:
    """Bradley and Terry's model: ties as half wins, no order effect.

    Its ratings are the fixed point of Elo's updates: every model's points equal its expected points. Elo's own
    sequential updates depend on the order of the games and are not offered.
    """
    return fit_fixed(_halved(_within(games, group)), group, order=False, ties=False)


def fit_fixed(games: Games, group: Index, order: bool, ties: bool, ridge: float = 0.0) -> Fit:
    """Newton's method for given parameters; the caller knows that the games bound them, or gives a ridge
    (a normal prior on θ and γ of precision `ridge`)."""
    cells = replace(_cells(games), order=order, ties=ties)
    x, hessian, iterations, converged = _newton(cells, group, ridge)
    inverse = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
    n = cells.models
    cov = _sandwich(games, cells, x, inverse)
    se = np.sqrt(np.diag(cov))
    return Fit(
        theta=x[:n],
        cov=cov[:n, :n],
        order_effect=float(x[n]) if order else float("nan"),
        order_effect_se=float(se[n]) if order else float("nan"),
        log_nu=float(x[-1]) if ties else float("-inf"),
        log_nu_se=float(se[-1]) if ties else float("nan"),
        questions=len(np.unique(games.question)),
        converged=converged,
        iterations=iterations,
    )


def _within(games: Games, group: Index) -> Games:
    keep = group[games.first] == group[games.second]
    if keep.all():
        return games
    return replace(
        games,
        question=games.question[keep],
        first=games.first[keep],
        second=games.second[keep],
        outcome=games.outcome[keep],
    )


def _halved(games: Games) -> Games:
    half = games.outcome[:, 2] / 2
    points = np.stack([games.outcome[:, 0] + half, games.outcome[:, 1] + half, np.zeros_like(half)], axis=1)
    return replace(games, outcome=points)


def _cells(games: Games) -> _Cells:
    n = len(games.models)
    key = games.first * n + games.second
    size = n * n
    outcome = np.stack([binned(key, games.outcome[:, o], size) for o in range(3)], axis=1)
    played = np.flatnonzero(outcome.sum(1) > 0)
    return _Cells(played // n, played % n, outcome[played], n, False, False)


def _both_orders(cells: _Cells) -> bool:
    pairs = set(zip(cells.first.tolist(), cells.second.tolist(), strict=True))
    return any((j, i) in pairs for i, j in pairs)


def _seen_halved(cells: _Cells) -> tuple[Index, Index, NDArray[np.bool_]]:
    seen = seen_outcomes(cells.outcome)
    decisive = seen[:, :2] | seen[:, 2:]
    return cells.first, cells.second, np.concatenate([decisive, np.zeros_like(seen[:, 2:])], axis=1)


def _probabilities(d: Array, log_nu: float) -> Array:
    """(cells, 3) probabilities of first, second and tie."""
    logits = np.stack([d / 2, -d / 2, np.full_like(d, log_nu)], axis=1)
    weight = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


def _log_likelihood(cells: _Cells, x: Array, ridge: float) -> float:
    d, log_nu = cells.split(x)
    logits = np.stack([d / 2, -d / 2, np.full_like(d, log_nu if cells.ties else 0.0)], axis=1)
    top = logits[:, : 3 if cells.ties else 2].max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - top)[:, : 3 if cells.ties else 2].sum(axis=1, keepdims=True)) + top
    fit = float((cells.outcome * (logits - total))[:, : 3 if cells.ties else 2].sum())
    return fit - ridge / 2 * float((x[: cells.models + cells.order] ** 2).sum())


def _newton(cells: _Cells, group: Index, ridge: float) -> tuple[Array, Array, int, bool]:
    """The maximum, the negative Hessian there (with the gauge that fixes each group's mean), steps, success."""
    x = np.zeros(cells.width)
    if cells.ties:
        share = np.clip(cells.outcome[:, 2].sum() / cells.outcome.sum(), 0.01, 0.99)
        x[-1] = np.log(2 * share / (1 - share))
    gauge = np.zeros((cells.width, cells.width))
    gauge[: cells.models, : cells.models] = (group[:, None] == group[None, :]) / np.bincount(group)[group][:, None]
    value = _log_likelihood(cells, x, ridge)
    tolerance = 1e-11 * max(1.0, float(cells.outcome.sum()))
    for iteration in range(1, 201):
        gradient, hessian = _derivatives(cells, x, ridge)
        scale = max(float(np.abs(np.diag(hessian)).mean()), 1e-12)
        hessian = hessian + scale * gauge
        step = np.linalg.solve(hessian, gradient)
        if np.abs(gradient).max(initial=0) <= tolerance or np.abs(step).max(initial=0) < 1e-12:
            return x, hessian, iteration, True
        size = min(1.0, 5.0 / float(np.abs(step).max()))
        while size > 1e-8:
            trial = x + size * step
            reached = _log_likelihood(cells, trial, ridge)
            if reached >= value - 1e-13 * abs(value):  # near the top a step's gain is below what doubles can tell
                break
            size /= 2
        else:
            return x, hessian, iteration, float(np.abs(step).max()) < 1e-6
        x, value = trial, reached
    return x, hessian, iteration, False


def _derivatives(cells: _Cells, x: Array, ridge: float) -> tuple[Array, Array]:
    """Gradient and negative Hessian of the log-likelihood."""
    d, log_nu = cells.split(x)
    p, n = _probabilities(d, log_nu), cells.outcome.sum(1)
    by_d, by_nu = _residuals(cells.outcome, p)
    h_dd, h_dn, h_nn = _curvature(p, n)
    gradient, hessian = np.zeros(cells.width), np.zeros((cells.width, cells.width))
    for at, sign in ((cells.first, 1.0), (cells.second, -1.0)):
        np.add.at(gradient, at, sign * by_d)
        np.add.at(hessian, (at, cells.first), sign * h_dd)
        np.add.at(hessian, (at, cells.second), -sign * h_dd)
        for column, weight, wanted in ((cells.models, h_dd, cells.order), (cells.width - 1, h_dn, cells.ties)):
            if wanted:
                along = binned(at, sign * weight, cells.models)
                hessian[: cells.models, column] += along
                hessian[column, : cells.models] += along
    if cells.order:
        gradient[cells.models], hessian[cells.models, cells.models] = by_d.sum(), h_dd.sum()
    if cells.ties:
        gradient[-1], hessian[-1, -1] = by_nu.sum(), h_nn.sum()
    if cells.order and cells.ties:
        hessian[cells.models, -1] = hessian[-1, cells.models] = h_dn.sum()
    prior = cells.models + cells.order
    gradient[:prior] -= ridge * x[:prior]
    hessian[range(prior), range(prior)] += ridge
    return gradient, hessian


def _curvature(p: Array, n: Array) -> tuple[Array, Array, Array]:
    """The negative second derivatives of rows' log-likelihoods by d, by d and ln ν, and by ln ν."""
    lean = p[:, 0] - p[:, 1]
    return n / 4 * (p[:, 0] + p[:, 1] - lean**2), -n / 2 * lean * p[:, 2], n * p[:, 2] * (1 - p[:, 2])


def _residuals(outcome: Array, p: Array) -> tuple[Array, Array]:
    """The derivatives of rows' log-likelihoods by d and by ln ν."""
    n = outcome.sum(1)
    by_d = ((outcome[:, 0] - outcome[:, 1]) - n * (p[:, 0] - p[:, 1])) / 2
    return by_d, outcome[:, 2] - n * p[:, 2]


def _sandwich(games: Games, cells: _Cells, x: Array, inverse: Array) -> Array:
    """H⁻¹ (Σ_q s_q s_qᵀ) H⁻¹ · Q/(Q−1) with s_q the score of question q, corrected for its leverage.

    A fit leans towards each question that it saw, so scores are too small: s_q becomes (I + H_q H⁻¹) s_q, the first
    step of the jackknife's (I − H_q H⁻¹)⁻¹ s_q. Where every question fits perfectly (ties only, say) the sum is
    zero, which no finite number of questions can show: then the covariance is H⁻¹ as if each question were one game.
    """
    width, asked = cells.width, len(np.unique(games.question))
    if asked < 2:
        return np.full((width, width), np.nan)
    rows = replace(cells, first=games.first, second=games.second, outcome=games.outcome)
    cell = np.searchsorted(cells.first * cells.models + cells.second, games.first * cells.models + games.second)
    expected, n = _probabilities(*cells.split(x)), games.outcome.sum(1)
    by_d, by_nu = _residuals(games.outcome, expected[cell])
    scores = _spread(rows, by_d, by_nu)
    if (games.question[-1] + 1) * width <= _DENSE:
        leaned = question_sums(games.question, *scores, width) @ inverse
        along_d, along_nu = _gather(rows, leaned, games.question)
        h_dd, h_dn, h_nn = (h[cell] * n for h in _curvature(expected, np.ones(len(expected))))
        lean = _spread(rows, h_dd * along_d + h_dn * along_nu, h_dn * along_d + h_nn * along_nu)
        scores = scores[0], [s + t for s, t in zip(scores[1], lean[1], strict=True)]
    meat = outer_sum(games.question, *scores, width) * asked / (asked - 1)
    total = float(games.outcome.sum())
    if np.trace(meat) <= 1e-20 * total:
        return inverse * total / asked
    return inverse @ meat @ inverse


def _spread(rows: _Cells, by_d: Array, by_nu: Array) -> tuple[list[Index | int], list[Array]]:
    """A derivative by d and by ln ν of every row as columns and values of the parameters."""
    columns: list[Index | int] = [rows.first, rows.second]
    values = [by_d, -by_d]
    for column, value, wanted in ((rows.models, by_d, rows.order), (rows.width - 1, by_nu, rows.ties)):
        if wanted:
            columns.append(column)
            values.append(value)
    return columns, values


def _gather(rows: _Cells, table: Array, question: Index) -> tuple[Array, Array]:
    """What a change of the parameters, one for each question, does to d and ln ν of every row."""
    d = table[question, rows.first] - table[question, rows.second]
    if rows.order:
        d = d + table[question, rows.models]
    return d, table[question, -1] if rows.ties else np.zeros_like(d)


def question_sums(question: Index, columns: list[Index | int], values: list[Array], width: int) -> Array:
    """(questions, width): the sums of the values of each question in each column (one for each value, or one)."""
    rows = int(question[-1]) + 1
    table = np.zeros((rows, width))
    for column, value in zip(columns, values, strict=True):
        if isinstance(column, int):
            table[:, column] += binned(question, value, rows)
        else:
            flat = binned(question * width + column, value, rows * width)
            table += flat.reshape(rows, width)
    return table


def outer_sum(question: Index, columns: list[Index | int], values: list[Array], width: int) -> Array:
    """Σ_q u_q u_qᵀ, where u_q[c] sums the values of question q (ascending from 0) in column c."""
    if not len(question):
        return np.zeros((width, width))
    if (question[-1] + 1) * width <= _DENSE:
        dense = question_sums(question, columns, values, width)
        return dense.T @ dense
    full = [np.full(len(question), c) if isinstance(c, int) else c for c in columns]
    at = (np.tile(question, len(columns)), np.concatenate(full))
    sparse = coo_array((np.concatenate(values), at), shape=(int(question[-1]) + 1, width)).tocsr()
    return np.asarray((sparse.T @ sparse).toarray(), dtype=np.float64)


def resampled_theta(games: Games, group: Index, fit: Fit, rounds: int, rng: np.random.Generator) -> Array:
    """(rounds, models) θ refitted to questions drawn with replacement.

    A resample may not bound what the whole bounds, so these fits have a ridge of 0.01 (far below one game).
    """
    inside = _within(games, group)
    order, ties = not np.isnan(fit.order_effect), fit.log_nu > -np.inf
    if not ties:
        inside = _halved(inside)
    found = np.empty((rounds, len(games.models)))
    for r in range(rounds):
        times = np.bincount(rng.integers(games.questions, size=games.questions), minlength=games.questions)
        drawn = replace(inside, outcome=inside.outcome * times[inside.question][:, None])
        found[r] = _newton(replace(_cells(drawn), order=order, ties=ties), group, 0.01)[0][: len(games.models)]
    return found

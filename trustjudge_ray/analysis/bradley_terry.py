"""Davidson's model of paired comparisons with ties, on soft outcomes, with an order effect.

With d = θ_first − θ_second + γ + z·β, in natural logarithms, z covariates of the two answers (see `covariates`):

    P(first better) ∝ exp(d/2),   P(second better) ∝ exp(−d/2),   P(tie) ∝ ν.

Davidson, JASA 65 (1970) 317-328, doi:10.1080/01621459.1970.10481082; the order effect is that of Davidson and
Beaver, Biometrics 33 (1977) 693-702, doi:10.2307/2529467 (theirs: worths π = exp θ, the second multiplied by
exp(−γ), and ν·exp(−γ/2) for their tie parameter). γ is the log-odds with which the first slot wins between
equals. ν = 0 is Bradley and Terry's model (Biometrika 39, 1952, 324-345, doi:10.2307/2334029).

A soft outcome is a distribution over the three; the likelihood is the multinomial one with probabilities for
counts (a quasi-likelihood), concave in (θ, γ, β, ln ν). It says nothing true about variance, so the covariance is the
sandwich over questions: games of one question are one observation.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trustjudge_ray.analysis import clusters
from trustjudge_ray.analysis.clusters import outer_sum, question_parts, question_sums
from trustjudge_ray.analysis.connectivity import order_is_bounded, seen_outcomes, ties_are_bounded
from trustjudge_ray.analysis.games import Array, Games, Index, binned


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model.

    Attributes:
        theta: (models,) log-worths, of mean zero within each group.
        cov: (models, models) question-clustered covariance of theta; NaN with fewer than two questions.
        order_effect, order_effect_se: γ and its standard error; NaN where it was not fitted but taken to be 0.
        coefficients, coefficients_se: β, one for each column of `Games.covariates`; empty without.
        log_nu, log_nu_se: ln ν; −inf and NaN where ties are not part of the model.
        questions: how many questions the games come from: the clusters.
        notes: what could not be estimated, in plain words.
    """

    theta: Array
    cov: Array
    order_effect: float
    order_effect_se: float
    coefficients: Array
    coefficients_se: Array
    log_nu: float
    log_nu_se: float
    questions: int
    converged: bool
    iterations: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Cells:
    """Games summed by ordered pair (with covariates: as they are), and the parameters to fit: θ, then γ if `order`,
    then β, then ln ν if `ties`."""

    first: Index
    second: Index
    outcome: Array
    models: int
    covariates: Array | None = None
    order: bool = False
    ties: bool = False

    @property
    def slopes(self) -> list[tuple[int, Array | float]]:
        """Of γ and β: their place among the parameters, and how much each cell's d rises with them."""
        found: list[tuple[int, Array | float]] = [(self.models, 1.0)] if self.order else []
        if self.covariates is not None:
            start = self.models + self.order
            found += [(start + c, column) for c, column in enumerate(self.covariates.T)]
        return found

    @property
    def width(self) -> int:
        return self.models + len(self.slopes) + self.ties

    def split(self, x: Array) -> tuple[Array, float]:
        """d of every cell, and ln ν."""
        d = x[self.first] - x[self.second]
        for place, factor in self.slopes:
            d = d + x[place] * factor
        return d, float(x[-1]) if self.ties else -np.inf


def fit_davidson(games: Games, group: Index, ridge: float = 0.0) -> Fit:
    """Fit θ, γ, β and ν. Games between groups are left out: they are won with probability one in the limit.

    Where the games cannot bound γ (no pair in both orders, or the order explains every outcome) it is 0.
    Where they cannot bound ν (ties only, or ties only between neighbours of a perfect line) ties count as half
    wins and the model is Bradley and Terry's; without any tie ν is 0. `notes` says so.

    Args:
        games: `Games`; at least one row.
        group: (models,) labels from `connectivity.structure`: θ is bounded within each. With a ridge its components.
        ridge: as in `fit_fixed`.
    """
    inside = _within(games, group)
    cells = _cells(replace(inside, covariates=None))
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
        cells = _cells(replace(inside, covariates=None))
    if inside.covariates is not None:
        cells = _cells(inside)
    fit = _fit(inside, replace(cells, order=order, ties=ties), group, ridge)
    return replace(fit, notes=tuple(notes))


def fit_bradley_terry(games: Games, group: Index, ridge: float = 0.0) -> Fit:
    """Bradley and Terry's model: ties as half wins, no order effect.

    Its ratings are the fixed point of Elo's updates (see `elo`): every model's points equal its expected points.
    """
    return fit_fixed(_halved(_within(games, group)), group, order=False, ties=False, ridge=ridge)


def fit_fixed(games: Games, group: Index, order: bool, ties: bool, ridge: float = 0.0) -> Fit:
    """Newton's method for given parameters; the caller knows that the games bound them, or gives a ridge
    (a normal prior on θ, γ and β of precision `ridge`)."""
    return _fit(games, replace(_cells(games), order=order, ties=ties), group, ridge)


def _fit(games: Games, cells: _Cells, group: Index, ridge: float) -> Fit:
    """The same with the games' cells, which say what to fit."""
    order, ties = cells.order, cells.ties
    slopes = slice(cells.models + order, cells.width - ties)
    x, hessian, iterations, converged = _newton(cells, group, ridge)
    inverse = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
    n = cells.models
    cov = _sandwich(games, cells, x, inverse)
    se = np.sqrt(np.maximum(np.diag(cov), 0.0))
    return Fit(
        theta=x[:n],
        cov=cov[:n, :n],
        order_effect=float(x[n]) if order else float("nan"),
        order_effect_se=float(se[n]) if order else float("nan"),
        coefficients=x[slopes],
        coefficients_se=se[slopes],
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
        covariates=None if games.covariates is None else games.covariates[keep],
    )


def _halved(games: Games) -> Games:
    half = games.outcome[:, 2] / 2
    points = np.stack([games.outcome[:, 0] + half, games.outcome[:, 1] + half, np.zeros_like(half)], axis=1)
    return replace(games, outcome=points)


def _cells(games: Games) -> _Cells:
    n = len(games.models)
    if games.covariates is not None:
        return _Cells(games.first, games.second, games.outcome, n, games.covariates)
    key = games.first * n + games.second
    size = n * n
    outcome = np.stack([binned(key, games.outcome[:, o], size) for o in range(3)], axis=1)
    played = np.flatnonzero(outcome.sum(1) > 0)
    return _Cells(played // n, played % n, outcome[played], n)


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
    return fit - ridge / 2 * float((x[: cells.width - cells.ties] ** 2).sum())


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
    m = cells.models

    def border(place: int, along: Array) -> None:
        """The second derivatives by θ and the parameter at `place`."""
        hessian[:m, place] = hessian[place, :m] = binned(cells.first, along, m) - binned(cells.second, along, m)

    gradient[:m] = binned(cells.first, by_d, m) - binned(cells.second, by_d, m)
    between = binned(cells.first * m + cells.second, h_dd, m * m).reshape(m, m)
    between = between + between.T
    hessian[:m, :m] = np.diag(between.sum(1)) - between
    for place, factor in cells.slopes:
        gradient[place] = (factor * by_d).sum()
        border(place, factor * h_dd)
        for other, also in cells.slopes:
            hessian[place, other] = (factor * also * h_dd).sum()
        if cells.ties:
            hessian[place, -1] = hessian[-1, place] = (factor * h_dn).sum()
    if cells.ties:
        border(-1, h_dn)
        gradient[-1], hessian[-1, -1] = by_nu.sum(), h_nn.sum()
    prior = cells.width - cells.ties
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
    meat = _meat(games, cells, x, inverse) * asked / (asked - 1)
    total = float(games.outcome.sum())
    if np.trace(meat) <= 1e-20 * total:
        return inverse * total / asked
    return inverse @ meat @ inverse


def _meat(games: Games, cells: _Cells, x: Array, inverse: Array) -> Array:
    """Σ_q s_q s_qᵀ of the corrected scores; uncorrected ones where there are so many questions that it does not matter.

    Worked in parts that a processor's cache holds.
    """
    width, expected = cells.width, _probabilities(*cells.split(x))
    if (int(games.question[-1]) + 1) * width > clusters.DENSE:
        rows, cell = _by_row(games, cells, slice(None))
        return outer_sum(games.question, *_spread(rows, *_residuals(rows.outcome, expected[cell])), width)
    curvature = _curvature(expected, np.ones(len(expected)))
    meat = np.zeros((width, width))
    for part in question_parts(games.question):
        rows, cell = _by_row(games, cells, part)
        question = games.question[part] - games.question[part.start]
        by_d, by_nu = _residuals(rows.outcome, expected[cell])
        scores = question_sums(question, *_spread(rows, by_d, by_nu), width)
        along_d, along_nu = _gather(rows, scores @ inverse, question)
        n = rows.outcome.sum(1)
        h_dd, h_dn, h_nn = (h[cell] * n for h in curvature)
        lean = _spread(rows, h_dd * along_d + h_dn * along_nu, h_dn * along_d + h_nn * along_nu)
        scores += question_sums(question, *lean, width)
        meat += scores.T @ scores
    return meat


def _by_row(games: Games, cells: _Cells, part: slice) -> tuple[_Cells, Index | slice]:
    """Some of the games as cells with the same parameters, and the cell that each belongs to."""
    first, second, outcome = games.first[part], games.second[part], games.outcome[part]
    if cells.covariates is not None:
        return replace(cells, first=first, second=second, outcome=outcome, covariates=cells.covariates[part]), part
    key = cells.first * cells.models + cells.second
    cell = np.searchsorted(key, first * cells.models + second)
    return replace(cells, first=first, second=second, outcome=outcome), cell


def _spread(rows: _Cells, by_d: Array, by_nu: Array) -> tuple[list[Index | int], list[Array]]:
    """A derivative by d and by ln ν of every row as columns and values of the parameters."""
    columns: list[Index | int] = [rows.first, rows.second]
    values = [by_d, -by_d]
    for place, factor in rows.slopes:
        columns.append(place)
        values.append(factor * by_d)
    if rows.ties:
        columns.append(rows.width - 1)
        values.append(by_nu)
    return columns, values


def _gather(rows: _Cells, table: Array, question: Index) -> tuple[Array, Array]:
    """What a change of the parameters, one for each question, does to d and ln ν of every row."""
    d = table[question, rows.first] - table[question, rows.second]
    for place, factor in rows.slopes:
        d = d + factor * table[question, place]
    return d, table[question, -1] if rows.ties else np.zeros_like(d)


def resampled_theta(
    games: Games, group: Index, fit: Fit, rounds: int, rng: np.random.Generator, ridge: float = 0.0
) -> Array:
    """(rounds, models) θ refitted to questions drawn with replacement.

    A resample may not bound what the whole bounds, so these fits have a ridge of 0.01 (far below one game) or more.
    """
    inside = _within(games, group)
    order, ties = not np.isnan(fit.order_effect), fit.log_nu > -np.inf
    if not ties:
        inside = _halved(inside)
    found = np.empty((rounds, len(games.models)))
    for r in range(rounds):
        times = np.bincount(rng.integers(games.questions, size=games.questions), minlength=games.questions)
        drawn = replace(inside, outcome=inside.outcome * times[inside.question][:, None])
        found[r] = _newton(replace(_cells(drawn), order=order, ties=ties), group, max(ridge, 0.01))[0][
            : len(games.models)
        ]
    return found

"""What a run and a comparison are in a notebook: tables as Polars frames, and a page of HTML."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from trustjudge_ray import runs
from trustjudge_ray.analysis.compare import Comparison
from trustjudge_ray.report import cautions, summary, tables
from trustjudge_ray.report.cells import Table
from trustjudge_ray.report.comparison import as_document
from trustjudge_ray.schema import QUARANTINE
from trustjudge_ray.storage import StorageError, is_local, plain
from trustjudge_ray.store import RunFolder


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder. Every attribute is read from it at each access, so that it is never older than the folder: keep a
    frame that you use often in a variable.

    Attributes that `evaluate` computes raise StorageError where the run was not evaluated.
    """

    folder: RunFolder

    @property
    def path(self) -> str:
        """Where it is, local or s3://."""
        return self.folder.path

    @property
    def report(self) -> str:
        """The path of its report."""
        return f"{self.path}/report.html"

    @property
    def judgments(self) -> pl.DataFrame:
        """JUDGMENTS: a row for each judgment of the run, failed ones too."""
        return self.folder.judgments()[0]

    @property
    def quarantine(self) -> pl.DataFrame:
        """QUARANTINE: the rows of the corpus that could not be used, each with its reason."""
        found = self.folder.quarantine()
        return pl.DataFrame(QUARANTINE.empty_table()) if found is None else found

    @property
    def scores(self) -> pl.DataFrame:
        """SCORES: a row for each answer, score protocol and rule."""
        return self._computed("scores")

    @property
    def verdicts(self) -> pl.DataFrame:
        """VERDICTS: a row for each pair, rule and tolerance."""
        return self._computed("verdicts")

    @property
    def metrics(self) -> pl.DataFrame:
        """METRICS: every ratio with its interval, counts and what was left out."""
        return self._computed("metrics")

    @property
    def ratings(self) -> pl.DataFrame:
        """RATINGS: every model by every rule, over all and by category."""
        return self._computed("ratings")

    @property
    def warnings(self) -> list[str]:
        """What `evaluate` warned of."""
        self._refuse_unevaluated()
        return self.folder.read_json("warnings.json")

    @property
    def summary(self) -> list[str]:
        """Who leads, how sure that is, and whether the judge can be trusted: a sentence each."""
        return [str(sentence.says) for sentence in summary.summary(self._inputs())]

    @property
    def findings(self) -> list[str]:
        """What a reader must know before the numbers, as the report says it; `warnings` among it."""
        return cautions.findings(self._inputs())

    @property
    def manifest(self) -> dict[str, Any]:
        """Versions, hashes, counts, tokens and seconds; empty where the run was not finished."""
        return self.folder.read_json("manifest.json") if self.folder.exists("manifest.json") else {}

    def leaderboard(self) -> pl.DataFrame:
        """RATINGS rows that the report's leaderboards show: for each judge and comparison protocol the preferred rule,
        over all categories; ranked within each component. What is looked for comes first: rank, model, rating."""
        found = [part for *_, part in tables.preferred(self._inputs())]
        order = ["judge", "protocol", "component", "rank", "model"]
        rows = pl.concat([self.ratings.head(0), *found]).sort(order, nulls_last=True)
        first = ["rank", "model", "rating", "low", "high"]
        return rows.select(*first, pl.exclude("category", *first))

    def _computed(self, name: str) -> pl.DataFrame:
        self._refuse_unevaluated()
        return pl.DataFrame(self.folder.read_table(f"{name}.parquet"))

    def _inputs(self) -> tables.Inputs:
        self._refuse_unevaluated()
        return runs.report_inputs(self.folder)

    def _refuse_unevaluated(self) -> None:
        if not self.folder.exists("metrics.json"):
            raise StorageError(f"{self.path}: not evaluated yet; first trustjudge evaluate {self.path}")

    def __repr__(self) -> str:
        return f"Run({self.path!r})"

    def _repr_html_(self) -> str:
        """Summary, leaderboards, findings and a link to the report; every text escaped, no script."""
        try:
            inputs = self._inputs()
        except StorageError as error:
            return str(Markup("<p>{}</p><p>{}</p>").format(repr(self), error))
        shown = [Markup("<p>{}</p>").format(sentence.says) for sentence in summary.summary(inputs)]
        shown += [_html_table(table) for table in tables.leaderboards(inputs)]
        known = Markup("").join(Markup("<li>{}</li>").format(text) for text in cautions.findings(inputs))
        where = os.path.abspath(plain(self.report))
        link = Markup("<code>{}</code>").format(self.report)
        if is_local(self.path):
            link = Markup('<a href="{}">{}</a>').format(Path(where).as_uri(), self.report)
        return str(Markup("").join([*shown, Markup("<ul>{}</ul>").format(known), Markup("<p>{}</p>").format(link)]))


@dataclass(frozen=True, slots=True)
class Compared:
    """Two runs beside each other; what `failed` of `compare.fail_on`, in words."""

    comparison: Comparison
    failed: list[str]

    @property
    def changes(self) -> pl.DataFrame:
        """A row for each model and measure, and for each consistency ratio: before, after, difference, interval,
        verdict (see `analysis.compare.Change`)."""
        found = [*self.comparison.changes, *self.comparison.consistency]
        return pl.DataFrame([asdict(change) for change in found], infer_schema_length=None)

    @property
    def warnings(self) -> list[str]:
        """What a reader must know first."""
        return self.comparison.warnings

    @property
    def document(self) -> dict[str, Any]:
        """All of it, as comparison.json has it."""
        return as_document(self.comparison, self.failed)

    def __repr__(self) -> str:
        return f"Compared({self.comparison.a!r}, {self.comparison.b!r})"

    def _repr_html_(self) -> str:
        columns = ("measure", "model", "before", "after", "difference", "low", "high", "verdict")
        rows = [["" if row[c] is None else _cell(row[c]) for c in columns] for row in self.changes.to_dicts()]
        told = Markup("").join(Markup("<li>{}</li>").format(text) for text in [*self.warnings, *self.failed])
        title = f"{self.comparison.b} compared with {self.comparison.a}"
        return str(_html_table(Table(title, "", columns, rows)) + Markup("<ul>{}</ul>").format(told))


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _html_table(table: Table) -> Markup:
    head = Markup("").join(Markup("<th>{}</th>").format(column) for column in table.columns)
    rows = [Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row) for row in table.rows]
    body = Markup("").join(Markup("<tr>{}</tr>").format(cells) for cells in rows)
    caption = Markup("<p><b>{}</b> {}</p>").format(table.title, table.note)
    return caption + Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)

"""The parts of a card that are measured apart: attention, and what training on one task did to the other."""

from collections.abc import Mapping
from typing import Any, Final

from trustjudge_ray.report.card import Card, Row, compact, hits_of_cases, ranged
from trustjudge_ray.report.cells import Table, number, small

DESCRIBES: Final = (
    "Attention describes a model and proves nothing: where its heads look is not what its verdicts rest on. Whether it "
    "uses a part is seen where that part is withheld."
)
_COMPARISONS: Final = {
    "raw": "as they come",
    "equal_trailing": "equally long text after the passage",
    "context_last": "passage last in both",
}


def attention(card: Card) -> list[Table]:
    """Where the last prompt token's attention goes, by task; how that compares, with the controls; and what the
    candidate gets. No table where it was not measured."""
    measured = card.get("attention")
    if not measured:
        return []
    return [_masses(measured), _ratios(measured), _candidate(measured)]


def _masses(measured: Mapping[str, Any]) -> Table:
    rows = [
        (
            *(
                row["task"],
                row["segment"],
                ranged(row, of="mass"),
                number(row["without_sink"]),
                small(row["per_token"]),
            ),
            *(f"{row['tokens']:.0f}", str(row["items"]), str(row["passages"])),
        )
        for row in measured.get("table", [])
    ]
    columns = (
        "task",
        "segment",
        "mass [95 % interval]",
        "without the sink",
        "per token",
        "tokens",
        "items",
        "passages",
    )
    note = "Of the last prompt token, averaged over heads and layers. sink: the first token, and learnt sinks."
    return Table("Attention by segment", note, columns, rows, "no masses in the card")


def _ratios(measured: Mapping[str, Any]) -> Table:
    rows = [
        (
            *(_COMPARISONS.get(row["comparison"], row["comparison"]), row["measure"], ranged(row, of="ratio")),
            *(row["generation"], row["evaluation"]),
            *(str(row["items"]), str(row["passages"]), str(row["excluded"])),
        )
        for row in measured.get("ratios", [])
    ]
    columns = ("comparison", "measure", "ratio [95 % interval]", "over", "under", "items", "passages", "left out")
    note = (
        "How many times more goes to the passage when answering than when judging. As they come, the prompts also "
        "differ in what stands after the passage, which alone moves the ratio: the two controls take that away."
    )
    return Table("Attention to the passage, answering over judging", note, columns, rows, "no ratios in the card")


def _candidate(measured: Mapping[str, Any]) -> Table:
    lazy = measured.get("lazy") or {}
    rows = [
        (row["over"], ranged(row, of="ratio"), str(row["items"]), str(row["passages"]), str(row["excluded"]))
        for row in lazy.get("rows", [])
    ]
    flag = "A token of the candidate gets less than one of the instruction: a sign that the judge may not look at it. "
    note = (flag if lazy.get("raised") else "") + "Below 1 the candidate gets less, token by token, when judging."
    columns = ("candidate over", "ratio [95 % interval]", "items", "passages", "left out")
    return Table("Attention to the candidate", note, columns, rows, "no ratios in the card")


def attention_lines(card: Card) -> list[str]:
    """Attention in a few lines: how many times more goes to the passage when answering than when judging."""
    measured = card.get("attention")
    if not measured:
        return ["Attention: not measured."]
    ratios = [
        f"{_COMPARISONS.get(row['comparison'], row['comparison'])} {ranged(row, of='ratio')}"
        for row in measured.get("ratios", [])
        if row["measure"] == "mass"
    ]
    return [f"Attention to the passage, answering over judging: {'; '.join(ratios) or '–'}.", DESCRIBES]


def lora_lines(card: Card) -> list[str]:
    """The LoRA experiment in a few lines: the paper's directions, and what was found here."""
    experiment = card.get("lora")
    if not experiment:
        return ["LoRA transfer: no adapters were trained."]
    claims = [
        f"LoRA: {claim['text']}: {claim['verdict']} ({claim['measure']} {ranged(claim, of='difference')})"
        for claim in experiment.get("claims", [])
    ]
    return claims + [f"LoRA: {text}" for text in experiment.get("cautions", [])]


def lora(card: Card) -> list[Table]:
    """The transfer matrix, the paper's directions and the trainings. No table where there was no experiment."""
    experiment = card.get("lora")
    if not experiment:
        return []
    return [_matrix(experiment), _claims(experiment), _trainings(experiment)]


def lora_cautions(card: Card) -> list[str]:
    """What a reader of the matrix must know."""
    return list((card.get("lora") or {}).get("cautions", []))


_ENDS: Final = ("difference_low", "difference_high")
_TESTED: Final = ("difference to base [95 %]", "p (Holm)")


def _matrix(experiment: Mapping[str, Any]) -> Table:
    rows = [
        (
            *(row["measure"], row["benchmark"] or "all", row["arm"], ranged(row), hits_of_cases(row)),
            *(str(row["excluded"]), ranged(row, _ENDS, "difference"), small(row["p_holm"])),
        )
        for row in sorted(experiment.get("matrix", []), key=_all_benchmarks_first)
    ]
    columns = ("measure", "benchmark", "arm", "value [95 % interval]", "hits / cases", "left out", *_TESTED)
    note = (
        "Each arm answers and judges the same test items; differences are paired by passage, p over the whole matrix."
    )
    return Table("Transfer matrix", note, columns, rows, "no rows in the card")


def _all_benchmarks_first(row: Row) -> tuple[bool, str]:
    return row["benchmark"] is not None, row["measure"]


def _claims(experiment: Mapping[str, Any]) -> Table:
    rows = [
        (claim["text"], claim["verdict"], claim["measure"], ranged(claim, of="difference"), small(claim["p_holm"]))
        for claim in experiment.get("claims", [])
    ]
    columns = ("arXiv 2606.28050 says", "here", "measure", *_TESTED)
    return Table("Beside the paper", "Directions only; its sizes are of other models.", columns, rows, "no arm of it")


def _trainings(experiment: Mapping[str, Any]) -> Table:
    shown = ("arm", "seed", "examples", "updates", "first_loss", "last_loss", "trainable")
    rows = [
        tuple(number(t[name]) if "loss" in name else compact(t[name]) for name in shown)
        for t in experiment.get("trainings", [])
    ]
    return Table("Trainings", "Mean loss of the first and of the last update.", shown, rows, "no training in the card")

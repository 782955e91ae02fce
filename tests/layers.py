"""Reads which module imports what, and which imports the layers of the design do not allow."""

import ast
from pathlib import Path

HEAVY = {
    "ray": {
        *("pipeline.session", "pipeline.blocks", "pipeline.planning", "pipeline.judges", "pipeline.counting"),
        *("pipeline.watch", "pipeline.metrics", "pipeline.placement", "pipeline.ahead", "pipeline.single"),
        *("audit.lora", "training.service", "training.service_front"),
    },
    "vllm": {"judging.vllm_engine", "audit.lora_vllm"},
    "torch": {"judging.embedded", "audit.hf_attention", "audit.lora_training", "training.adapters.openrlhf"},
    "transformers": {
        *("judging.vllm_engine", "judging.embedded", "judging.openai_api", "judging.preview"),
        *("audit.hf_attention", "audit.lora_training"),
    },
    "peft": {"audit.lora_training"},
    "httpx": {"judging.openai_http"},
    "fsspec": {"storage"},
    "s3fs": {"storage"},
}
"""Outside libraries and the only modules that may import them, lazily or not."""

PURE = (
    "schema",
    "identity",
    "corpus.formats",
    "corpus.arena_formats",
    "corpus.layouts",
    "corpus.recognising",
    "corpus.objects",
    "corpus.values",
    "corpus.duplicates",
    "corpus.joining",
    "corpus.containers",
    "corpus.json_stream",
    "corpus.benchmark_formats",
    "judging.protocols",
    "judging.labels",
    "judging.plan",
    "judging.slots",
)
PURE += ("judging.prompts", "judging.base", "analysis.", "imports.", "report.")
PURE += ("designs", "corpus.canary", "analysis_config", "audit_config", "preferences_config", "nightly_config")
PURE += ("rewards_config", "training.preference", "training.data_card", "training.exports", "training.reward")
PURE += ("audit.qa", "audit.card", "audit.reads", "audit.candidates", "audit.response_bias", "audit.gates")
PURE += ("audit.attention", "audit.probes", "audit.verdicts", "audit.auc", "audit.figures", "audit.estimates")
PURE += ("audit.item_f", "audit.transfer", "audit.lora_arms", "audit.lora_config")
PURE += ("asking", "nearest", "config_keys", "guessed_fields", "field_names", "initial_text")
PURE += ("audit.cautions", "audit.attention_prompts", "audit.perturbing")
CLOCK_AND_CHANCE = {"time", "datetime", "random", "os", "subprocess", "socket"}
ALLOWED = {"judging.plan": {"random"}, "imports.alpaca_eval": {"random"}, "training.adapters.__init__": {"os"}}
"""`judging.plan` draws designs from a generator seeded by the plan's own seed; `imports.alpaca_eval` repeats a draw of
another program, from that program's seed."""

EDGES = {"storage", "store", "ingest", "pipeline", "runs", "cli", "corpus.reader"}
EDGES |= {"files", "judgment_store", "lease", "lease_files"}
EDGES |= {"pipeline.session", "pipeline.blocks", "pipeline.planning", "pipeline.judges", "pipeline.counting"}
EDGES |= {"opening", "answering", "auditing", "experiments", "audit.item_reading"}
EDGES |= {"audit.hf_attention", "audit.lora", "audit.lora_training", "audit.lora_vllm"}
EDGES |= {"audit.attached", "training.service", "training.service_front", "training.adapters"}
EDGES |= {"leaderboard_exports", "imported_runs", "initial_config", "browsing"}
EDGES |= {"api", "api_arguments", "api_views"}
EDGES |= {"comparing", "labelling", "labelling_preferences", "commands", "retrying"}
EDGES |= {"doctor", "estimate", "showing", "judging.preview", "judging.trial"}
EDGES |= {"judging.vllm_engine", "judging.embedded", "judging.openai_api", "judging.openai_http"}


def imports_of(source: str) -> set[str]:
    """The dotted names that a module's source imports anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(sources: dict[str, str]) -> list[str]:
    """What the layers do not allow, in words. `sources` maps module names within the package to their text."""
    wrong = []
    for module, text in sorted(sources.items()):
        names = imports_of(text)
        tops = {name.split(".")[0] for name in names}
        for library, where in HEAVY.items():
            if library in tops and module not in where:
                wrong.append(f"{module} imports {library}, which belongs to {sorted(where)}")
        if module.startswith(PURE):
            wrong += [f"{module} imports {n}" for n in sorted(tops & CLOCK_AND_CHANCE - ALLOWED.get(module, set()))]
            ours = {name.removeprefix("trustjudge_ray.") for name in names if name.startswith("trustjudge_ray.")}
            wrong += [f"{module} is pure and imports the edge {edge}" for edge in sorted(ours & EDGES)]
    return wrong


def package_sources() -> dict[str, str]:
    """Every module of the package by its name within it."""
    root = Path(__file__).parent.parent / "trustjudge_ray"
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text("utf-8") for path in root.rglob("*.py")
    }

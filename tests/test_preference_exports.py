"""Exports as trainers read them: loaded back by datasets, and trained on for a step by TRL.

verl does not install on a CPU; its table is held against the fields of its data preparation and the arguments of
`compute_score`.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_tokenizers import TEMPLATES, tokenizer_of

from trustjudge_ray import labelling_preferences
from trustjudge_ray.config import AnalysisConfig, ConfigError
from trustjudge_ray.corpus import formats
from trustjudge_ray.judging.base import RunError
from trustjudge_ray.preferences_config import PreferencesConfig
from trustjudge_ray.schema import from_rows
from trustjudge_ray.store import RunFolder
from trustjudge_ray.training import exports
from trustjudge_ray.training.preferences import PREFERENCES


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def row(chosen, rejected, prompt=None, keep=True, p=0.9, pair_id="id"):
    """A PREFERENCES row; answers are texts, or messages."""
    sides = [[assistant(side)] if isinstance(side, str) else side for side in (chosen, rejected)]
    about = {"pair_id": pair_id, "judge": "j", "protocol": "compare", "cycle": False, "keep": keep}
    about |= {"drop_reason": None if keep else "min_margin", "length_chosen": 1, "length_rejected": 1}
    return about | {
        "prompt": prompt or [user("What is good?")],
        "chosen": sides[0],
        "rejected": sides[1],
        "p": p,
        "margin": 2 * p - 1,
    }


LONG = [{"role": "system", "content": "Be kind."}, user("Hello."), assistant("Hello!"), user("How are you?")]
ROWS = [
    row("Bread.", "Stone."),
    row("Well, thank you.", "No.", LONG, p=0.7, pair_id="long"),
    row("Dropped.", "Too.", keep=False),
]


def written(tmp_path, name, rows=ROWS, ending="jsonl"):
    path = str(tmp_path / f"{name}.{ending}")
    with open(path, "wb") as sink:
        parts = [from_rows([part], PREFERENCES) for part in rows]
        exports.write(lambda: parts, name, path, sink)
    return path


def exported(tmp_path, name, rows):
    """The rows of the file that these pairs become, each pair a part of its own."""
    return [json.loads(line) for line in Path(written(tmp_path, name, rows)).read_text("utf-8").splitlines()]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", exports.EXPORTS)
def test_datasets_loads_every_export_from_both_kinds_of_file_with_equal_rows(tmp_path, name, ending):
    datasets = pytest.importorskip("datasets")
    kind = {"jsonl": "json", "parquet": "parquet"}[ending]
    path = written(tmp_path, name, ending=ending)
    found = datasets.load_dataset(kind, data_files=path, split="train", cache_dir=str(tmp_path / "cache"))
    assert set(found.column_names) == set(exports.SCHEMAS[name].names)
    kept = [part for part in ROWS if part["keep"]]
    marks = exports.SELECTIONS[name](kept).marks if name in exports.SELECTIONS else None
    assert found.to_list() == exports.EXPORTS[name](kept, exports.Place(marks=marks))


def test_what_was_dropped_is_in_no_export(tmp_path):
    for name in exports.EXPORTS:
        assert "Dropped." not in Path(written(tmp_path, name)).read_text("utf-8")


def test_texts_that_were_read_as_trl_rows_come_back_as_they_were(tmp_path):
    given = [
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " a cheese."},
        {
            "prompt": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:",
            "chosen": " d",
            "rejected": " e",
        },
    ]
    lines = "".join(json.dumps(pair) + "\n" for pair in given).encode()
    [(responses, _)] = formats.parse_lines([lines], "test", "trl", {})
    read = responses.to_pylist()
    rows = [row(read[i]["replies"][0], read[i + 1]["replies"][0], read[i]["messages"]) for i in range(0, len(read), 2)]
    assert exports.trl(rows, exports.Place()) == given


def test_several_turns_of_an_answer_keep_their_order():
    turns = [assistant("one"), user("go on"), assistant("two")]
    [told] = exports.trl([row(turns, "no")], exports.Place())
    assert told["chosen"] == "one\n\nHuman: go on\n\nAssistant: two"
    [told] = exports.trl_conversational([row(turns, "no")], exports.Place())
    assert told["chosen"] == turns


def test_a_message_of_a_tool_does_not_run_into_the_text_of_the_turn_before_it():
    call = [{"role": "system", "content": "Be kind."}, user("How warm is it?"), assistant("look_up(weather)")]
    tool = {"role": "tool", "content": "21 degrees"}
    [told] = exports.trl([row("It is warm.", "No.", [*call, tool])], exports.Place())
    asked = "Be kind.\n\nHuman: How warm is it?\n\nAssistant: look_up(weather)"
    assert told["prompt"] == f"{asked}\n\nTool: 21 degrees\n\nAssistant:"
    [told] = exports.trl([row("Yes.", "No.", [user("a"), {"role": "system", "content": "b"}])], exports.Place())
    assert told["prompt"] == "\n\nHuman: a\n\nSystem: b\n\nAssistant:"


def test_an_answer_that_wins_and_loses_alike_is_no_example_for_kto(tmp_path):
    rows = [row("best", "middle"), row("middle", "worst"), row("best", "worst")]
    told = {r["completion"][0]["content"]: r["label"] for r in exported(tmp_path, "kto", rows)}
    assert told == {"best": True, "worst": False}
    other = [row("best", "worst"), row("worst", "best", [user("Which is worst?")])]
    labels = [r["label"] for r in exported(tmp_path, "kto", other)]
    assert sorted(labels) == [False, False, True, True], "another prompt is another answer"


def test_verl_has_one_row_a_prompt_with_all_that_compute_score_needs(tmp_path):
    rows = [row("good", "bad", p=0.6, pair_id="a"), row("best", "bad", p=0.95, pair_id="b"), ROWS[1]]
    path = tmp_path / "verl.parquet"
    with path.open("wb") as sink:
        parts = [from_rows(rows[:2], PREFERENCES), from_rows(rows[2:], PREFERENCES)]
        done = exports.write(lambda: parts, "verl", str(path), sink, "mine")
    assert (done.rows, done.counts) == (2, {"prompts": 2, "other_pairs": 1})
    table = pq.read_table(path)
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    first, second = table.to_pylist()
    assert first["data_source"] == "mine"
    assert first["reward_model"] == {"style": "model", "ground_truth": "best"}
    assert (first["extra_info"]["pair_id"], first["extra_info"]["prompt"]) == ("b", first["prompt"])
    assert [first["extra_info"]["index"], second["extra_info"]["index"]] == [0, 1]
    assert second["prompt"] == LONG


def drawn_pairs(seed, pairs=60):
    """Pairs of few prompts and few answers, so that most meet again, with every fifth p alike."""
    rng = np.random.default_rng(seed)
    for i in range(pairs):
        chosen, rejected = rng.choice(["a", "b", "c", "a "], 2, replace=False)
        prompt, p = [user(f"ask {rng.integers(6)}")], 0.75 if i % 5 == 0 else rng.uniform(0.5, 1)
        yield row(str(chosen), str(rejected), prompt, keep=i % 7 != 3, p=float(p), pair_id=str(i))


def answers_by_hand(pairs):
    """(prompt, answer) → (wins, losses)."""
    tally = {}
    for pair in (pair for pair in pairs if pair["keep"]):
        for side in ("chosen", "rejected"):
            told = tally.setdefault((pair["prompt"][0]["content"], pair[side][0]["content"]), [0, 0])
            told[side == "rejected"] += 1
    return tally


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_of_a_prompt_is_not_written_again_from_another_part_of_the_run(tmp_path, seed):
    pairs = list(drawn_pairs(seed))
    tally = answers_by_hand(pairs)
    told = exported(tmp_path, "kto", pairs)
    found = [(r["prompt"][0]["content"], r["completion"][0]["content"], r["label"]) for r in told]
    assert sorted(found) == sorted((*key, won > lost) for key, (won, lost) in tally.items() if won != lost)
    both = sum(won > 0 and lost > 0 for won, lost in tally.values())
    even = sum(won == lost for won, lost in tally.values())
    counts = exports.answers_once([pair for pair in pairs if pair["keep"]]).counts
    assert counts == {"answers": len(tally), "won_and_lost": both, "even": even}
    assert len(found) == counts["answers"] - counts["even"]


@pytest.mark.parametrize("seed", range(4))
def test_a_prompt_is_not_written_again_for_verl_from_another_part_and_its_surest_pair_stands_for_it(tmp_path, seed):
    pairs = [pair for pair in drawn_pairs(seed) if pair["keep"]]
    best = {}
    for pair in pairs:
        prompt = pair["prompt"][0]["content"]
        if prompt not in best or pair["p"] > best[prompt]["p"]:
            best[prompt] = pair
    told = exported(tmp_path, "verl", pairs)
    assert {r["prompt"][0]["content"]: r["extra_info"]["pair_id"] for r in told} == {
        prompt: pair["pair_id"] for prompt, pair in best.items()
    }
    assert [r["extra_info"]["index"] for r in told] == list(range(len(best)))


def test_a_reward_row_has_the_margin_of_its_pair():
    told = exports.trl_reward(ROWS[:2], exports.Place())
    assert [r["margin"] for r in told] == pytest.approx([0.8, 0.4])


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [("dpo", "x.jsonl", "got 'dpo'; one of"), ("trl", "x.csv", "x.csv: Parquet"), ("trl", "x", "JSON Lines")],
)
def test_a_format_or_ending_that_is_none_is_refused(name, path, message):
    with pytest.raises(ConfigError, match=message):
        exports.refuse_bad_export(name, path)


def preference_folder(tmp_path, kept):
    folder = RunFolder(str(tmp_path / "run"))
    rows = [part for part in ROWS if part["keep"]][:kept]
    if rows:
        folder.write_table("preferences/part-000.parquet", from_rows(rows, PREFERENCES))
    labeller = {"judge": "j", "protocol": "compare", "score_protocol": None}
    folder.write_json("data_card.json", {"counts": {"kept": kept}, "filters": [], "labeller": labeller})
    return folder


def test_an_export_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    folder, out = preference_folder(tmp_path, 2), tmp_path / "pairs.jsonl"
    out.write_text("old")
    folder.write_bytes("preferences/part-001.parquet", b"damaged")
    with pytest.raises(OSError, match="part-001"):
        labelling_preferences.export(folder, "trl", str(out), PreferencesConfig(), AnalysisConfig())
    assert (out.read_text(), [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]) == ("old", [])
    folder.remove("preferences/part-001.parquet")
    told = labelling_preferences.export(folder, "trl", str(out), PreferencesConfig(), AnalysisConfig())
    assert (told["rows"], len(out.read_text().splitlines())) == (2, 2)


@pytest.mark.parametrize(
    ("filters", "error", "message"),
    [
        ({"min_margn": 0.3}, ConfigError, "no filter 'min_margn'; did you mean 'min_margin'"),
        ({"min_margin": 0.3}, RunError, "holds preferences alone, without the run"),
    ],
)
def test_other_filters_on_a_folder_of_preferences_alone_are_refused_in_words(tmp_path, filters, error, message):
    folder, settings = preference_folder(tmp_path, 2), PreferencesConfig(filters=filters)
    with pytest.raises(error, match=message):
        labelling_preferences.export(folder, "trl", str(tmp_path / "x.jsonl"), settings, AnalysisConfig())
    assert folder.exists("data_card.json")


def test_nothing_kept_is_an_error_and_no_empty_file(tmp_path):
    with pytest.raises(RunError, match="no pair is kept"):
        labelling_preferences.export(
            preference_folder(tmp_path, 0), "trl", str(tmp_path / "x.jsonl"), PreferencesConfig(), AnalysisConfig()
        )
    assert not (tmp_path / "x.jsonl").exists()


def test_pairs_that_all_contradict_each_other_are_an_error_for_kto_and_no_empty_file(tmp_path):
    folder = preference_folder(tmp_path, 0)
    pairs = [row("a", "b"), row("b", "a")]
    folder.write_table("preferences/part-000.parquet", from_rows(pairs, PREFERENCES))
    folder.write_json("data_card.json", folder.read_json("data_card.json") | {"counts": {"kept": 2}})
    out = tmp_path / "x.parquet"
    with pytest.raises(RunError, match="nothing is left for kto: .*'even': 2"):
        labelling_preferences.export(folder, "kto", str(out), PreferencesConfig(), AnalysisConfig())
    assert not out.exists()
    told = labelling_preferences.export(folder, "trl", str(out), PreferencesConfig(), AnalysisConfig())
    assert (told["rows"], told["counts"]) == (2, {})


@pytest.fixture(scope="module")
def tiny():
    """A tokenizer with a chat template, and what makes a random Llama of a few thousand weights."""
    pytest.importorskip("trl")
    tokenizer = tokenizer_of("digit_splitting")
    tokenizer.chat_template, tokenizer.pad_token = TEMPLATES["chatml"], "<|endoftext|>"
    from transformers import LlamaConfig

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    token_ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    yield tokenizer, LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=512, **sizes, **token_ids)
    tokenizer.chat_template = None


def policy(tmp_path, sizes):
    """A random model that lies in a folder: trainers load their reference from there."""
    from transformers import LlamaForCausalLM

    LlamaForCausalLM(sizes).save_pretrained(tmp_path / "model")
    return LlamaForCausalLM.from_pretrained(tmp_path / "model")


def stepped(trainer, model):
    """Train for what the arguments say; the log of the steps, and whether any weight moved."""
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer.train()
    moved = any(not weight.equal(before[name]) for name, weight in model.named_parameters())
    return [entry for entry in trainer.state.log_history if "loss" in entry], moved


def arguments(tmp_path, **further):
    return {
        "output_dir": str(tmp_path / "trained"),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        **further,
    }


@pytest.mark.parametrize("name", ["trl", "trl-conversational"])
def test_a_dpo_step_runs_on_the_exported_file(tmp_path, tiny, name):
    from datasets import load_dataset
    from trl import DPOConfig, DPOTrainer

    tokenizer, sizes = tiny
    data = load_dataset("json", data_files=written(tmp_path, name), split="train", cache_dir=str(tmp_path / "cache"))
    model = policy(tmp_path, sizes)
    trainer = DPOTrainer(
        model=model, args=DPOConfig(**arguments(tmp_path)), train_dataset=data, processing_class=tokenizer
    )
    [entry], moved = stepped(trainer, model)
    assert entry["loss"] == pytest.approx(np.log(2), abs=1e-3), "policy and reference are still the same"
    assert moved


def test_a_reward_step_takes_the_margin_from_the_exported_file(tmp_path, tiny):
    from datasets import load_dataset
    from transformers import LlamaForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    tokenizer, sizes = tiny
    path = written(tmp_path, "trl-reward", ending="parquet")
    data = load_dataset("parquet", data_files=path, split="train", cache_dir=str(tmp_path / "cache"))
    sizes.num_labels = 1
    model = LlamaForSequenceClassification(sizes)
    model.score.weight.data.zero_()  # rewards are 0, so that the loss is the margin's alone
    args = RewardConfig(**arguments(tmp_path))
    trainer = RewardTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer)
    [entry], moved = stepped(trainer, model)
    margins = np.array([0.8, 0.4])
    assert entry["loss"] == pytest.approx(np.log1p(np.exp(margins)).mean(), abs=1e-4)
    assert moved


def test_a_kto_step_runs_on_the_exported_file(tmp_path, tiny):
    from datasets import load_dataset
    from trl import KTOConfig, KTOTrainer

    tokenizer, sizes = tiny
    data = load_dataset("json", data_files=written(tmp_path, "kto"), split="train", cache_dir=str(tmp_path / "cache"))
    model = policy(tmp_path, sizes)
    args = KTOConfig(**arguments(tmp_path, per_device_train_batch_size=4))
    trainer = KTOTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer)
    [entry], moved = stepped(trainer, model)
    assert np.isfinite(entry["loss"])
    assert moved

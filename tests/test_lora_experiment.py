"""The LoRA experiment on Ray: with a tiny model, and with the embedded one (`make test-lora`, apart from the suite)."""

import json
from dataclasses import replace

import polars as pl
import pytest
from lora_cases import ANSWER, TINY, VERIFY, candidates_for, chat_tokenizer, items_of, material_with, tiny_llama
from small_judges import small_judge
from small_tokenizers import tokenizer_of

from trustjudge_ray.audit import lora_arms, lora_reading, lora_training
from trustjudge_ray.audit.lora_arms import LoraError, Prompting
from trustjudge_ray.audit.lora_config import ARMS, LoraConfig
from trustjudge_ray.audit.lora_report import report_of
from trustjudge_ray.audit.qa import contains
from trustjudge_ray.audit.transfer import MEASURES


@pytest.fixture(scope="module")
def tokenizer():
    return chat_tokenizer()


@pytest.fixture(scope="module")
def material(tokenizer):
    return material_with(tokenizer)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    """A model folder that can be loaded."""
    folder = small_judge(tmp_path_factory.mktemp("lora") / "tiny", tokenizer_of("digit_splitting"))
    tiny_llama(len(tokenizer_of("digit_splitting"))).save_pretrained(folder)
    return folder


@pytest.mark.ray
@pytest.mark.heavy
def test_arms_on_ray_are_what_they_are_here_and_a_failed_one_says_why(local_ray, tiny_folder, material, tokenizer):
    from trustjudge_ray.audit import lora

    config = replace(TINY, arms=["base", "both"], steps=3)
    found = {(o.arm, o.seed): o for o in lora.outcomes(lora.Model(str(tiny_folder)), material, config)}
    assert set(found) == {("base", 0), ("both", 0)}
    loaded = lora_training.load_model(str(tiny_folder), config)
    reader = lora_training.TransformersReader(loaded, tokenizer, config.eval_batch_size)
    here = lora_reading.read_arm(reader, material, config, "base", 0, None)
    assert here.answers == found["base", 0].answers
    assert here.reads == found["base", 0].reads
    assert len(found["both", 0].training.losses) == 3
    with pytest.raises(LoraError, match="no linear layer"):
        list(lora.outcomes(lora.Model(str(tiny_folder)), material, replace(config, target_modules=["c_attn"])))
    with pytest.raises(LoraError, match="gpus_per_arm"):
        list(lora.outcomes(lora.Model(str(tiny_folder)), material, replace(config, gpus_per_arm=4)))
    answers, reads = lora_reading.frames(found.values(), material.items, lambda item, text: text in item.golds)
    report = report_of(list(found.values()), answers, reads, material, config)
    json.dumps(report.as_json(), allow_nan=False)
    assert set(report.matrix["measure"]) == set(MEASURES)
    assert any("both, seed 0: 12 examples" in line for line in report.lines())
    assert material.size >= lora_arms.LEAST_EXAMPLES


@pytest.fixture(scope="module")
def real_run(local_ray, tmp_path_factory):
    """Four arms of the embedded model, trained and tested on two CPUs."""
    from trustjudge_ray.audit import lora
    from trustjudge_ray.judging.embedded import embedded_model

    model = lora.Model(str(embedded_model()))
    items = items_of()
    config = replace(
        LoraConfig(), seeds=[0], examples=12, rank=8, alpha=16, dropout=0.0, learning_rate=1e-3, steps=9, batch_size=4,
        gradient_accumulation=1, max_length=512, dtype="float32", device="cpu", eval_batch_size=8,
        cpus_per_arm=1.5, adapters=str(tmp_path_factory.mktemp("adapters")), protocols=TINY.protocols,
    )  # fmt: skip
    found = lora.experiment(model, items, candidates_for(items), (ANSWER, VERIFY), config, contains)
    print("\n".join(["", *found.report.lines(), json.dumps(found.report.made["test_seconds"]), ""]))
    return model, items, config, found


@pytest.mark.lora
def test_four_arms_of_the_embedded_model_are_trained_and_the_report_is_complete(real_run):
    report = real_run[-1].report
    assert [(t["arm"], t["seed"]) for t in report.trainings] == [(arm, 0) for arm in ARMS if arm != "base"]
    for training in report.trainings:
        losses = training["losses"]
        assert sum(losses[-3:]) < sum(losses[:3])
        assert (training["examples"], training["updates"]) == (12, 9)
    cells = report.matrix.filter(pl.col("benchmark").is_null())
    assert len(cells) == len(ARMS) * len(MEASURES)
    assert cells.filter(pl.col("arm") != "base", pl.col("measure") == "controlled_accuracy")["p_holm"].null_count() == 0
    assert [claim["arm"] for claim in report.claims] == ["generation", "evaluation", "both", "both"]
    assert report.cautions
    json.dumps(report.as_json(), allow_nan=False)


@pytest.mark.lora
def test_the_vllm_engine_with_adapters_reads_what_transformers_reads(real_run):
    from transformers import AutoTokenizer

    from trustjudge_ray.audit import lora

    model, items, config, before = real_run
    prompting = Prompting(AutoTokenizer.from_pretrained(model.source), ANSWER, VERIFY)
    material = lora_reading.material_of(items, candidates_for(items), prompting, config)
    few = replace(material, items=material.items[:2], controlled=material.controlled[:4])
    answers, reads = lora_reading.frames(lora.kept_outcomes(model, few, config), few.items, contains)
    both = reads.filter(pl.col("candidate") != "own").join(
        before.reads, on=["arm", "seed", "item_id", "candidate", "protocol"], suffix="_before"
    )
    assert len(both) == len(ARMS) * 4 * 2
    for name in ("p_accept", "label_mass"):
        assert (both[name] - both[f"{name}_before"]).abs().max() < 1e-3
    assert both.group_by("arm").agg(pl.col("p_accept").sum())["p_accept"].n_unique() == len(ARMS)
    written = answers.join(before.answers, on=["arm", "seed", "item_id"], suffix="_before")
    assert (written["output"] == written["output_before"]).mean() >= 0.75

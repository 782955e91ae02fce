"""The rows of attention against a model's own eager maps, in several families, and what is measured with them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_tokenizers import TEMPLATES, tokenizer_of

from trustjudge_ray.audit.attention import SEGMENTS, AttentionError, SegmentedPrompt, masses
from trustjudge_ray.audit.attention_prompts import prompts_of
from trustjudge_ray.audit.hf_attention import (
    TOLERANCES,
    attention_rows,
    difference_from_eager,
    displaced,
    eager_rows,
    measure,
    sampled,
)
from trustjudge_ray.audit.qa import Item

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

BENCHMARK = Path(__file__).parent.parent / "jobs" / "benchmark.py"
WINDOW, SOFTCAP = 16, 2.0
SIZE = {"vocab_size": 800, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZE |= {"max_position_embeddings": 1024}
GROUPED = SIZE | {"num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SIZE),
    "qwen2": lambda: transformers.Qwen2Config(
        **GROUPED,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["full_attention", "sliding_attention"] * 2,
    ),
    "gemma2": lambda: transformers.Gemma2Config(
        **GROUPED, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW, attn_logit_softcapping=SOFTCAP
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(**GROUPED, **EXPERTS, head_dim=16, sliding_window=WINDOW),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=800, n_embd=64, n_layer=3, n_head=4),
}
IDS = np.random.default_rng(0).integers(3, 800, 150).tolist()
HARBOUR = (
    "Ferries to Linn leave the harbour at seven, at noon and at six. On feast days the boat at six does not sail. "
    "The crossing takes forty minutes, and bicycles travel for two crowns."
)


def sharp(config):
    """A model with random weights so large that its attention is far from even."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.3)
            elif name.endswith("sinks"):
                weight.fill_(12.0)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_the_models_own_eager_attention(family):
    model = sharp(FAMILIES[family]())
    before = model.config._attn_implementation
    rows = (0, 7, 70, -1)
    ours, eager = attention_rows(model, IDS, rows), eager_rows(model, IDS, rows)
    assert len(ours) == len(eager) == model.config.num_hidden_layers
    for layer, other in zip(ours, eager, strict=True):
        assert layer.shape == other.shape == (4, 4, 150)
        assert np.abs(layer - other).max() < 1e-4
        assert layer.max(axis=-1).mean() > 0.02, "so even that anything would agree"
        assert (layer[:, 0, 1:] == 0).all(), "the first token looks ahead"
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("family", FAMILIES)
def test_the_output_beside_the_rows_is_the_models_own(family):
    """A wrong output would change every later layer, and what follows from it."""
    model = sharp(FAMILIES[family]())
    model.set_attn_implementation("eager")
    ids = torch.tensor([IDS])
    found = {}

    def keep(module, given, output):
        found["states"] = output[0]

    with torch.inference_mode():
        meant = model.base_model(input_ids=ids, use_cache=False)[0]
    handle = model.base_model.register_forward_hook(keep)
    attention_rows(model, IDS)
    handle.remove()
    assert torch.allclose(found["states"], meant, atol=1e-3, rtol=1e-3)


def test_a_sliding_window_sees_nothing_before_itself():
    layers = attention_rows(sharp(FAMILIES["qwen2"]()), IDS)
    for number, layer in enumerate(layers):
        before = layer[:, 0, : len(IDS) - WINDOW]
        assert (before == 0).all() if number % 2 else (before > 0).any()


def test_what_learnt_sinks_take_is_missing_from_the_rows_and_is_the_sinks():
    (layer, *_) = attention_rows(sharp(FAMILIES["gpt_oss"]()), IDS)
    mean = layer[:, 0].mean(axis=0)[None]
    assert 0.001 < 1 - mean.sum() < 0.999
    prompt = SegmentedPrompt("evaluation", "i", "p", tuple(IDS), ("sink", *["context"] * 149))
    by_segment = dict(masses(prompt, mean).select("segment", "mass").iter_rows())
    assert by_segment["context"] == pytest.approx(float(mean[0, 1:].sum()), abs=1e-6)
    assert by_segment["sink"] == pytest.approx(1 - by_segment["context"])


def planted(logits):
    """A GPT-2 of one layer and head, in which token t draws a logit of logits[t] whoever looks."""
    size = len(logits)
    config = transformers.GPT2Config(vocab_size=size, n_embd=size, n_layer=1, n_head=1, n_positions=64)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    block = model.transformer.h[0]
    spread = 1 / np.sqrt(1 / size - 1 / size**2)  # what layer normalisation makes of the 1 of a one-hot vector
    with torch.no_grad():
        for weight in block.attn.c_attn.parameters():
            weight.zero_()
        model.transformer.wpe.weight.zero_()
        model.transformer.wte.weight.copy_(torch.eye(size))
        block.attn.c_attn.bias[0] = 1.0  # every query is (1, 0, …)
        keys = torch.tensor(logits) * np.sqrt(size) / spread
        block.attn.c_attn.weight[:, size] = keys.float()
    return model


def test_planted_attention_is_found_in_the_segments_where_it_was_planted():
    logits = [0.0, 2.0, 1.0, -1.0, 0.5, 0.0, 0.0, 0.0]  # of sink, context, question, candidate, instruction, template
    names = ["sink", "context", "question", "candidate", "instruction", "template"]
    ids = [0, 5, 4, *[1] * 9, 4, *[2] * 4, 4, *[3] * 3, 4, 5]
    prompt = SegmentedPrompt("evaluation", "i", "p", tuple(ids), tuple(names[i] for i in ids))
    (layer,) = attention_rows(planted(logits), ids)
    found = dict(masses(prompt, layer[:, 0].mean(axis=0)[None]).select("segment", "mass").iter_rows())
    total = sum(np.exp(logits[i]) for i in ids)
    meant = {name: ids.count(i) * np.exp(logits[i]) / total for i, name in enumerate(names)}
    assert found == pytest.approx(meant, abs=1e-4)


def test_a_model_whose_attention_cannot_be_intercepted_is_refused_by_name():
    model = sharp(transformers.BloomConfig(vocab_size=800, hidden_size=64, n_layer=2, n_head=4))
    with pytest.raises(AttentionError, match=r"BloomForCausalLM: attention can be read in 0 of 2 layers"):
        attention_rows(model, IDS)


def test_a_model_in_training_is_refused():
    with pytest.raises(AttentionError, match=r"LlamaForCausalLM: is in training mode"):
        attention_rows(sharp(FAMILIES["llama"]()).train(), IDS)


def test_a_row_that_is_not_there_is_refused():
    for rows in ((150,), (-151,), ()):
        with pytest.raises(ValueError, match="positions in a prompt of 150 tokens"):
            attention_rows(sharp(FAMILIES["llama"]()), IDS, rows)


def test_the_sample_does_not_depend_on_order_or_on_what_else_is_there():
    def items(count):
        return [Item(f"i{n}", "own", "p", "text", "Why?", ("so",), True) for n in range(count)]

    drawn = [item.id for item in sampled(items(50), 8, seed=1)]
    assert [item.id for item in sampled(items(50)[::-1], 8, seed=1)] == drawn
    assert [item.id for item in sampled([i for i in items(50) if i.id in drawn], 8, seed=1)] == drawn
    assert [item.id for item in sampled(items(50), 8, seed=2)] != drawn
    assert len(sampled(items(5), 8, seed=1)) == 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Llama with a tokenizer and a chat template, whose context the longest item does not fit."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = tokenizer_of("digit_splitting")
    tokenizer.chat_template = TEMPLATES["chatml"]
    try:
        tokenizer.save_pretrained(path)
    finally:
        tokenizer.chat_template = None
    sharp(transformers.LlamaConfig(**GROUPED)).save_pretrained(path)
    return str(path)


def test_what_is_measured_is_that_of_eager_attention_and_long_items_are_counted(folder):
    long = Item("long", "own", "p9", HARBOUR * 20, "How long?", ("forty minutes",), True)
    items = [
        Item(f"i{n}", "own", f"p{n % 2}", HARBOUR, f"How long is it, {n}?", ("forty minutes",), True) for n in range(3)
    ]
    told = []
    found = measure(folder, [*items, long], {"i1": "forty"}, progress=lambda done, of: told.append((done, of)))
    json.dumps(found, allow_nan=False)
    assert (found["items"], found["asked"], found["own_answers"]) == (3, 4, 1)
    assert found["excluded_by"] == {"too_long": 1}
    assert told == [(n, 15) for n in range(1, 16)]
    assert found["difference_from_eager"] < 1e-4
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for task in ("generation", "evaluation_context_last"):
        by_item = []
        for prompt in prompts_of(tokenizer, items, {"i1": "forty"}):
            if prompt.task == task:
                mean = np.mean([layer[:, 0].mean(axis=0) for layer in eager_rows(model, prompt.token_ids)], axis=0)
                by_item.append([mean[np.array(prompt.segments) == segment].sum() for segment in SEGMENTS])
        table = {row["segment"]: row["mass"] for row in found["table"] if row["task"] == task}
        meant = dict(zip(SEGMENTS, np.mean(by_item, axis=0), strict=True))
        assert table == pytest.approx({name: meant[name] for name in table}, abs=1e-5)
        assert set(SEGMENTS) - set(table) == ({"candidate"} if task == "generation" else set())


def test_nothing_that_fits_and_no_model_are_one_message(folder, tmp_path):
    long = Item("long", "own", "p9", HARBOUR * 20, "How long?", ("forty minutes",), True)
    with pytest.raises(AttentionError, match="none of 1 items fits the model's context"):
        measure(folder, [long], {})
    with pytest.raises(AttentionError, match="cannot be loaded by transformers"):
        measure(str(tmp_path), [long], {})
    with pytest.raises(ValueError, match="dtype: got 'int8'"):
        measure(folder, [long], {}, dtype="int8")


def test_attention_that_is_not_the_models_eager_attention_is_refused(folder, monkeypatch):
    """A family whose attention does something that is not known here must not be measured wrongly."""
    eager = transformers.models.llama.modeling_llama.eager_attention_forward

    def with_something_of_its_own(module, query, key, value, mask, scaling, **options):
        return eager(module, query, key, value, mask, scaling * 0.5, **options)

    monkeypatch.setattr(transformers.models.llama.modeling_llama, "eager_attention_forward", with_something_of_its_own)
    item = Item("i", "own", "p", HARBOUR, "How long?", ("forty minutes",), True)
    with pytest.raises(AttentionError, match="LlamaForCausalLM .*lies elsewhere than in its own eager attention"):
        measure(folder, [item], {})


@pytest.mark.engine
def test_512_tokens_of_the_embedded_judge_are_those_of_eager_attention(witness, embedded_tokenizer):
    ids = embedded_tokenizer(HARBOUR * 20, add_special_tokens=False)["input_ids"][:512]
    assert len(ids) == 512
    assert difference_from_eager(witness, ids, (0, 200, 511)) < 1e-4


@pytest.mark.engine
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_in_half_precision_is_not_refused_for_its_rounding(dtype, embedded_tokenizer):
    from trustjudge_ray.judging.embedded import embedded_model

    folder = embedded_model()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    ids = embedded_tokenizer(HARBOUR, add_special_tokens=False)["input_ids"]
    assert 0 < displaced(model, ids, (20, -1)) < TOLERANCES[dtype] / 3


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.heavy
def test_the_benchmark_measures_every_side_and_agrees_with_eager_attention():
    command = [sys.executable, str(BENCHMARK), "attention", "--small"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["benchmark"] == "attention"
    assert min(figures[name] for name in ("ratio", "growth", "eager_ratio", "rows_mb")) > 0
    assert figures["difference"] < 1e-4

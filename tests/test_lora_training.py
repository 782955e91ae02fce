"""Training an adapter, and reading labels and answers, on a tiny random model."""

import math
from dataclasses import replace

import pytest
from lora_cases import TINY, chat_tokenizer, material_with, tiny_llama

from trustjudge_ray.audit import lora_training
from trustjudge_ray.audit.lora_arms import LoraError
from trustjudge_ray.judging.labels import table_of


@pytest.fixture(scope="module")
def tokenizer():
    return chat_tokenizer()


@pytest.fixture(scope="module")
def material(tokenizer):
    return material_with(tokenizer)


@pytest.fixture
def model(tokenizer):
    return tiny_llama(len(tokenizer))


def test_loss_falls_to_nothing_on_a_memorisable_set_and_the_answers_come_back(model, tokenizer, material):
    examples = material.generation[:4]
    fitted = lora_training.with_adapter(model, replace(TINY, rank=16), 0)
    trained = lora_training.train(fitted, examples, replace(TINY, steps=60), 0, pad_id=0)
    assert trained.losses[0] > 3
    assert trained.losses[-1] < 0.05
    reader = lora_training.TransformersReader(fitted, tokenizer, batch_size=3)
    found = reader.answers([e.prompt_ids for e in examples], max_new_tokens=16)
    assert [a.text for a in found] == [tokenizer.decode(e.target_ids, skip_special_tokens=True) for e in examples]
    assert not any(answer.cut for answer in found)


def test_training_changes_the_adapter_and_nothing_else(model, material):
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    fitted = lora_training.with_adapter(model, TINY, 0)
    started = {n: w.detach().clone() for n, w in fitted.named_parameters() if w.requires_grad}
    done = lora_training.train(fitted, material.generation[:4], replace(TINY, steps=2), 0, pad_id=0)
    assert all("lora_" in name for name in started)
    assert done.trainable == sum(weight.numel() for weight in started.values())
    assert done.parameters == sum(weight.numel() for weight in model.parameters()) - done.trainable
    after = dict(fitted.named_parameters())
    assert any(not weight.equal(after[name]) for name, weight in started.items())
    for name, weight in fitted.get_base_model().state_dict().items():
        if "lora_" not in name:
            assert weight.equal(before[name.replace(".base_layer", "")])


def test_a_fresh_adapter_says_what_the_base_says(model, material, tokenizer):
    prompts = [e.prompt_ids for e in material.generation[:2]]
    table = table_of([[(5,)], [(9,)]], ["a", "b"])
    read = [lora_training.TransformersReader(model, tokenizer, 2).label_logprobs(prompts, table)]
    fitted = lora_training.with_adapter(model, TINY, 0)
    read.append(lora_training.TransformersReader(fitted, tokenizer, 2).label_logprobs(prompts, table))
    for before, after in zip(*read, strict=True):
        assert after == pytest.approx(before, abs=1e-5)


def test_the_loss_is_that_of_target_tokens_alone_and_an_example_weighs_as_another(model, material):
    import torch

    examples = [*material.generation[:2], *material.evaluation[:2]]
    assert len({len(e.target_ids) for e in examples}) > 1
    by_hand = []
    for e in examples:
        logits = model(torch.tensor([[*e.prompt_ids, *e.target_ids]])).logits[0].log_softmax(-1)
        places = range(len(e.prompt_ids) - 1, len(e.prompt_ids) + len(e.target_ids) - 1)
        by_hand.append(-sum(logits[p, t] for p, t in zip(places, e.target_ids, strict=True)) / len(e.target_ids))
    found = lora_training.example_losses(model, examples, pad_id=0)
    torch.testing.assert_close(found, torch.stack(by_hand), rtol=1e-4, atol=1e-4)


def weights_of(model):
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


def adapters_after(vocabulary, examples, *configs_and_seeds):
    found = []
    for config, seed in configs_and_seeds:
        fitted = lora_training.with_adapter(tiny_llama(vocabulary), config, seed)
        done = lora_training.train(fitted, examples, config, seed, pad_id=0)
        found.append((weights_of(fitted), done.losses))
    return found


def test_small_batches_with_accumulation_make_the_same_update_as_one_large(tokenizer, material):
    import torch

    examples = [*material.generation[:4], *material.evaluation[:4]]
    whole = replace(TINY, steps=1, batch_size=8, learning_rate=1e-3)
    parts = replace(whole, batch_size=2, gradient_accumulation=4, gradient_checkpointing=True)
    (one, first), (other, second) = adapters_after(len(tokenizer), examples, (whole, 0), (parts, 0))
    assert first == pytest.approx(second, rel=1e-5)
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], rtol=1e-3, atol=2e-5)


def test_training_again_gives_the_same_adapter_and_another_seed_another(tokenizer, material):
    examples = material.generation[:6]
    config = replace(TINY, steps=4, dropout=0.2)
    found = adapters_after(len(tokenizer), examples, (config, 1), (config, 1), (config, 2))
    assert found[0][1] == found[1][1]
    assert all(weight.equal(found[1][0][name]) for name, weight in found[0][0].items())
    assert found[0][1] != found[2][1]


def test_epochs_show_every_example_as_often_as_they_say(tokenizer, material):
    config = replace(TINY, steps=None, epochs=2.0, batch_size=2, gradient_accumulation=2)
    fitted = lora_training.with_adapter(tiny_llama(len(tokenizer)), config, 0)
    done = lora_training.train(fitted, material.generation[:12], config, 0, pad_id=0)
    assert (done.updates, done.epochs) == (6, 2.0)


def test_the_learning_rate_rises_once_falls_once_and_is_never_nothing():
    for updates, warmup in ((1, 0.0), (1, 0.9), (10, 0.1), (37, 0.5)):
        rates = [lora_training.rate_at(i, updates, warmup) for i in range(updates)]
        top = rates.index(max(rates))
        assert rates[: top + 1] == sorted(rates[: top + 1])
        assert rates[top:] == sorted(rates[top:], reverse=True)
        assert all(0 < rate <= 1 for rate in rates)
    assert max(lora_training.rate_at(i, 10, 0.1) for i in range(10)) == 1


def test_a_model_without_the_target_modules_is_told_which_it_has(model):
    with pytest.raises(LoraError, match=r"no linear layer \['c_attn'\].*'down_proj'.*'q_proj'"):
        lora_training.with_adapter(model, replace(TINY, target_modules=["q_proj", "c_attn"]), 0)


def test_without_peft_the_extra_is_named(model, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(LoraError, match=r"trustjudge-ray\[lora\]"):
        lora_training.with_adapter(model, TINY, 0)


def test_a_loss_that_is_no_number_ends_the_training(model, material):
    fitted = lora_training.with_adapter(model, TINY, 0)
    with pytest.raises(LoraError, match="learning_rate"):
        lora_training.train(fitted, material.generation[:4], replace(TINY, learning_rate=1e30), 0, pad_id=0)


def forced(model, prompt, path):
    """ln P(path | prompt), one token after the other, without padding or batches."""
    import torch

    total, ids = 0.0, list(prompt)
    for token in path:
        with torch.no_grad():
            total += float(model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[token])
        ids.append(token)
    return total


def test_label_log_probabilities_are_those_of_teacher_forcing_by_hand(model, tokenizer, material):
    prompts = [e.prompt_ids[-n:] for e, n in zip(material.generation[:5], (40, 7, 23, 7, 31), strict=True)]
    labels = [[(11, 12, 13)], [(11, 14)], [(20,), (21,)]]
    table = table_of(labels, ["a", "b", "c"])
    found = lora_training.TransformersReader(model, tokenizer, batch_size=2).label_logprobs(prompts, table)
    for prompt, row in zip(prompts, found, strict=True):
        by_hand = [math.log(sum(math.exp(forced(model, prompt, p)) for p in paths)) for paths in table.paths]
        assert row == pytest.approx(by_hand, abs=1e-4)
    assert table.paths[0] == ((11, 12),)


def test_a_model_that_counts_positions_from_the_start_is_not_misled_by_padding(tokenizer, material):
    """GPT-2's kind, whose layers are turned round as well."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    size = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), initializer_range=0.5, **size)).eval()
    fitted = lora_training.with_adapter(model, replace(TINY, target_modules=["c_attn"]), 0)
    lora_training.train(fitted, material.generation[:3], replace(TINY, steps=2), 0, pad_id=0)
    prompts = [e.prompt_ids[-n:] for e, n in zip(material.generation[:3], (40, 7, 23), strict=True)]
    table = table_of([[(11,)], [(20,)]], ["a", "b"])
    together, alone = (lora_training.TransformersReader(fitted, tokenizer, n) for n in (3, 1))
    rows = zip(together.label_logprobs(prompts, table), alone.label_logprobs(prompts, table), strict=True)
    for row, witness in rows:
        assert row == pytest.approx(witness, abs=1e-4)
    assert together.answers(prompts, 5) == alone.answers(prompts, 5)


def test_a_model_in_bfloat16_is_read_through_an_output_layer_in_float32(model, tokenizer, material):
    import torch

    half = lora_training.with_adapter(model.to(torch.bfloat16), TINY, 0).eval()
    prompt = material.generation[0].prompt_ids
    hidden = []
    hook = model.lm_head.register_forward_pre_hook(lambda part, inputs: hidden.append(inputs[0][0, -1]))
    table = table_of([[(11,)], [(20,)]], ["a", "b"])
    ((first, second),) = lora_training.TransformersReader(half, tokenizer, 1).label_logprobs([prompt], table)
    hook.remove()
    exact = (model.lm_head.weight.double() @ hidden[0].double()).log_softmax(-1)
    assert (first, second) == pytest.approx((float(exact[11]), float(exact[20])), abs=1e-4)
    assert half(torch.tensor([prompt])).logits.dtype == torch.bfloat16


def test_answers_in_a_batch_are_those_of_each_prompt_alone(model, tokenizer, material):
    prompts = [e.prompt_ids[-n:] for e, n in zip(material.generation[:4], (40, 7, 23, 31), strict=True)]
    together = lora_training.TransformersReader(model, tokenizer, 4).answers(prompts, 6)
    alone = lora_training.TransformersReader(model, tokenizer, 1).answers(prompts, 6)
    assert together == alone


@pytest.mark.parametrize(
    ("before", "after", "closer", "cut"),
    [
        ("salt", "</s>tin", "", False),
        ("salt", "", "", True),
        ("salt", "\ntin", "\n", False),
        (" salt", "", "\n", True),
    ],
)
def test_an_answer_ends_at_the_first_end_token_or_closer(tokenizer, before, after, closer, cut):
    ids = tokenizer(before + after, add_special_tokens=False)["input_ids"]
    ends = {tokenizer.eos_token_id}
    assert lora_training.answer_of(ids, ends, closer, tokenizer) == lora_training.Answer("salt", cut)

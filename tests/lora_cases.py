"""Items, protocols and a tiny model for the tests of the LoRA experiment."""

import polars as pl
from small_tokenizers import TEMPLATES, digit_splitting

from trustjudge_ray.audit import lora_reading
from trustjudge_ray.audit.lora_arms import Prompting
from trustjudge_ray.audit.lora_config import LoraConfig
from trustjudge_ray.audit.qa import Item
from trustjudge_ray.judging.protocols import parse

PLACES = ("Orl", "Vask", "Temin", "Hule", "Brask", "Ostin", "Pell", "Dorva", "Kurn", "Selm", "Arrin", "Tolk")
GOODS = ("salt", "wool", "copper", "timber", "glass", "barley", "slate", "honey", "linen", "tin", "cheese", "clay")
ANSWER = parse("""
name: answer-short
kind: answer
system: Answer the question from the passage in a few words.
user: |
  {context}
  Question:
  {question}
max_tokens: 12
closer: "\\n"
""")
_VERIFY = """
name: verify-{first}
kind: verify
labels: {{accept: Correct, reject: Incorrect}}
system: You check answers against a passage.
user: |
  {{context}}
  Question:
  {{question}}
  Answer:
  {{answer}}
  Is it {first} or {second}?
opener: "Verdict: ["
closer: "]"
"""
VERIFY = [
    parse(_VERIFY.format(first=first, second=second))
    for first, second in (("Correct", "Incorrect"), ("Incorrect", "Correct"))
]
TINY = LoraConfig(
    test_share=0.5,
    seeds=[0],
    rank=4,
    alpha=8,
    dropout=0.0,
    learning_rate=2e-2,
    steps=30,
    batch_size=4,
    gradient_accumulation=1,
    max_length=512,
    dtype="float32",
    device="cpu",
    protocols=[protocol.name for protocol in VERIFY],
)


def items_of(passages=12, benchmarks=("trade", "roads")):
    """Two questions about each passage."""
    found = []
    for number in range(passages):
        place, good, days = PLACES[number % 12], GOODS[number % 12], 2 + number % 12
        passage = f"The town of {place} sells {good}. A cart reaches it in {days} days."
        named = {"benchmark": benchmarks[number % len(benchmarks)], "passage_id": f"p{number}"}
        asked = ((f"What does {place} sell?", good), (f"How long does a cart take to {place}?", f"{days} days"))
        for i, (question, gold) in enumerate(asked):
            told = {"context": passage, "question": question, "golds": (gold,), "answerable": True}
            found.append(Item(f"p{number}.{i}", **told, **named))
    return found


def candidates_for(items):
    """The gold, and the other question's gold, of each item."""
    golds = {item.id: item.golds[0] for item in items}
    rows = []
    for item in items:
        sibling = golds[item.id[:-1] + ("1" if item.id.endswith("0") else "0")]
        for name, text, truth in (("gold", item.golds[0], True), ("swap", sibling, False), ("own", "tar", None)):
            rows.append({"item_id": item.id, "candidate": name, "text": text, "truth": truth})
    return pl.DataFrame(rows, schema={"item_id": pl.String, "candidate": pl.String, "text": pl.String, "truth": bool})


def chat_tokenizer():
    """A small tokenizer that splits digits, with a chat template."""
    tokenizer = digit_splitting()
    tokenizer.chat_template = TEMPLATES["chatml"]
    return tokenizer


def material_with(tokenizer):
    """Material of `items_of`, TINY's."""
    items = items_of()
    return lora_reading.material_of(items, candidates_for(items), Prompting(tokenizer, ANSWER, VERIFY), TINY)


def tiny_llama(vocabulary, seed=7):
    """A random Llama of two layers in float32; its frozen output layer is loud enough for a probability near 1."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=vocabulary, max_position_embeddings=1024, initializer_range=0.5, **size)
    return LlamaForCausalLM(config).eval()

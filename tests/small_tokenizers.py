"""Small tokenizers of the kinds that judges have, made in memory, and chat templates of the kinds they come with."""

import json
from collections.abc import Callable
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEXT = [
    "Score: [1] Score: [10] Score: [100] Score: [85] Verdict: [A] [B] [C] the answer is good and bad",
    "You are a judge. ### Question ### Answer Rate it. Strongly agree Strongly disagree Agree Disagree Neutral",
    "Very good Very bad Good Bad yes no Yes No A B C D 1 2 3 4 5 6 7 8 9 10 42 100 hello world text.",
    "system user assistant im_start im_end think INST start_of_turn end_of_turn model what is the capital of France?",
    "Score: [1].\n\nScore: [2].\n\nThe end.\n\n### Answer A\nyes\n\n### Answer B\nno\n\n",
]
CHAT_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<start_of_turn>", "<end_of_turn>", "<s>", "</s>")
"""Special in every tokenizer here."""
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>")
"""Added to every tokenizer here, but not flagged special, as in several families."""


def wrapped(core: Tokenizer, **options: object) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers hands it out, with the tokens of chat templates."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", extra_special_tokens=list(CHAT_TOKENS[:5]), **options
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS])
    return tokenizer


def byte_level(pattern: str = _GPT2, digits: bool = False, size: int = 700) -> PreTrainedTokenizerFast:
    """Byte-level BPE as in GPT-2, SmolLM2 (`digits`: numbers are split) and, with their pattern, Qwen and Llama 3."""
    core = Tokenizer(models.BPE())
    split = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    core.train_from_iterator(_TEXT * 3, trainer)
    return wrapped(core)


def qwen_like() -> PreTrainedTokenizerFast:
    """Splits digits, and joins punctuation with the newlines after it."""
    return byte_level(_QWEN)


def digit_splitting() -> PreTrainedTokenizerFast:
    """SmolLM2's kind: every digit a token."""
    return byte_level(digits=True)


def llama_like(prepend_scheme: str | None = None) -> PreTrainedTokenizerFast:
    """SentencePiece's kind: a space mark before each text, unknown characters as bytes, a start token by default.

    With a `prepend_scheme` the mark comes from the pre-tokenizer (newer conversions), else from the normalizer.
    """
    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]
    )
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=vocabulary, show_progress=False)
    core.train_from_iterator([word for text in _TEXT for word in text.split()] * 3, trainer)
    trained = json.loads(core.to_str())["model"]  # without the trainer's special tokens: bytes are none
    merges = [tuple(pair) for pair in trained["merges"]]
    core = Tokenizer(models.BPE(trained["vocab"], merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if prepend_scheme is None:
        core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        core.pre_tokenizer = None
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))])
    return wrapped(core, unk_token="<unk>")


def unigram(normalised: bool = False) -> PreTrainedTokenizerFast:
    """Unigram, whose vocabulary holds its control pieces as ordinary text; `normalised`: NFKC before all else."""
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator(_TEXT * 3, trainer)
    if normalised:
        core.normalizer = normalizers.NFKC()
    core.decoder = decoders.Metaspace()
    core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))])
    return wrapped(core, unk_token="<unk>")


def lower_casing() -> PreTrainedTokenizerFast:
    """WordPiece's habit of reading everything in lower case."""
    core = Tokenizer(models.WordLevel({"<unk>": 0, "score": 1, ":": 2, "[": 3, "a": 4, "]": 5, "b": 6}, "<unk>"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return wrapped(core, unk_token="<unk>")


def merging(*merges: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE without any splitting of words, in which just these texts are single tokens."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = []
    for text in merges:
        text = text.replace(" ", "Ġ")
        for end in range(2, len(text) + 1):
            pair = (text[: end - 1], text[end - 1])
            if pair not in pairs:
                pairs.append(pair)
                pieces.append("".join(pair))
    core = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, pairs))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return wrapped(core)


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte_level": byte_level,
    "qwen_like": qwen_like,
    "digit_splitting": digit_splitting,
    "llama_like": llama_like,
    "llama_first": lambda: llama_like("first"),
    "llama_always": lambda: llama_like("always"),
    "unigram": unigram,
    "unigram_nfkc": lambda: unigram(normalised=True),
}


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """One tokenizer of a kind, made once."""
    return KINDS[kind]()


_GENERATION = "{% if add_generation_prompt %}"
_LOOP = "{% for m in messages %}"
_END = "{% endfor %}"
_CHATML = "<|im_start|>{{ m['role'] }}\n{{ CONTENT }}<|im_end|>\n"
_CHATML_TAIL = _END + _GENERATION + "<|im_start|>assistant\n{% endif %}"


def chatml(content: str = "m['content']", loop: str = _LOOP, before: str = "") -> str:
    """ChatML, with whatever a family does to the content."""
    return before + loop + _CHATML.replace("CONTENT", content) + _CHATML_TAIL


_GEMMA_TURN = (
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
)
TEMPLATES = {
    "chatml": chatml(),
    "trims": chatml("m['content'] | trim"),
    "dated": chatml(before="<|im_start|>system\nToday: {{ strftime_now('%d %B %Y') }}<|im_end|>\n"),
    "date_string": chatml(before="{{ bos_token }}Today: {{ date_string }}\n"),
    "drops_system": chatml(loop="{% for m in messages if m['role'] != 'system' %}"),
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + _LOOP + _GEMMA_TURN + _END + _GENERATION + "<start_of_turn>model\n{% endif %}",
    "llama2": "{% set ns = namespace(system='') %}" + _LOOP + "{% if m['role'] == 'system' %}"
    "{% set ns.system = '<<SYS>>\n' + m['content'] + '\n<</SYS>>\n\n' %}{% elif m['role'] == 'user' %}"
    "{{ bos_token }}[INST] {{ ns.system }}{% set ns.system = '' %}{{ m['content'] | trim }} [/INST]"
    "{% else %} {{ m['content'] | trim }} {{ eos_token }}{% endif %}" + _END,
    "mistral": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% endif %}" + _LOOP + "{% if m['role'] == 'user' %}[INST]{% if loop.last and "
    "system is defined %}{{ system }}\n\n{% endif %}{{ m['content'] }}[/INST]{% else %} {{ m['content'] }}"
    "{{ eos_token }}{% endif %}" + _END,
    "zephyr": _LOOP
    + "<|{{ m['role'] }}|>\n{{ m['content'] }}</s>\n"
    + _END
    + _GENERATION
    + "<|assistant|>\n{% endif %}",
    "thinks": chatml() + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}"
    "<think>\n{% endif %}",
}
REFUSED = {
    "escapes": chatml("m['content'] | e"),
    "lower_cases": chatml("m['content'] | lower"),
    "json": chatml("m['content'] | tojson"),
    "one_line": chatml("m['content'].split() | join(' ')"),
    "repeats": chatml("m['content'] + m['content']"),
    "drops_user": chatml(loop="{% for m in messages if m['role'] != 'user' %}"),
    "raises": "{{ raise_exception('no') }}",
    "backwards": chatml(loop="{% for m in messages[::-1] %}"),
}
"""Templates that change, drop or move what they are given."""

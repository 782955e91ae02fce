"""How many tokens an engine is sent and computes for some tasks, counted on the real prompts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

from trustjudge_ray.judging.slots import SLOTS, task_slots
from trustjudge_ray.judging.vllm_reading import Reader


@dataclass(slots=True)
class TokenCounts:
    """Sums over judgments.

    Attributes:
        judgments: tried; `too_long` of them would not be sent.
        requests: sent to the engine, several for a judgment whose labels are several tokens.
        prompt: tokens of each judgment's prompt with the verdict's opener, counted once a judgment.
        sent: tokens of all requests' prompts: what is computed without prefix sharing.
        computed: of those, what is computed where requests share cached full blocks.
        written: the most tokens that are written before the verdicts; the verdict's one token a request is not counted.
    """

    judgments: int = 0
    too_long: int = 0
    truncated: int = 0
    requests: int = 0
    prompt: int = 0
    sent: int = 0
    computed: int = 0
    written: int = 0

    def scaled(self, factor: float, once: int = 0) -> "TokenCounts":
        """These counts for `factor` times as many judgments of the same kind; `once` of the computed tokens are the
        protocol's own beginning, which all judgments share."""
        scaled = TokenCounts(*(round(getattr(self, f.name) * factor) for f in fields(self)))
        once = min(once, self.computed)
        scaled.computed = once + round((self.computed - once) * factor)
        return scaled


class PrefixCache:
    """Which full blocks of tokens have been computed. Nothing is ever thrown out."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._seen: set[int] = set()

    def add(self, token_ids: Sequence[int], salt: int = 0) -> int:
        """Take in a request; how many of its tokens had to be computed: at least the last one. Requests of different
        salts share nothing."""
        block, cached, chain, hits = self._block, 0, salt, True
        for start in range(0, len(token_ids) - block + 1, block):
            chain = hash((chain, *token_ids[start : start + block]))
            hits = hits and chain in self._seen
            cached += block if hits else 0
            self._seen.add(chain)
        return len(token_ids) - min(cached, (len(token_ids) - 1) // block * block)


def shared_tokens(reader: Reader, block: int) -> int:
    """How many tokens of full blocks all prompts of a protocol begin with."""
    first, *_ = reader.prompts.laid_out(dict.fromkeys(SLOTS, ""))
    return len(first[1]) // block * block


def count_tokens(reader: Reader, tasks: Iterable[dict[str, Any]], cache: PrefixCache) -> TokenCounts:
    """Count TASK_TEXTS rows in the order in which they are judged; `cache` is what the engine has computed before."""
    total = TokenCounts()
    unique = count(-1, -1)
    opener = reader.table.opener_ids
    for task in tasks:
        total.judgments += 1
        prompt = reader.prompts.build(task_slots(reader.protocol, task))
        if prompt.too_long or len(prompt.token_ids) > reader.room:
            total.too_long += 1
            continue
        total.truncated += prompt.truncated
        total.prompt += len(prompt.token_ids) + len(opener)
        before, salt = prompt.token_ids, task["repeat"]
        for section in reader.sections:
            request = [*before, *section.before]
            total.requests += 1
            total.sent += len(request)
            total.computed += cache.add(request, salt)
            total.written += section.max_tokens
            written = [*request, *(next(unique) for _ in range(section.max_tokens))]
            cache.add(written, salt)  # what the engine wrote, it has
            before = [*written, *section.after]
        for question in reader.questions:
            request = [*before, *opener, *question.prefix]
            total.requests += 1
            total.sent += len(request)
            total.computed += cache.add(request, salt)
    return total

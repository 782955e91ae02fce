"""The checks of `jobs/gpu_check.py`, each a function in CHECKS."""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from trustjudge_ray.judging.protocols import load
from trustjudge_ray.judging.vllm_environment import is_cpu

from . import pipeline, precision, prefix
from ._judging import demo_tasks, engine_process, judge_config, refuse_failures, requests_of, tokens_of

Figures = dict[str, Any] | None
PROTOCOLS = ("score-5", "compare")
SAME = 0.05
"""So many nats apart are label log-probabilities of one float32 judge at most, on whatever number of GPUs."""


class Unlike(RuntimeError):
    """Two ways to read the same thing disagree."""


@dataclass(frozen=True)
class Check:
    """What the command line asks for."""

    model: str
    small: bool
    out: TextIO

    def say(self, text: str) -> None:
        """Print a line for a person."""
        print(text, file=self.out, flush=True)


def device(check: Check) -> Figures:
    """The engine, its device, and how many of them there are."""
    with engine_process() as process:
        found = process.submit(_device).result()
    check.say(f"vLLM {found['vllm']}, {found['gpus']} GPUs: {found['device']}, {found['gigabytes']:.0f} GB each")
    return found


def bfloat16(check: Check) -> Figures:
    """Label log-probabilities and expected scores in bfloat16 against float32."""
    found = precision.measure(check.model, 3 if check.small else 60)
    for line in precision.described(found):
        check.say(line)
    return {name: asdict(difference) for name, difference in found.items()}


def throughput(check: Check) -> Figures:
    """Judgments and prompt tokens a second of one engine, in one call."""
    with engine_process() as process:
        found = process.submit(_throughput, check.model, 2 if check.small else 24).result()
    check.say(
        f"{found['judgments']:.1f} judgments/s, {found['sent']:.0f} prompt tokens/s, {found['computed']:.0f} of them "
        "computed"
    )
    return found


def prefix_ratio(check: Check) -> Figures:
    """Prompt tokens computed over sent, with a small cache."""
    found = prefix.measure(check.model, 2 if check.small else 12)
    check.say(", ".join(f"{order} {share:.3f}" for order, share in found.computed.items()))
    return found.computed


def pipeline_ratio(check: Check) -> Figures:
    """Judgments a second of the whole pipeline over the bare engine's."""
    found = pipeline.measure(check.model, *((1, 2, 16) if check.small else (3, 24, 128)))
    for line in pipeline.described(found):
        check.say(line)
    return {"ratio": statistics.median(rates.ratio for rates in found)}


def prompt_scores(check: Check) -> Figures:
    """Whether the V2 runner scores label tokens inside a prompt, as `logprob_token_ids` reads them after one."""
    if is_cpu():
        check.say("not here: the V2 runner needs a GPU")
        return None
    with engine_process({"VLLM_USE_V2_MODEL_RUNNER": "1"}) as process:
        apart = process.submit(_prompt_scores, check.model).result()
    check.say(f"available; differs from logprob_token_ids by {apart:.5f} nat at most")
    if apart > SAME:
        raise Unlike(f"prompt_logprob_token_ids and logprob_token_ids differ by {apart:.3f} nat")
    return {"max": apart}


def tensor_parallel(check: Check) -> Figures:
    """Whether two GPUs read what one reads, in float32."""
    with engine_process() as process:
        gpus = process.submit(_device).result()["gpus"]
    if gpus < 2:
        check.say(f"not here: needs two GPUs, this machine has {gpus}")
        return None
    read = []
    for parallel in (1, 2):
        with engine_process() as process:
            read.append(process.submit(_float32_labels, check.model, parallel).result())
    pairs = [(x, y) for one, two in zip(*read, strict=True) for x, y in zip(one, two, strict=True)]
    apart = max(abs(x - y) for x, y in pairs)
    check.say(f"label log-probabilities on two GPUs differ from one's by {apart:.5f} nat at most")
    if apart > SAME:
        raise Unlike(f"one and two GPUs differ by {apart:.3f} nat")
    return {"max": apart}


CHECKS: dict[str, Callable[[Check], Figures]] = {
    "device": device,
    "precision": bfloat16,
    "throughput": throughput,
    "prefix": prefix_ratio,
    "pipeline": pipeline_ratio,
    "prompt_scores": prompt_scores,
    "tensor_parallel": tensor_parallel,
}


def _device() -> dict[str, Any]:
    import torch
    import vllm
    from vllm.platforms import current_platform

    gpus = torch.cuda.device_count()
    return {
        "vllm": str(vllm.__version__),
        "device": str(current_platform.get_device_name()),
        "gpus": gpus,
        "gigabytes": torch.cuda.get_device_properties(0).total_memory / 1e9 if gpus else 0.0,
    }


def _throughput(model: str, questions: int) -> dict[str, float]:
    from trustjudge_ray.judging.vllm_engine import VllmJudge

    protocols = {name: load(name) for name in PROTOCOLS}
    judge = VllmJudge(judge_config(model), protocols)
    tasks = demo_tasks(questions, list(protocols.values()))
    began = time.perf_counter()
    readings = refuse_failures(judge.judge(tasks))
    seconds = time.perf_counter() - began
    sent, cached = tokens_of(readings)
    return {"judgments": len(readings) / seconds, "sent": sent / seconds, "computed": (sent - cached) / seconds}


def _float32_labels(model: str, tensor_parallel_size: int) -> list[Any]:
    from trustjudge_ray.judging.vllm_engine import VllmJudge

    protocols = {name: load(name) for name in PROTOCOLS}
    judge = VllmJudge(judge_config(model, dtype="float32", head_dtype="float32"), protocols, tensor_parallel_size)
    readings = refuse_failures(judge.judge(demo_tasks(2, list(protocols.values()))))
    return [reading.label_logprobs for reading in readings]


def _prompt_scores(model: str) -> float:
    """The greatest difference between both ways to read the first labels of a few prompts."""
    from vllm import SamplingParams

    from trustjudge_ray.judging.vllm_engine import VllmJudge
    from trustjudge_ray.judging.vllm_reading import reader_of

    given, protocol = judge_config(model), load("score-5")
    engine = VllmJudge(given, {protocol.name: protocol})._llm
    reader = reader_of(given, engine.get_tokenizer(), protocol, given.max_model_len or 0)
    question, apart = reader.questions[0], 0.0
    for task in demo_tasks(1, [protocol]).to_pylist():
        ids = requests_of(reader, task)[0]["prompt_token_ids"]
        after = engine.generate({"prompt_token_ids": ids}, SamplingParams(**question.sampling), use_tqdm=False)
        inside = engine.generate(
            {"prompt_token_ids": [*ids, question.token_ids[0]]},
            SamplingParams(
                max_tokens=1,
                temperature=0.0,
                detokenize=False,
                prompt_logprob_token_ids=[list(question.token_ids)],
                prompt_logprob_start=len(ids) - 1,
            ),
            use_tqdm=False,
        )
        both = zip(after[0].outputs[0].logprobs.logprobs[1:], inside[0].prompt_token_id_logprobs[0], strict=True)
        apart = max([apart, *(abs(x - float(y)) for x, y in both)])
    return apart


def run(check: Check, names: list[str]) -> bool:
    """Make the checks, say their figures and, as the last line, the JSON object; whether none failed."""
    figures: dict[str, Figures | str] = {}
    failed = False
    for name in names:
        check.say(f"--- {name}: {' '.join((CHECKS[name].__doc__ or '').split())}")
        began = time.perf_counter()
        try:
            figures[name] = CHECKS[name](check)
        except Exception as error:  # one check's trouble, of whatever kind, is what a person wants to see
            failed = True
            figures[name] = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
            check.say(str(figures[name]))
        check.say(f"    {time.perf_counter() - began:.0f} s")
    check.say(json.dumps({"gpu_check": figures}, allow_nan=False))
    return not failed

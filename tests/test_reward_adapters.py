"""Rewards as the trainers call for them, and over HTTP as the contract of the service has it."""

import asyncio
import importlib.util
import math
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_judges import small_judge

from trustjudge_ray.config import ConfigError
from trustjudge_ray.judging import protocols, scripted
from trustjudge_ray.judging.base import JudgeError
from trustjudge_ray.judging.slots import fill, task_slots
from trustjudge_ray.rewards_config import RewardConfig
from trustjudge_ray.serving_config import loads
from trustjudge_ray.training import adapters
from trustjudge_ray.training.adapters import openrlhf, verl
from trustjudge_ray.training.adapters.trl import AsyncTrlReward, TrlReward, said
from trustjudge_ray.training.reward_tasks import response_id
from trustjudge_ray.training.rewards import RewardError, RewardRequest, TrustJudgeReward

TEXTS = ["worst", "middle", "best", ""]
CONFIG = f"""
judge:
  engine: scripted
  scripted:
    quality: {{{response_id("worst")}: 0.2, {response_id("middle")}: 0.5, {response_id("best")}: 0.8, reference: 0.5}}
    position_bias: 0.4
"""


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "rewards.yaml"
    path.write_text(CONFIG)
    return str(path)


def with_rewards(config: str, settings: str) -> str:
    path = Path(config).with_name(f"{abs(hash(settings))}.yaml")
    path.write_text(CONFIG + f"rewards: {settings}\n")
    return str(path)


def values_of(config: str, requests: list[RewardRequest]) -> list[float | None]:
    return [reward.value for reward in adapters.from_config(config).rewards(requests)]


def test_trl_gets_a_number_or_none_for_each_completion_and_its_log_the_figures_of_the_batch(config):
    noted: dict[str, Any] = {}
    found = TrlReward(config)(
        prompts=["Why?"] * 4,
        completions=TEXTS,
        completion_ids=[[1]] * 4,
        trainer_state=None,
        log_metric=noted.__setitem__,
        log_extra=noted.__setitem__,
    )
    assert found == values_of(config, [RewardRequest((turn("user", "Why?"),), text) for text in TEXTS])
    assert found[0] < found[1] < found[2]
    assert found[3] is None
    assert noted["trustjudge/missing"] == 0.25
    assert noted["trustjudge_status"] == ["ok", "ok", "ok", "empty_response"]


def test_trl_rewards_are_the_same_awaited_and_conversational(config):
    plain = TrlReward(config)(["Why?"] * 4, TEXTS)
    talked = [[turn("assistant", text)] for text in TEXTS]
    asked = [[turn("user", [{"type": "text", "text": "Why?"}, {"type": "image"}])]] * 4
    assert TrlReward(config)(asked, talked) == plain
    assert asyncio.run(AsyncTrlReward(config)(prompts=asked, completions=talked)) == plain


def test_a_conversational_completion_is_what_the_assistant_said():
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}
    turns = [turn("assistant", "One."), called, turn("tool", "42"), turn("assistant", None), turn("assistant", "Two.")]
    assert said(turns) == "One.\n\nTwo."
    assert adapters.plain_messages([called]) == (turn("assistant", ""),)


def test_trl_finds_groups_by_equal_prompts_wherever_they_stand_in_the_batch(config):
    grouped = TrlReward(with_rewards(config, "{mode: group}"))
    mixed = grouped(["one", "two", "one", "two", "three"], ["worst", "best", "best", "middle", "best"])
    assert mixed[4] is None
    assert mixed[:4] == [
        *(grouped(["one"] * 2, ["worst", "best"])[:1] + grouped(["two"] * 2, ["best", "middle"])[:1]),
        *(grouped(["one"] * 2, ["worst", "best"])[1:] + grouped(["two"] * 2, ["best", "middle"])[1:]),
    ]


def test_a_batch_without_any_reward_is_not_trained_on_in_silence(config):
    anchored = TrlReward(with_rewards(config, "{mode: anchor}"))
    told = "none of 2 completions has a reward: no_reference 2; .* column 'reference'"
    with pytest.warns(RuntimeWarning, match=told):
        assert anchored(["Why?"] * 2, ["so", "or so"], solution=["because"] * 2) == [None, None]


@pytest.mark.parametrize("named", [{"reference": "soluton"}, {"group": "soluton"}])
def test_a_misspelt_column_does_not_train_on_another_reward_in_silence(config, named):
    with pytest.raises(RewardError, match=r"no column 'soluton'; it has \['id', 'solution'\]"):
        TrlReward(config, **named)(["Why?"], ["so"], id=[1], solution=["because"], trainer_state=object())


@pytest.mark.parametrize(
    ("version", "fine"), [("1.5.1", False), ("0.29.0", False), ("1.6.0", True), ("1.16.0", True), ("2.0.0rc1", True)]
)
def test_a_trl_that_takes_none_for_0_gets_an_error_or_what_was_chosen(config, tmp_path, monkeypatch, version, fine):
    there = tmp_path / f"trl-{version}.dist-info"
    there.mkdir()
    (there / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = (["Why?"] * 2, ["best", ""])
    chosen = TrlReward(with_rewards(config, "{missing: -1.0}"))(*asked)
    if fine:
        assert TrlReward(config)(*asked)[1] is chosen[1] is None
        state = pytest.importorskip("transformers").TrainerState()
        assert TrlReward(config)(*asked, trainer_state=state, log_metric=lambda name, value: None)[1] is None
        with pytest.raises(adapters.MissingRewardError, match="this trainer of TRL knows no missing one"):
            TrlReward(config)(*asked, trainer_state=state)  # as OnlineDPO calls
    else:
        with pytest.raises(adapters.MissingRewardError, match=f"TRL {version} knows no missing one"):
            TrlReward(config)(*asked)
        assert chosen[1] == -1.0


def test_trl_takes_references_from_the_column_that_is_named(config):
    anchored = TrlReward(config)(["Why?"], ["middle"], reference=["so"])
    assert anchored == pytest.approx([0.5])
    assert TrlReward(config, reference="solution")(["Why?"], ["middle"], solution=["so"]) == anchored
    assert TrlReward(config, reference=None)(["Why?"], ["middle"], reference=["so"]) == TrlReward(config)(
        ["Why?"], ["middle"]
    )


def test_a_reference_that_is_no_text_is_refused_and_its_python_form_is_never_compared_with(config):
    asked = (["Why?"], ["middle"])
    scored = TrlReward(config)(*asked)
    for missing in (float("nan"), np.float64("nan"), np.float32("nan"), Decimal("nan")):
        assert TrlReward(config)(*asked, reference=[missing]) == scored
    (unanchored,) = verl.compute_scores(["x"], ["middle"], [np.nan], [{"prompt": "Why?"}], config=config)
    assert [unanchored["score"]] == scored
    assert TrlReward(config)(*asked, reference=[0]) == pytest.approx([0.5])
    assert TrlReward(config)(*asked, reference=[[{"type": "text", "text": "so"}]]) == pytest.approx([0.5])
    for truth in ({"target": 42}, ["so"], np.array(["so"], dtype=object)):
        with pytest.raises(RewardError, match="a reference is (dict|list|ndarray); a text, or None for none"):
            verl.compute_scores(["x"], ["middle"], [truth], [{"prompt": "Why?"}], config=config)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompts": "Why?", "completions": "best"}, "prompts: got a text for 4 prompts; a list with one each"),
        ({"completions": ["so", "or so"]}, "completions: got 2 entries for 1 prompts"),
        ({"reference": "r"}, "reference: got a text"),
        ({"reference": ["r", "s"]}, "reference: got 2 entries for 1 prompts"),
        ({"prompts": [turn("user", "Why?")]}, "a prompt is dict; a text, or messages with role and content"),
        ({"prompts": [["Why?"]]}, "a prompt is a list with str; a text, or messages"),
        ({"prompts": [None]}, "a prompt is NoneType"),
        ({"completions": [None]}, "a completion is NoneType"),
        ({"completions": [[{"content": "so"}]]}, "a completion is a list with dict"),
    ],
)
def test_columns_that_are_none_are_named_and_no_text_is_taken_letter_by_letter(config, columns, message):
    with pytest.raises(RewardError, match=message):
        TrlReward(config)(**{"prompts": ["Why?"], "completions": ["so"]} | columns)


def test_a_role_is_the_same_and_known_whichever_way_it_comes(config):
    called = [turn("user", "Add."), turn("ipython", "42")]
    named = [turn("user", "Add."), turn("tool", "42")]
    assert TrlReward(config)([called], ["best"]) == TrlReward(config)([named], ["best"])
    with pytest.raises(RewardError, match=r"requests\[0\].messages\[1\].role: got 'king'; one of system, .*tool"):
        TrlReward(config)([[turn("user", "Why?"), turn("king", "So.")]], ["best"])


def test_a_column_of_references_that_is_nothing_is_no_reference(config):
    asked = (["Why?"], ["middle"])
    assert TrlReward(config)(*asked, reference=None) == TrlReward(config)(*asked)


@pytest.mark.parametrize("missing", [float("nan"), float("inf"), "0.5"])
def test_verl_is_not_given_what_is_no_number_for_a_missing_reward(config, missing):
    with pytest.raises(ConfigError, match=r"reward_kwargs.missing: got .*; a number, or nothing"):
        verl.compute_scores(["x"], [""], [None], [{"prompt": "Why?"}], config=config, missing=missing)


def test_a_trl_reward_can_be_sent_to_another_process_before_it_is_used(config):
    sent = pickle.loads(pickle.dumps(TrlReward(config, name="judge")))
    assert sent.__name__ == "judge"
    assert sent(["Why?"], ["best"]) == TrlReward(config)(["Why?"], ["best"])


def test_verl_samples_that_are_under_way_together_are_judged_with_the_values_of_the_batch_form(config):
    prompts = [np.array([turn("user", "Why?")], dtype=object)] * 3

    async def samples() -> list[dict[str, float]]:
        calls = [
            verl.compute_score("mine", text, "", {"prompt": prompt}, config=config, unknown=1)
            for text, prompt in zip(TEXTS, prompts, strict=False)
        ]
        return await asyncio.gather(*calls)

    found = asyncio.run(samples())
    whole = verl.compute_scores(["mine"] * 3, TEXTS[:3], [None] * 3, [{"prompt": p} for p in prompts], config=config)
    batch = [sample["score"] for sample in whole]
    assert [sample["score"] for sample in found] == pytest.approx(batch)
    names = ("score", "judged", "calls", "cut", "label_mass", "entropy", "p_tie", "agree", "order_effect")
    assert {tuple(sample) for sample in found + whole} == {names}
    assert all(sample["entropy"] > 0 and math.isnan(sample["agree"]) for sample in found)
    one_by_one = [
        verl.compute_score_sync("mine", text, "", {"prompt": "Why?"}, config=config, reward_router_address=None)[
            "score"
        ]
        for text in TEXTS[:3]
    ]
    assert one_by_one == pytest.approx(batch)


def test_verl_is_given_the_ground_truth_as_the_reference(config):
    (anchored,) = verl.compute_scores(["x"], ["middle"], ["so"], [{"prompt": "Why?"}], config=config)
    assert anchored["score"] == pytest.approx(0.5)


def test_a_trainer_without_missing_rewards_gets_an_error_or_what_was_chosen_but_never_a_silent_zero(config):
    with pytest.raises(
        adapters.MissingRewardError, match=r"no reward \(empty_response\), and verl knows no missing one"
    ):
        verl.compute_scores(["x"], [""], [None], [{"prompt": "Why?"}], config=config)
    chosen = with_rewards(config, "{missing: -0.5}")
    filled, judged = verl.compute_scores(["x"] * 2, ["", "best"], [None] * 2, [{"prompt": "Why?"}] * 2, config=chosen)
    assert (filled["score"], filled["judged"], judged["judged"]) == (-0.5, 0.0, 1.0), "no log would show it"
    told = asyncio.run(verl.compute_score("x", "", None, {"prompt": "Why?"}, config=chosen, missing=0.25))
    assert (told["score"], told["judged"], told["calls"], math.isnan(told["label_mass"])) == (0.25, 0.0, 0.0, True)


@pytest.mark.parametrize("extra", [None, {}, {"index": 3}, {"prompt": []}, {"prompt": math.nan}])
def test_verl_without_a_prompt_is_told_where_to_put_it(config, extra):
    with pytest.raises(RewardError, match="extra_info has no 'prompt'.*reward_kwargs.prompt_key"):
        verl.compute_scores(["x"], ["best"], [None], [extra], config=config)


def test_openrlhf_loads_the_file_by_its_path_and_gets_tensors(config, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv(adapters.WHERE, config)
    found_at = importlib.util.spec_from_file_location("reward_func", openrlhf.__file__)
    module = importlib.util.module_from_spec(found_at)
    found_at.loader.exec_module(module)
    prompt = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    queries = [f"{prompt}{text}<|im_end|>\n" for text in TEXTS[:3]]
    told = module.reward_func(queries=queries, prompts=[prompt] * 3, labels=["", None, " "])
    wanted = values_of(config, [RewardRequest((turn("user", "Why?"),), text) for text in TEXTS[:3]])
    assert told["rewards"].tolist() == pytest.approx(wanted)
    assert torch.equal(told["scores"], told["rewards"])
    assert all(column.shape == (3,) for column in told["extra_logs"].values())


def test_samples_that_openrlhf_hands_over_one_by_one_have_logs_of_the_same_names(config):
    """Its batches are put together by the names of the first sample, and a name too many or too few ends the run."""
    given = adapters.source(with_rewards(config, "{missing: 0.0}"))
    asked = [
        (["p best"], ["so"]),
        (["p middle"], [""]),
        (["p "], [None]),
        (["p best", "p worst", "p middle"], [""] * 3),
    ]
    logs = [openrlhf.rewards_of(given, queries, ["p "] * len(queries), labels) for queries, labels in asked]
    assert len({frozenset(columns) for _, columns in logs}) == 1
    anchored, scored, empty, several = (columns for _, columns in logs)
    assert anchored["agree"][0] in (0.0, 1.0)
    assert math.isnan(scored["agree"][0])
    assert (empty["judged"], empty["missing"], math.isnan(empty["label_mass"][0])) == ([0.0], [1.0], True)
    assert all(-1 <= value <= 1 for value in several["length_correlation"])


@pytest.mark.parametrize("trainer", ["openrlhf", "verl"])
def test_samples_that_a_trainer_hands_over_in_many_threads_are_judged_in_few_batches(trainer):
    read = protocols.load("score-5-conversation")
    judge, asked = scripted.ScriptedJudge({"seconds_per_batch": 0.2}, {read.name: read}), []

    class Counted:
        def judge(self, tasks: Any) -> Any:
            asked.append(len(tasks))
            return judge.judge(tasks)

    given = TrustJudgeReward(RewardConfig(mode="score"), Counted(), {read.name: read})

    def one(text: str) -> float:
        if trainer == "verl":
            return verl.compute_score_sync("x", text, None, {"prompt": "p "}, config=given)["score"]
        return openrlhf.rewards_of(given, [f"p {text}"], ["p "], [None])[0][0]

    texts = [f"answer {i}" for i in range(12)]
    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(one, texts))
    assert (sum(asked), len(asked) <= 4) == (12, True)
    alone = given.rewards([RewardRequest((turn("user", "p "),), text) for text in texts])
    assert found == pytest.approx([reward.value for reward in alone])


def test_a_trainer_that_runs_an_event_loop_in_its_thread_is_answered_too(config):
    async def call() -> list[float]:
        return openrlhf.rewards_of(adapters.source(config), ["p best"], ["p "], [None])[0]

    assert asyncio.run(call()) == openrlhf.rewards_of(adapters.source(config), ["p best"], ["p "], [None])[0]


@pytest.mark.parametrize(
    ("prompt", "messages"),
    [
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
            (turn("system", "Be brief."), turn("user", "Why?")),
        ),
        (
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhy\nnow?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            (turn("user", "Why\nnow?"),),
        ),
        (
            "<bos><start_of_turn>user\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\nC"
            "<end_of_turn>\n<start_of_turn>model\n",
            (turn("user", "A"), turn("assistant", "B"), turn("user", "C")),
        ),
        (
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nAdd.<|eot_id|><|start_header_id|>ipython"
            "<|end_header_id|>\n\n42<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            (turn("user", "Add."), turn("tool", "42")),
        ),
        ("Why? (in brief)", (turn("user", "Why? (in brief)"),)),
        *(
            (f"<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n{thinking}", (turn("user", "Why?"),))
            for thinking in ("<think>\n", "<think>\n\n</think>\n\n", "\n")
        ),
        *(
            (quoting, (turn("user", quoting),))
            for quoting in (
                "Explain <|im_start|>user\nhi<|im_end|> to me.",
                "<|im_start|>user\nhi<|im_end|>\nWhat is that?",
                "<|im_start|>user\nWhat is <|im_end|> for?<|im_end|>\n<|im_start|>assistant\n",
                "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\nBecause it is",
                "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n<think>First",
                "<|im_start|>king\nWhy?<|im_end|>\n<|im_start|>assistant\n",
                "<b><|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
            )
        ),
        (
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n<|im_start|>user\nhi<|im_end|>?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            (turn("user", "<|im_start|>user\nhi<|im_end|>?"),),
        ),
    ],
)
def test_a_templated_prompt_is_taken_apart_into_its_turns(prompt, messages):
    assert openrlhf.turns(prompt) == messages


@pytest.mark.parametrize(
    ("query", "completion"),
    [
        ("P:so it is</s>", "so it is"),
        ("P: a <|im_end|>\n<|endoftext|>", "a"),
        ("<s>P:a</s>", "a"),
        ("<s> P:a</s>", "a"),
        ("<|begin_of_text|><|begin_of_text|>P:a", "a"),
        ("[gMASK] <sop> P:a", "a"),
        ("<\uff5cbegin\u2581of\u2581sentence\uff5c>P:a", "a"),
        ("P:</s>", ""),
        ("P:P:a", "P:a"),
    ],
)
def test_a_completion_ends_before_the_marks_of_its_end(query, completion):
    assert openrlhf.completion(query, "P:") == completion


def test_a_text_of_nothing_but_marks_takes_no_time_that_grows_with_its_square():
    began = time.process_time()
    openrlhf.completion("P:" + "</s> " * 200_000, "P:")
    for mark in ("<|im_start|>user\n", "<start_of_turn>user\n"):
        assert openrlhf.turns(mark * 100_000) == (turn("user", mark * 100_000),)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("before", ["Another prompt: a", "Say P:a", "<b>P:a", "- P:a", "</s>P:a", "<s>" * 100 + "P:a"])
def test_a_query_that_does_not_begin_with_its_prompt_is_refused_and_not_judged_with_it(before):
    with pytest.raises(RewardError, match="does not begin with its prompt"):
        openrlhf.completion(before, "P:")


def test_a_query_of_nothing_but_blanks_takes_no_time_that_grows_with_its_square():
    began = time.process_time()
    with pytest.raises(RewardError):
        openrlhf.completion(" " * 2_000_000, " " * 1_000_000 + "P:")
    assert time.process_time() - began < 5


def test_without_configuration_or_with_a_wrong_one_the_message_says_what_would_be_right(monkeypatch, config):
    monkeypatch.delenv(adapters.WHERE, raising=False)
    with pytest.raises(ConfigError, match="TRUSTJUDGE_REWARD is not set"):
        adapters.source()
    with pytest.raises(ConfigError, match="unknown key 'modus'"):
        adapters.source(with_rewards(config, "{modus: score}"))
    with pytest.raises(ConfigError, match="rewards.scale: got 'percent'"):
        adapters.source(with_rewards(config, "{scale: percent}"))


def test_a_judge_over_several_machines_is_refused_in_a_trainers_process_with_the_way_to_have_it(tmp_path):
    path = tmp_path / "rewards.yaml"
    path.write_text("cluster: {placement: pack, gpus_per_replica: 2, tensor_parallel: 2}")
    with pytest.raises(ConfigError, match=r"cluster.placement: got 'pack'.*'node', or .*trustjudge serve-rewards"):
        adapters.from_config(path)


@pytest.mark.engine
def test_a_judge_is_split_in_a_trainers_process_as_configured_and_not_loaded_whole_on_one_gpu(tmp_path):
    """The number of heads cannot be split in two, which the engine finds out only if it is asked to split."""
    model = small_judge(tmp_path / "judge", num_attention_heads=3, hidden_size=96)
    path = tmp_path / "rewards.yaml"
    path.write_text(f"judge: {{model: {model}}}\ncluster: {{tensor_parallel: 2}}")
    with pytest.raises(JudgeError, match="heads .*divisible by tensor parallel size"):
        adapters.from_config(path)


@pytest.mark.parametrize("mode", ["score", "anchor", "group"])
def test_by_default_the_judge_sees_the_system_turn_and_earlier_answers(mode):
    settings, read = adapters.reward_protocols(RewardConfig(mode=mode))
    judge, shown = scripted.ScriptedJudge({}, read), []

    class Reads:
        def judge(self, tasks: Any) -> Any:
            for task in tasks.to_pylist():
                protocol = read[task["protocol"]]
                shown.append(fill(protocol.user, task_slots(protocol, task)))
            return judge.judge(tasks)

    turns = (
        turn("system", "Answer in French."),
        turn("user", "Hello?"),
        turn("assistant", "Salut."),
        turn("user", "Go"),
    )
    asked = [RewardRequest(turns, text, "C'est bon.") for text in ("Oui.", "Yes.")]
    assert None not in [reward.value for reward in TrustJudgeReward(settings, Reads(), read).rewards(asked)]
    assert shown
    for text in shown:
        assert [part in text for part in ("[system]\nAnswer in French.", "[assistant]\nSalut.")] == [True, True]


@pytest.mark.parametrize("wrong", ["{mode: score, score_protocol: compare}", "{pair_protocol: score-5}"])
def test_a_protocol_of_another_kind_is_refused_before_any_judge_is_loaded(wrong):
    settings = loads(f"judge: {{engine: scripted}}\nrewards: {wrong}\n", "x.yaml").rewards
    with pytest.raises(ConfigError, match=r"rewards\.(score|pair)_protocol: '(compare|score-5)' is of kind"):
        adapters.reward_protocols(settings)


def test_a_protocol_of_ones_own_is_named_by_its_path(config, tmp_path):
    from corpora import SCORE

    (tmp_path / "mine.yaml").write_text(SCORE.replace("name: score-5", "name: mine"))
    own = with_rewards(config, f"{{mode: score, score_protocol: {tmp_path / 'mine.yaml'}}}")
    assert TrlReward(own)(["Why?"], ["best"]) == pytest.approx(TrlReward(config)(["Why?"], ["best"]))


def test_no_trainer_engine_or_torch_is_imported_with_the_adapters():
    probe = (
        "import sys\n"
        "from trustjudge_ray.training.adapters import openrlhf, trl, verl\n"
        "heavy = {'trl', 'verl', 'openrlhf', 'torch', 'transformers', 'datasets', 'ray', 'vllm', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr

from dataclasses import replace

import pytest

from trustjudge_ray import config, nearest
from trustjudge_ray.analysis.scoring import SCORING_RULES
from trustjudge_ray.analysis.verdicts import VERDICT_RULES

SMALL = "corpus: {format: flat, paths: [a.jsonl]}\n"


def test_a_file_with_only_a_corpus_is_a_configuration():
    loaded = config.loads(SMALL)
    assert loaded.config.all_judges[0].model == "embedded"
    assert loaded.config.protocols == ["score-5", "compare"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corpus: {paths: [a], pats: 1}", r"corpus: unknown key 'pats'; did you mean 'paths'\?"),
        (SMALL + "judge: {temprature: 1}", r"judge: unknown key 'temprature'; did you mean 'temperature'\?"),
        (SMALL + "judges: [{modl: x}]", r"judges: unknown key 'modl'"),
        (SMALL + "run: {limit: many}", r"run\.limit: Value 'many'"),
        ("corpus: {format: csv, paths: [a]}", r"corpus\.format: got 'csv'; one of \["),
        ("out: x", r"corpus\.paths: got \[\]; at least one"),
        (SMALL + "run: {max_failure_rate: 2}", r"run\.max_failure_rate: got 2\.0; a share from 0 to 1"),
        (SMALL + "plan: {design: anchor}", r"plan\.anchor: got None"),
        (SMALL + "judge: {engine: scripted, name: GPT-5}", "a scripted judge's name starts with 'scripted'"),
        (SMALL + "judges: [{model: a/x}, {model: b/x}]", r"two are called the same in \['x', 'x'\]"),
        (SMALL + "judge: {model: a}\njudges: [{model: b}]", "`judge` and `judges` are both given"),
        (SMALL + "cluster: {max_replicas: 2, replicas: 3}", r"cluster\.max_replicas: got 2; cluster\.replicas or more"),
        (SMALL + "cluster: {placement: rack}", r"cluster\.placement: got 'rack'; one of \['node', 'pack', 'spread'\]"),
        (SMALL + "cluster: {placement: pack, gpus_per_replica: 1}", r"cluster\.placement: got 'pack'; 'node', as"),
        (SMALL + "cluster: {gpus_per_replica: 2}", r"cluster\.gpus_per_replica: got 2; .*splits the model over 1: 1"),
        (SMALL + "cluster: {gpus_per_replica: 1, tensor_parallel: 4}", r"gpus_per_replica: got 1; .*over 4"),
        (SMALL + "cluster: {gpus_per_replica: 0.5, tensor_parallel: 2}", r"gpus_per_replica: got 0\.5; .*over 2"),
        (SMALL + "run: {engine_deaths: 0}", r"run\.engine_deaths: got 0; 1 or more"),
        ("- just a list", "a configuration is a mapping"),
        ("a: [", "not readable as YAML"),
        (SMALL + "judge: 5", r"judge: got 5; a mapping with"),
    ],
)
def test_a_wrong_configuration_is_one_message_that_names_the_key(text, message):
    with pytest.raises(config.ConfigError, match=message):
        config.loads(text, "my.yaml")


@pytest.mark.parametrize(
    ("cluster", "engine_args"),
    [
        ("{gpus_per_replica: 0.5}", "{}"),
        ("{gpus_per_replica: 4, tensor_parallel: 4}", "{}"),
        ("{gpus_per_replica: 8, tensor_parallel: 4, placement: pack}", "{pipeline_parallel_size: 2}"),
        ("{tensor_parallel: 2}", "{}"),
    ],
)
def test_as_many_gpus_as_the_model_is_split_over_are_accepted(cluster: str, engine_args: str):
    config.loads(SMALL + f"cluster: {cluster}\njudge: {{engine_args: {engine_args}}}\n")


def test_overrides_change_values_and_keep_leading_zeros():
    loaded = config.loads(
        SMALL, overrides=["run.limit=3", "analysis.tolerances=[0,0.5]", "judge.name=007", "corpus.fields={model: =x}"]
    )
    assert loaded.config.run.limit == 3
    assert loaded.config.analysis.tolerances == [0, 0.5]
    assert loaded.config.judge.name == "007"
    assert loaded.config.corpus.fields == {"model": "=x"}


@pytest.mark.parametrize("override", ["run.limit", "=3", "run.limt=3"])
def test_a_wrong_override_is_refused(override):
    with pytest.raises(config.ConfigError):
        config.loads(SMALL, overrides=[override])


def test_a_secret_from_the_environment_is_used_and_never_kept(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "hunter2")
    loaded = config.loads(SMALL + "storage_options: {secret: '${oc.env:MY_SECRET}'}\n")
    assert loaded.config.storage_options["secret"] == "hunter2"
    assert "hunter2" not in loaded.unresolved_yaml
    assert "${oc.env:MY_SECRET}" in loaded.unresolved_yaml


def test_a_run_inside_another_keeps_the_references_of_its_judge_and_not_what_they_stand_for(monkeypatch):
    monkeypatch.setenv("TOKEN_OF_MINE", "hunter2")
    engine = "{extra_headers: {Authorization: '${oc.env:TOKEN_OF_MINE}'}}"
    text = SMALL + f"judges: [{{engine: scripted}}, {{model: a/b, audit: x, engine_args: {engine}}}]\n"
    loaded = config.loads(text)
    judge = replace(loaded.config.judges[1], audit=None)
    inner = config.with_sections(loaded, judges=[], judge=judge, out="runs/inner")
    assert "hunter2" not in inner.unresolved_yaml
    assert "${oc.env:TOKEN_OF_MINE}" in inner.unresolved_yaml
    again = config.loads(inner.unresolved_yaml).config
    assert (again.all_judges, again.out) == ([judge], "runs/inner")


def test_a_judge_that_the_text_does_not_name_is_written_out_whole():
    loaded = config.loads(SMALL)
    assert config.loads(config.with_sections(loaded, judge=loaded.config.all_judges[0]).unresolved_yaml)
    other = replace(loaded.config.all_judges[0], engine="scripted", scripted={"noise": 0.5})
    assert config.loads(config.with_sections(loaded, judge=other).unresolved_yaml).config.judge == other


def test_evaluate_needs_no_secret_of_the_machine_that_judged():
    text = SMALL + "storage_options: {secret: '${oc.env:NOT_SET_ANYWHERE}'}\nanalysis: {k: [3]}\n"
    settings = config.load_analysis(text, "config.yaml", ["analysis.tolerances=[0.5]"])
    assert (settings.k, settings.tolerances) == ([3], [0.5])


def test_a_missing_file_is_named():
    with pytest.raises(config.ConfigError, match=r"nowhere\.yaml"):
        config.load("nowhere.yaml")


def test_a_secret_written_out_in_clear_is_used_and_not_kept():
    options = ["storage_options.secret=hunter2", "storage_options.client_kwargs.aws_access_key_id=AKIA"]
    loaded = config.loads(SMALL + "storage_options: {endpoint_url: http://s3}\n", overrides=options)
    assert loaded.config.storage_options["secret"] == "hunter2"
    assert "hunter2" not in loaded.unresolved_yaml
    assert "AKIA" not in loaded.unresolved_yaml
    assert "http://s3" in loaded.unresolved_yaml


def test_the_rules_of_the_configuration_are_those_that_are_computed():
    assert set(config.AnalysisConfig().score_rules) == set(SCORING_RULES)
    assert set(config.AnalysisConfig().verdict_rules) == set(VERDICT_RULES)
    with pytest.raises(config.ConfigError, match=r"analysis\.score_rules: got \['expcted'\]"):
        config.loads(SMALL + "analysis: {score_rules: [expcted]}\n")


def test_tolerances_may_be_one_list_a_mapping_or_one_number():
    for written, parsed in (
        ("{score: ['5%'], ppl: [0]}", {"score": ["5%"], "ppl": [0]}),
        ("[0, 1]", [0, 1]),
        ("0.5", 0.5),
    ):
        assert config.loads(SMALL + f"analysis: {{tolerances: {written}}}\n").config.analysis.tolerances == parsed
    assert config.loads(SMALL, overrides=["analysis.tolerances={score: [1]}"]).config.analysis.tolerances == {
        "score": [1]
    }


def test_one_value_stands_for_a_list_of_one():
    loaded = config.loads("corpus: {paths: a.jsonl}\n", overrides=["analysis.k=3"])
    assert (loaded.config.corpus.paths, loaded.config.analysis.k) == (["a.jsonl"], [3])


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(config.ConfigError, match=r"c\.yaml: not UTF-8"):
        config.load(tmp_path / "c.yaml")


def test_a_wrong_value_from_the_command_line_is_not_blamed_on_the_file_alone():
    """The file has no such line, and somebody would look for it."""
    with pytest.raises(config.ConfigError, match=r"c\.yaml with overrides: plan\.design: got 'x'"):
        config.loads("corpus: {paths: [a]}", "c.yaml", ["plan.design=x"])
    with pytest.raises(config.ConfigError, match=r"c\.yaml: plan\.design: got 'x'"):
        config.loads("corpus: {paths: [a]}\nplan: {design: x}", "c.yaml")


@pytest.mark.parametrize("override", ["storage_options.secret={hush: [hush", "judge.engine_args.api_key={hush:"])
def test_a_credential_in_an_override_that_cannot_be_read_is_not_repeated(override):
    with pytest.raises(config.ConfigError) as refused:
        config.loads("corpus: {paths: [a]}", "c.yaml", [override])
    assert "hush" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_only_ends_alike_is_not_offered(tmp_path):
    (tmp_path / "backup.yaml").write_text("")
    (tmp_path / "nightly.yaml").write_text("")
    assert "did you mean" not in nearest.did_you_mean_file(tmp_path / "mine.yaml")
    assert "backup.yaml, nightly.yaml" in nearest.did_you_mean_file(tmp_path / "mine.yaml")
    assert "did you mean" in nearest.did_you_mean_file(tmp_path / "nightli.yml")

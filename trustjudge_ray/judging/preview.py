"""What a judge would be asked, seen without loading it: its tokenizer, chat template, config and label tables."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trustjudge_ray.config import JudgeConfig, judge_name
from trustjudge_ray.judging.base import JudgeError
from trustjudge_ray.judging.model_files import locate
from trustjudge_ray.judging.prompts import PromptBuilder
from trustjudge_ray.judging.protocols import Protocol
from trustjudge_ray.judging.tokens import Tokenizer
from trustjudge_ray.judging.vllm_reading import Reader, reader_of

NO_LIMIT = 2**31
"""A context that holds everything."""
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


@dataclass(frozen=True, slots=True)
class Preview:
    """A judge's tokenizer and config.

    Attributes:
        source: the model's folder, or its name on the hub.
        model: the model's config.json; of a model of several parts the text part.
    """

    judge: JudgeConfig
    source: str
    tokenizer: Tokenizer
    model: Mapping[str, Any]

    @property
    def own_context(self) -> int | None:
        """The longest context that the model itself states, in tokens; None where it states none."""
        found = [self.model[key] for key in _CONTEXT_KEYS if isinstance(self.model.get(key), int)]
        return min(found) if found else None

    @property
    def context(self) -> int | None:
        """The context that judging gets: `judge.max_model_len`, or the model's own."""
        return self.judge.max_model_len or self.own_context

    def reader(self, protocol: Protocol, context: int | None = None) -> Reader:
        """A protocol as it is put to this judge, in its own context or in another.

        Raises:
            JudgeError: labels, template or context do not allow it; says what to change.
        """
        return reader_of(self.judge, self.tokenizer, protocol, context or self.context or NO_LIMIT)

    def folds(self, protocol: Protocol) -> bool:
        """Whether a system text has to begin the user turn, because the chat template has no system role.

        Raises:
            TemplateError: the template cannot carry the protocol's texts with a system text, or without one.
        """
        given = self.judge.template_arguments
        PromptBuilder(self.tokenizer, replace(protocol, system=""), template_arguments=given)
        system = protocol.system if protocol.system.strip() else "You judge."
        return PromptBuilder(self.tokenizer, replace(protocol, system=system), template_arguments=given).system_folded


def preview(judge: JudgeConfig) -> Preview:
    """Load a judge's tokenizer and config.

    Raises:
        JudgeError: there is no such model, or one of the two cannot be loaded; says what to change.
    """
    source = locate(judge)
    try:
        import transformers
    except ImportError as error:
        raise JudgeError(
            "a judge's tokenizer needs transformers, which is not installed: pip install 'trustjudge-ray[gpu]' or "
            "'[cpu]'"
        ) from error
    how = {"revision": judge.revision, "trust_remote_code": judge.trust_remote_code}
    loaded: list[Any] = []
    for what, loader in (("config", transformers.AutoConfig), ("tokenizer", transformers.AutoTokenizer)):
        try:
            loaded.append(loader.from_pretrained(source, **how))
        except Exception as error:  # transformers raises whatever its parts raise
            hint = "" if Path(source).is_dir() else f"{source} is no folder here, and as a hub model "
            said = " ".join(str(error).split())[:400] or type(error).__name__
            raise JudgeError(f"judge '{judge_name(judge)}': {hint}its {what} cannot be loaded: {said}") from None
    config = loaded[0].to_dict()
    return Preview(judge, source, loaded[1], config.get("text_config") or config)

"""What of a configuration's protocols and corpus cannot be meant: refused before anything is read or paid for."""

from typing import Final

from trustjudge_ray.config import Config, ConfigError
from trustjudge_ray.judging import protocols

_ELSEWHERE: Final = {"answer": "trustjudge answer", "verify": "trustjudge audit"}


def refuse_same_names(asked: list[protocols.Protocol]) -> None:
    """Tables tell protocols apart by name.

    Raises:
        ProtocolError: two have one name.
    """
    names = [protocol.name for protocol in asked]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise protocols.ProtocolError(f"protocols: two are named '{twice[0]}'; tables tell them apart by name")


def refuse_unranked(asked: list[protocols.Protocol]) -> None:
    """`run` ends with a report on scores and comparisons.

    Raises:
        ProtocolError: one is of another kind; names the command that asks it.
    """
    for protocol in asked:
        if protocol.kind in _ELSEWHERE:
            raise protocols.ProtocolError(
                f"protocols: '{protocol.name}' is of kind {protocol.kind}: {_ELSEWHERE[protocol.kind]} asks it; run "
                "asks kinds score and compare"
            )


def refuse_unasked(config: Config, asked: list[protocols.Protocol]) -> None:
    """What a plan could not mean.

    Raises:
        ConfigError: a protocol that is not there, a corpus that is none or has no answers to judge.
    """
    names = [protocol.name for protocol in asked]
    if not config.corpus.paths:
        raise ConfigError("corpus.paths: got []; at least one file, folder or glob")
    for name in config.plan.only:
        if name not in names:
            raise ConfigError(f"plan.only: '{name}' is no protocol of this run; it has {names}")
    judged = [protocol.name for protocol in asked if protocol.kind != "answer"]
    if judged and config.corpus.format == "questions":
        raise ConfigError(
            f"corpus.format: questions have no answers for '{judged[0]}' to judge; first `trustjudge answer`, whose "
            "answers/*.jsonl is a corpus of format flat"
        )

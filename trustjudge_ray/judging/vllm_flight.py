"""Several batches at a time on one engine: whoever asks waits for its own requests while the engine runs all of them.

A batch on its own ends with an engine that is nearly empty, most of all where judges write before their verdict: a few
rationales are longer than the others. Here the requests of several threads are in the engine together, and one
thread of its own steps it. vLLM's own AsyncLLM does the same from a second process, which a small judge does not pay
back.
"""

import itertools
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple


class _Request(NamedTuple):
    name: str
    prompt: dict[str, Any]
    sampling: Any
    answer: Future[Any]


class Flight:
    """Runs the requests of several threads on one vLLM engine (`LLM.llm_engine`), which nobody else may step."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._numbers = itertools.count()
        self._inbox: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._under_way: dict[str, Future[Any]] = {}
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def generate(self, prompts: Sequence[dict[str, Any]], sampling: Sequence[Any]) -> list[Any]:
        """The outputs of these requests, in order, as `LLM.generate` would give them.

        Args:
            sampling: whose `output_kind` is FINAL_ONLY: a request is answered once, when it is finished.

        Raises:
            Exception: what the engine raised; then in every thread that waits for it.
        """
        requests = [
            _Request(f"judge-{next(self._numbers)}", prompt, params, Future())
            for prompt, params in zip(prompts, sampling, strict=True)
        ]
        for request in requests:
            self._inbox.put(request)
        return [request.answer.result() for request in requests]

    def _run(self) -> None:
        while True:
            self._take_in()
            try:
                finished = self._engine.step()
            except Exception as error:  # whatever it is, the engine still holds requests: all who wait must know
                for answer in self._under_way.values():
                    answer.set_exception(error)
                self._under_way.clear()
                continue
            for output in finished:
                self._under_way.pop(output.request_id).set_result(output)

    def _take_in(self) -> None:
        """Give the engine what has come in; wait while it has nothing to do."""
        while not self._under_way or not self._inbox.empty():
            request = self._inbox.get()
            try:
                self._engine.add_request(request.name, request.prompt, request.sampling)
            except Exception as error:  # a prompt that the engine refuses is the asker's concern
                request.answer.set_exception(error)
            else:
                self._under_way[request.name] = request.answer

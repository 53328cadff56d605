"""Evaluate networks of models with probabilities with EleutherAI's lm-evaluation-harness: its model ``giaann``.

Importing this module registers the model; ``python -m giaann_dask.api.lm_eval`` is the harness's own command with the
model known to it. Needs the extra ``lm-eval``. Does not cover: scoring a corpus on a cluster (`Network.evaluate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from giaann_dask.errors import OptionError
from giaann_dask.lazy import import_optional
from giaann_dask.models import model_of
from giaann_dask.models.generation_options import GenerationOptions, SamplingOptions
from giaann_dask.models.results import ScoredWord
from giaann_dask.predict.generation import Sessions
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
else:
    LM = import_optional("lm_eval.api.model", "lm-eval").LM

Found = TypeVar("Found")
# As many as the harness's own models generate where a task does not say.
_DEFAULT_TOKENS = 256
_OPTIONS = GenerationOptions(reasons=0)


class GiaannLM(LM):  # type: ignore[misc]
    """A network whose words have probabilities as a model of lm-evaluation-harness.

    Texts are divided into words as those of a file are, and log-probabilities are natural logarithms.

    Parameters
    ----------
    network : str or Path
        Folder of the network.
    commit : str, optional
        Identity of a commit; the last one by default.
    batch_size, max_batch_size, device : object, optional
        Accepted because the harness passes them; without effect.

    Raises
    ------
    OptionError
        If the network's profile has no probabilities.
    StoreMissingError, StoreFormatError, StoreDamagedError
        If there is no such network or commit, or if it cannot be read.
    """

    def __init__(
        self,
        network: str | Path,
        commit: str | None = None,
        batch_size: object = None,
        max_batch_size: object = None,
        device: object = None,
    ) -> None:
        super().__init__()
        store = NetworkStore(network)
        reader = store.open(store.head() if commit is None else commit)
        specification = reader.manifest().specification
        if not specification.traits.probabilities:
            found = f"a network of profile {specification.profile}"
            raise OptionError(found, "profile contexts, which has probabilities")
        self._opened = model_of(specification).open(reader, options=_OPTIONS)
        self._batch = self._opened.open_batch(_OPTIONS)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether its words are the most probable ones.

        Words that end within the continuation count, also where one begins at the end of the context.
        """
        return self._answers("loglikelihood", requests, self._continuation_score)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Return the log-probability of each text, which is one document, from its first word."""
        return self._answers("loglikelihood_rolling", requests, self._text_score)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return the continuation of each context, up to the first of the stop sequences of the task.

        It is an empty text where a context has no word or no token is requested.
        """
        return self._answers("generate_until", requests, self._continuation)

    def _answers(self, kind: str, requests: Iterable[Instance], answer: Callable[..., Found]) -> list[Found]:
        """Answer requests one by one, and tell each answer to the harness's cache."""
        found = []
        for request in requests:
            found.append(answer(*request.args))
            self.cache_hook.add_partial(kind, request.args, found[-1])
        return found

    def _continuation_score(self, context: str, continuation: str) -> tuple[float, bool]:
        given = len(context.rstrip())
        words = self._score(context + continuation, given)
        return math.fsum(word.log_probability for word in words), all(word.most_probable for word in words)

    def _score(self, text: str, after: int = 0) -> tuple[ScoredWord, ...]:
        """Return the scores of the words of a text that end after so many characters; none of a text without words."""
        if not text.split():
            return ()
        score = self._batch.prepare(text, _OPTIONS).score
        assert score is not None, "the model has probabilities"
        return score(after=after)

    def _text_score(self, text: str) -> float:
        return math.fsum(word.log_probability for word in self._score(text))

    def _continuation(self, context: str, settings: dict[str, Any]) -> str:
        stops = _stops(settings.get("until"))
        most = settings.get("max_gen_toks")
        tokens = _DEFAULT_TOKENS if most is None else int(most)
        if tokens < 1 or not context.split():
            # There is nothing to generate, or nothing that goes on.
            return ""
        temperature = float(settings.get("temperature") or 0.0) if settings.get("do_sample") else 0.0
        # The same words in every evaluation, as its tasks define them: greedy decoding repeats itself.
        sampling = SamplingOptions(temperature=temperature, seed=0, block_ngrams=0)
        options = GenerationOptions(max_tokens=tokens, runners_up=1, reasons=0, sampling=sampling)
        given = self._batch.prepare(context, _OPTIONS).words
        writer, text = Detokenizer(False, after=given, spaced=context[-1:].isspace()), ""
        for event in Sessions(self._opened, [context], options=options):
            if event.error is not None:
                raise event.error
            text += "" if event.token is None else writer.write(event.token.word)
            if ends := [text.index(stop) for stop in stops if stop in text]:
                return text[: min(ends)]
        return text


def _stops(until: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the stop sequences of a task, which may name one, some or none."""
    stops = (until,) if isinstance(until, str) else tuple(until or ())
    return tuple(stop for stop in stops if stop)


def _register() -> None:
    registry = import_optional("lm_eval.api.registry", "lm-eval")
    registry.register_model("giaann")(GiaannLM)


_register()

if __name__ == "__main__":
    import_optional("lm_eval.__main__", "lm-eval").cli_evaluate()

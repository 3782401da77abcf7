"""Label texts within a memory budget (`featherback classify`, `Model.classify`). `embedding` shares the reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.engine.budget import Budget, BudgetError
from featherback.engine.host.machine import Baseline, disk_folder, memory_limit
from featherback.engine.host.rates import nominal
from featherback.engine.host.reading import drop_maps
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.infer.classify import Classified, Ids, Scorer, TextEncoder, check_head, named_scores
from featherback.infer.prompt import Prompt
from featherback.methods.memory import planner
from featherback.methods.memory.plan import LEAST, Plan
from featherback.models.adapter import Adapter
from featherback.models.model import Model, matrices
from featherback.nn.objectives.embedding import KeptEmbeddings
from featherback.nn.objectives.scored import KeptScores
from featherback.runs.decoders import UNLIMITED, Within, fitted, open_adapter
from featherback.runs.evaluating import forward_job
from featherback.runs.rehearsal import rehearsed_baseline

FEW = 64
"""Tokens that the first plan has room for, at least."""


class TextReader:
    """Passes texts through a model, with an adapter or the one at a path, within a memory limit.

    `kept`: the objective that keeps what is wanted of each text. Memory is planned for the longest text so far;
    `make_room` plans for all texts at once.
    """

    def __init__(
        self,
        model: Model,
        encoder: TextEncoder,
        adapter: Adapter | Path | None,
        kept: KeptScores | KeptEmbeddings,
        compute: str,
        within: Within,
    ) -> None:
        self._model, self._encoder, self._kept = model, encoder, kept
        self._compute, self._within = compute, within
        self._scorer: Scorer | None = None
        if within.is_limited:
            drop_maps(matrices(model))  # free the pages that were read before
            self._encoder.start()  # so that its memory counts
        self._adapter = open_adapter(model, adapter, within) if isinstance(adapter, Path) else adapter

    def make_room(self, texts: Iterable[tuple[str, Prompt]]) -> None:
        """Plan the memory for the longest of these texts, each with its place. Raises BudgetError if it does not fit.

        Without a limit, nothing has to be known before.
        """
        if self._within.is_limited:
            self._open(max((self._encode(*each).size for each in texts), default=0))

    def close(self) -> None:
        """Free the memory."""
        if self._scorer is not None:
            self._scorer.close()
            self._scorer = None

    def _encode(self, where: str, text: Prompt) -> Ids:
        try:
            return self._encoder.encode(text)
        except FeatherbackError as error:
            raise FeatherbackError(f"{where}: {error}") from None

    def _open(self, tokens: int) -> Scorer:
        """Return a scorer for texts of this many tokens."""
        if self._scorer is None or self._scorer.capacity < tokens:
            self.close()
            plan = self._plan(max(tokens, FEW))
            folder = self._within.folder or disk_folder()
            self._scorer = Scorer(self._model, self._adapter, plan, folder, self._kept)
        return self._scorer

    def _plan(self, tokens: int) -> Plan:
        """Return the fastest plan for texts of this many tokens that fits."""
        if not self._within.is_limited:
            return Plan.default(self._model.config, tokens=tokens, compute=self._compute)
        form = None if self._adapter is None else self._adapter.form
        job = forward_job(self._model, form, self._kept, tokens, self._compute)
        machine = nominal(self._compute, memory_limit())
        rehearsed_baseline(trains=False)  # loads the code
        smallest = planner.smallest(job, Baseline(0, 0), machine)  # from now on, planning takes no more memory

        def choose(budget: Budget) -> Plan:
            try:
                return planner.choose(job, budget.limit, Baseline.of_this_process(), machine)
            except BudgetError as error:
                raise BudgetError(f"A text of {tokens} tokens", error.limit, error.needed) from None

        if self._within.memory == LEAST:
            return smallest.plan
        return fitted(self._within, choose)


class Classifier(TextReader):
    """Labels texts with an adapter that has a trained head. Raises FeatherbackError if the adapter has none."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        adapter: Adapter | Path,
        chat: bool = False,
        compute: str = "bf16",
        within: Within = UNLIMITED,
    ) -> None:
        """`chat`: a text is a user's message in the chat template. Lists of messages always are in it."""
        check_head((adapter if isinstance(adapter, Adapter) else formats.form(model, adapter)).outputs)
        super().__init__(model, TextEncoder(model, tokenizer, chat), adapter, KeptScores(), compute, within)

    def classify(self, texts: Iterable[tuple[str, Prompt]]) -> Iterator[Classified]:
        """Yield the scores of one text after another. Each is given with its place, which errors name."""
        assert self._adapter is not None
        for where, text in texts:
            ids = self._encode(where, text)
            yield named_scores(self._adapter.outputs, self._open(ids.size).scores(ids))

"""llama.cpp as a worker of `benchmarks.together`: sequences of one context, a token of each in one pass, greedy."""

from __future__ import annotations

import sys

import llama_cpp
import numpy as np

from benchmarks.workers.loop import CLOCKS, respond

_BATCH = 2048  # tokens of a pass, llama.cpp's default
_ERROR = 4  # of its levels of messages


def _errors_alone(level: int, text: bytes, _data: object) -> None:
    if level == _ERROR:
        sys.stderr.write(text.decode(errors="replace"))


_LOG = llama_cpp.llama_log_callback(_errors_alone)  # kept: llama.cpp has no reference to it


class Sequences:
    """A model and a context for so many sequences of `context` tokens each."""

    def __init__(self, path: str, threads: int, context: int, sequences: int) -> None:
        llama_cpp.llama_log_set(_LOG, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_seq_max = context * sequences, _BATCH, sequences
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        settings.kv_unified = False  # its own advice where sequences share no prefix
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def answer(self, prompts: list[list[int]], new: int) -> None:
        """`new` tokens behind each prompt."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        rows = [(token, at, index, at + 1 == len(prompt)) for index, prompt in enumerate(prompts)
                for at, token in enumerate(prompt)]  # fmt: skip
        tokens: dict[int, int] = {}
        for first in range(0, len(rows), _BATCH):
            tokens.update(self._pass(rows[first : first + _BATCH]))
        for step in range(new - 1):
            tokens = self._pass([(tokens[n], len(prompt) + step, n, True) for n, prompt in enumerate(prompts)])

    def _pass(self, rows: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """One pass over (token, position, sequence, wanted) each: the likeliest next token of each wanted sequence."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for n, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[n], batch.pos[n], batch.n_seq_id[n] = token, position, 1
            batch.seq_id[n][0], batch.logits[n] = sequence, wanted
        if llama_cpp.llama_decode(self._context, batch):
            raise SystemExit("llama_decode refuses the batch")
        found = {}
        for n, (_, _, sequence, wanted) in enumerate(rows):
            if wanted:
                logits = llama_cpp.llama_get_logits_ith(self._context, n)
                found[sequence] = int(np.argmax(np.ctypeslib.as_array(logits, (self._vocab,))))
        return found


def main(path: str, threads: int, context: int, sequences: int, clock: str) -> None:
    model, now = Sequences(path, threads, context, sequences), CLOCKS[clock]

    def answer(request: dict[str, object]) -> dict[str, object]:
        start = now()
        model.answer(request["prompts"], request["new"])  # type: ignore[arg-type]
        return {"seconds": now() - start}

    respond({"engine": f"llama-cpp-python {llama_cpp.__version__}"}, answer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])

"""A process of a contender that is not the mesh: `python -m meshsite.bench.worker KIND MODEL DTYPE THREADS`.

Answers one line of JSON on standard output for each on standard input. KIND is `transformers` (`generate()`; with
RANK and WORLD_SIZE in the environment, as torchrun sets them, transformers' own pipeline parallelism) or `llama_cpp`.
THREADS 0 leaves the pools as they are. Needs no Django, so that nothing but the contender is in the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

#: A prompt and how many new tokens: when it began and when each token came, in seconds of the monotonic clock.
Run = Callable[[list[int], int], list[float]]


class _Stamps:
    """A streamer that notes when tokens come. The first that it is given is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _transformers(model_folder: str, dtype: str, threads: int) -> tuple[Run, int]:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if threads:
        torch.set_num_threads(threads)
    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if "WORLD_SIZE" in os.environ:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(pp_size=int(os.environ["WORLD_SIZE"]))
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, **options)
    # Random text must not end early. Without an end there is nothing to look for at each step either.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def run(prompt: list[int], new_tokens: int) -> list[float]:
        ids = torch.tensor([prompt])
        stamps = _Stamps()
        begun = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            streamer=stamps,
        )
        return [begun, *stamps.times[1:]]

    return run, torch.get_num_threads()


def _llama_cpp(model_file: str, dtype: str, threads: int) -> tuple[Run, int]:
    import llama_cpp  # type: ignore[import-not-found]  # only where somebody installed it

    llama = llama_cpp.Llama(model_file, n_ctx=4096, n_threads=threads or None, verbose=False)

    def run(prompt: list[int], new_tokens: int) -> list[float]:
        llama.reset()
        times = [time.perf_counter()]
        for _ in llama.generate(prompt, temp=0.0, reset=True):
            times.append(time.perf_counter())
            if len(times) > new_tokens:
                return times
        return times

    return run, llama.n_threads


KINDS = {"transformers": _transformers, "llama_cpp": _llama_cpp}


def main() -> None:
    kind, model, dtype, threads = sys.argv[1:]
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run, used = KINDS[kind](model, dtype, int(threads))

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer({"threads": used})
    for line in sys.stdin:
        order = json.loads(line)
        answer({"times": run(order["prompt"], order["new_tokens"])})


if __name__ == "__main__":
    main()

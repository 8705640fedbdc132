"""One vLLM engine in this process: requests in, raw logits of the answer tokens out."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import vllm
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from lookout.models.engines.types import PlanError
from lookout.models.engines.vllm.internals import worker
from lookout.models.engines.vllm.internals.model import ARCHITECTURE

VERSION = "0.32.0"
STEP_S = 600.0
"""Seconds without output after which an engine counts as stuck; its first step may compile kernels."""


class StuckEngineError(RuntimeError):
    """vLLM runs but does not answer: its process must be restarted."""


def installed_version() -> str:
    """The installed version of vLLM."""
    return str(vllm.__version__).split("+")[0]


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One vLLM request.

    Attributes:
        window: Key of the window to which the prompt belongs.
        held: Name under which the KV of the leading rows is held.
        prompt: Token ids.
        load: Number of leading rows to load from the held KV.
        ask: Whether the window is complete, so that only what follows the window is computed.
        answers: The tokens whose logits are returned.
    """

    window: str
    held: str
    prompt: list[int]
    load: int
    ask: bool
    salt: str
    answers: tuple[int, ...]
    newline: tuple[int, ...] = ()
    tokens: int = 1
    stop: tuple[int, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Generated ids, and the raw logits of the answer tokens at the first generated id."""

    tokens: tuple[int, ...]
    logits: dict[int, float]
    cached: int


def _grammar(schema: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    if schema is None:
        return None
    return StructuredOutputsParams(json=dict(schema))


def _prompt(ask: EngineCall) -> TokensPrompt:
    return TokensPrompt(prompt_token_ids=ask.prompt, cache_salt=ask.salt)


class Backend:
    """One vLLM engine in this process (with one more process for each further tensor-parallel rank)."""

    def __init__(
        self,
        checkpoint: str,
        *,
        dtype: str,
        newline: torch.Tensor | None,
        max_rows: int,
        max_batched_rows: int,
        block_size: int,
        kv_cache_bytes: int,
        tensor_parallel: int,
        eager: bool,
    ) -> None:
        self._names = itertools.count()
        if tensor_parallel > 1 and current_platform.is_cpu():
            # By default, every rank requires its own NUMA node.
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        compilation = {} if eager else {"compilation_config": {"cudagraph_mode": "PIECEWISE"}}
        self.llm = LLM(
            model=checkpoint,
            dtype=dtype,
            max_model_len=max_rows,
            # If the grammar allows it, an unsure model writes white space forever. vLLM reads this setting
            # only here.
            structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
            max_num_batched_tokens=max_batched_rows,
            block_size=block_size,
            kv_cache_memory_bytes=kv_cache_bytes,
            tensor_parallel_size=tensor_parallel,
            enforce_eager=eager,
            enable_prefix_caching=True,
            hf_overrides={"architectures": [ARCHITECTURE]},
            worker_cls=f"{worker.__name__}.WindowWorker",
            kv_transfer_config=KVTransferConfig(
                kv_connector="WindowConnector", kv_connector_module_path=worker.__name__, kv_role="kv_both"
            ),
            logprobs_mode="raw_logits",
            seed=0,
            **compilation,
        )
        config = self.llm.llm_engine.vllm_config.cache_config
        self.capacity = int(config.num_gpu_blocks - 1) * int(config.block_size)
        if newline is not None:
            self.call("lookout_newline", newline)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every rank; return the results by rank."""
        out: list[Any] = self.llm.collective_rpc(method, args=arguments)
        return out

    def generate(self, asks: Sequence[EngineCall]) -> list[EngineOutput]:
        """Run requests as one batch, greedily; return the outputs in the order of the requests.

        Raises:
            StuckEngineError: There was no output for `STEP_S` seconds.
        """
        engine = self.llm.llm_engine
        names = [f"window-{next(self._names)}" for _ in asks]
        for name, ask in zip(names, asks, strict=True):
            params = self._params(ask)
            params.output_kind = RequestOutputKind.FINAL_ONLY
            engine.add_request(name, _prompt(ask), params)
        ended: dict[str, Any] = {}
        for output in self._outputs():
            ended[output.request_id] = output
        if lost := [name for name in names if name not in ended]:
            raise RuntimeError(f"vLLM dropped {len(lost)} of {len(names)} requests")
        return [_output_of(ended[name], ask) for name, ask in zip(names, asks, strict=True)]

    def _outputs(self) -> Iterator[Any]:
        """Yield the outputs of the engine's steps until no request is left.

        Raises:
            StuckEngineError: There was no output for `STEP_S` seconds.
        """
        engine, since = self.llm.llm_engine, time.monotonic()
        while engine.has_unfinished_requests():
            outputs = engine.step()
            if outputs:
                since = time.monotonic()
            elif time.monotonic() - since > STEP_S:
                raise StuckEngineError(f"vLLM has returned no output for {STEP_S:g} s")
            yield from outputs

    def stream(self, ask: EngineCall) -> Iterator[int]:
        """Run one request alone and yield its tokens as they are generated. If the caller stops early,
        `abort` ends the request.

        Raises:
            PlanError: vLLM rejects the request, for example because of its JSON schema.
            StuckEngineError: There was no token for `STEP_S` seconds.
        """
        engine, count = self.llm.llm_engine, 0
        try:
            engine.add_request(f"text-{next(self._names)}", _prompt(ask), self._params(ask))
        except VLLMClientError as error:
            raise PlanError(f"vLLM rejects the question: {error}") from error
        for output in self._outputs():
            if output.outputs[0].finish_reason == "error":
                raise RuntimeError("vLLM gave up on the request: see its log")
            tokens = output.outputs[0].token_ids
            yield from (int(token) for token in tokens[count:])
            count = len(tokens)

    def abort(self) -> None:
        """Drop every request that an error left behind."""
        engine = self.llm.llm_engine
        unfinished = list(engine.output_processor.request_states)
        if unfinished:
            engine.abort_request(unfinished, internal=True)

    def close(self) -> None:
        """Stop the engine and free its memory."""
        self.llm.llm_engine.engine_core.shutdown()

    def _params(self, ask: EngineCall) -> SamplingParams:
        parameters = {
            "window": ask.window,
            "held": ask.held,
            "load": ask.load,
            "ask": ask.ask,
            "newline": list(ask.newline),
        }
        return SamplingParams(
            max_tokens=ask.tokens,
            temperature=ask.temperature,
            seed=ask.seed if ask.temperature else None,
            structured_outputs=_grammar(ask.schema),
            detokenize=False,
            ignore_eos=True,
            stop_token_ids=list(ask.stop),
            logprob_token_ids=list(ask.answers),
            extra_args={"kv_transfer_params": {"lookout": parameters}},
        )


def _output_of(output: Any, ask: EngineCall) -> EngineOutput:
    first = output.outputs[0]
    scores = first.logprobs[0] if first.logprobs else {}
    logits = {token: float(scores[token].logprob) for token in ask.answers if token in scores}
    return EngineOutput(tuple(first.token_ids), logits, int(output.num_cached_tokens or 0))

"""What a real engine in one process, without HTTP, is asked for. Run by the engine's interpreter, see forge.py."""

from typing import Any

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

SOURCES = {"device": "device", "host": "host", "p2p": "pool"}


def tokens_by_source(engine: LLM) -> dict[str, int]:
    counts = {"computed": 0, "device": 0, "host": 0, "pool": 0}
    for metric in engine.get_metrics():
        source = metric.labels.get("source", "")
        if metric.name == "vllm:prompt_tokens_by_source" and source == "local_compute":
            counts["computed"] += int(metric.value)
        elif metric.name == "vllm:prompt_tokens_cached_by_source" and source in SOURCES:
            counts[SOURCES[source]] += int(metric.value)
    return counts


def ask(
    engine: LLM,
    tokens: list[int],
    salt: str = "",
    adapter: list[Any] | None = None,
    parameters: dict[str, Any] | None = None,
    likeliest: int = 5,
    answer_tokens: int = 8,
) -> dict[str, Any]:
    before = tokens_by_source(engine)
    prompt: dict[str, Any] = {"prompt_token_ids": tokens, **({"cache_salt": salt} if salt else {})}
    extra = {"kv_transfer_params": parameters} if parameters else None
    wanted = SamplingParams(
        temperature=0, max_tokens=answer_tokens, logprobs=likeliest, ignore_eos=True, detokenize=False, extra_args=extra
    )  # fmt: skip
    (answer,) = engine.generate(
        [prompt], wanted, use_tqdm=False, lora_request=LoRARequest(*adapter) if adapter else None
    )
    (one,) = answer.outputs
    after = tokens_by_source(engine)
    chances = [sorted((token, entry.logprob) for token, entry in place.items()) for place in one.logprobs]
    return {"tokens": {k: after[k] - before[k] for k in after}, "answer": [list(one.token_ids), chances]}


def together(engine: LLM, prompts: list[list[int]], answer_tokens: int) -> dict[str, Any]:
    """All at once: prompt tokens by source over all of them, token ids of each answer, and how often one of them made
    way for another."""
    before, preempted = tokens_by_source(engine), preemptions(engine)
    wanted = SamplingParams(temperature=0, max_tokens=answer_tokens, ignore_eos=True, detokenize=False)
    found = engine.generate([{"prompt_token_ids": tokens} for tokens in prompts], wanted, use_tqdm=False)
    after = tokens_by_source(engine)
    return {
        "tokens": {k: after[k] - before[k] for k in after},
        "answers": [list(one.outputs[0].token_ids) for one in found],
        "preemptions": preemptions(engine) - preempted,
    }


def preemptions(engine: LLM) -> int:
    return total(engine, "vllm:num_preemptions")


def total(engine: LLM, name: str) -> int:
    return sum(int(metric.value) for metric in engine.get_metrics() if metric.name == name)


class Heads:
    """What the plug-in in this process is told of the pool's chains, from `watch` on."""

    told: Any = None

    @classmethod
    def watch(cls) -> None:
        """Before there is an engine, and where the plug-in can be imported."""
        from kvpool_client.heads import KnownHeads

        begin = KnownHeads.__init__

        def began(one: KnownHeads) -> None:
            begin(one)
            cls.told = one

        KnownHeads.__init__ = began


def do(engine: LLM, what: str, **arguments: Any) -> Any:
    match what:
        case "ask":
            return ask(engine, **arguments)
        case "together":
            return together(engine, **arguments)
        case "accepted":
            return total(engine, "vllm:spec_decode_num_accepted_tokens")
        case "heads":
            return Heads.told.number
        case "reset":
            return engine.reset_prefix_cache(reset_connector=arguments["external"])
        case "sleep":
            return engine.sleep(arguments["level"])
        case "wake":
            return engine.wake_up()
        case "call":
            engine.collective_rpc(arguments["method"], kwargs=arguments["arguments"])
            return None
        case "version":
            return engine.llm_engine.set_weight_version(arguments["version"])
    raise ValueError(what)

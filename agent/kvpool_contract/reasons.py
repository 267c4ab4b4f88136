"""Every reason that kvpool gives for a state, a refusal or a miss: a machine word, a sentence, a fix.

The command line, Events and docs/operations.md print from this table, so a reason reads the same everywhere. A
word is never reused for another meaning.
"""

from kvpool_contract.certificate_reasons import CERTIFICATE_REASONS
from kvpool_contract.miss_reasons import MISS_REASONS
from kvpool_contract.prefix_reasons import PREFIX_REASONS
from kvpool_contract.rdma_reasons import RDMA_REASONS
from kvpool_contract.reason import Reason
from kvpool_contract.store_reasons import STORE_REASONS

_TABLE = (
    # why an engine runs bare or its agent is ready but not warm
    Reason(
        "no_shm_room",
        "The host pool does not fit into the free part of the engine's /dev/shm.",
        "Enlarge the memory volume at /dev/shm or lower engine.hostPool.size.",
    ),
    Reason(
        "host_pool_too_small",
        "The host pool holds fewer than 8 blocks of this model.",
        "Raise engine.hostPool.size.",
    ),
    Reason(
        "adapter_import_failed",
        "The engine adapter could not be imported inside the engine.",
        "See the engine's log for the traceback; check that the client's volume is mounted whole.",
    ),
    Reason(
        "config_refused",
        "The engine refused to start with the cache connector, so it was started without.",
        "See the engine's log; an engine option that excludes KV connectors is the usual cause.",
    ),
    Reason(
        "foreign_connector",
        "The user has configured a KV connector of their own.",
        "Remove --kv-transfer-config to let the pod join, or remove the pool label.",
    ),
    Reason(
        "engine_version_untested",
        "This engine version is outside the tested window.",
        "Use a tested version, or set engine.allowUntested to try it.",
    ),
    Reason(
        "tier_failed",
        "The cache tier failed while it was built inside the engine.",
        "See the engine's log for the traceback; the engine serves without the pool.",
    ),
    Reason(
        "multi_host",
        "The engine spans several hosts, of whose host pools the client sees only one.",
        "Nothing to do: such engines run bare until a later version.",
    ),
    Reason(
        "client_config",
        "The client's configuration in the engine's environment can't be used.",
        "Let `kvpool inject` write it; the engine's log has the sentence.",
    ),
    Reason(
        "weights_unidentified",
        "The engine's weights can't be told from others: neither a folder with weights nor a registry's snapshot.",
        "Serve the model from a folder, or from a registry's cache with its snapshots.",
    ),
    Reason(
        "model_unsupported",
        "The model is no decoder with a KV cache of its own.",
        "Nothing to do: there is no prefix KV to share.",
    ),
    Reason(
        "data_parallel_unsupported",
        "The process that starts the engine starts only some of its data-parallel ranks, or lets Ray do it.",
        "Nothing to do: such engines run bare until a later version; those with all ranks in one pod share.",
    ),
    Reason(
        "draft_unsupported",
        "The engine drafts by a method that was never tried (MTP, Medusa and others).",
        "Nothing to do: such engines run bare until a later version; draft models, EAGLE, and drafts by lookup in the "
        "prompt (ngram, suffix) share.",
    ),
    Reason(
        "prefix_caching_off",
        "The engine's prefix caching is switched off.",
        "Switch it on to let the pod join, or remove the pool label.",
    ),
    Reason(
        "hash_unsupported",
        "The engine's prefix-caching hash is not SHA-256, so equal hashes need not mean equal prompts.",
        "Use --prefix-caching-hash-algo sha256 or sha256_cbor.",
    ),
    Reason(
        "groups_unsupported",
        "The model has KV-cache groups of a kind other than full attention, sliding windows and states at block ends.",
        "Nothing to do: such models attach, and every lookup is a miss, until a later version.",
    ),
    Reason(
        "draft_missing",
        "The draft model has KV-cache groups of its own, which are not shared; the engine loads all groups or none.",
        "Nothing to do: such engines attach, and every lookup is a miss; draft models whose layers look at the same "
        "tokens as the model's share.",
    ),
    Reason(
        "not_authorised",
        "The request is of a cache namespace that this pod holds no key of, or has no room for.",
        "See cache_namespaces in the agent's status; check the cache namespace's podSelector, its Secret, and its "
        "memoryPercent.",
    ),
    Reason(
        "probe_mismatch",
        "The engine computes other bytes for the pool's fixed prompt than a member of the same format does.",
        "Compare weights, engine build and kernels with those of the member in the status's probe, then restart it.",
    ),
    Reason(
        "probe_pending",
        "The engine had not yet shown that it computes what the pool's other engines compute.",
        "Nothing to do: it takes moments after a start; see the status's probe if it stays.",
    ),
    Reason(
        "probe_not_run",
        "The engine could not be asked for the pool's fixed prompt; it shares because all fields of its format agree.",
        "Let it listen on engine.port without a key on the loopback address, or accept the fields as proof.",
    ),
    Reason(
        "canary_not_run",
        "The engine gave no answer by which a hit could be compared with computing.",
        "Let it serve /v1/completions with 20 log-probabilities on engine.port without a key on the loopback address.",
    ),
    Reason(
        "canary_differs",
        "Blocks of these members made the engine answer otherwise than computing does; nothing is loaded from them.",
        "Compare their weights, engine build and kernels, look at their memory; make their pods and this one anew.",
    ),
    Reason(
        "huge_pages_off",
        "Huge pages were asked for, and the node's kernel gives shared memory none.",
        "Write advise into /sys/kernel/mm/transparent_hugepage/shmem_enabled on the node, or set "
        "tiers.memory.hugePages to false.",
    ),
    Reason(
        "calibration_no_answer",
        "The engine gave no answer by which to learn, before its first request, what computing costs it.",
        "Let it serve /v1/completions on engine.port without a key on the loopback address; its requests tell it, too.",
    ),
    Reason("arena_too_small", "The arena holds fewer than 8 blocks of this format.", "Raise tiers.memory.size."),
    Reason(
        "other_format",
        "Another engine of a different format is attached to this agent.",
        "Give every engine of a pod the same model and options.",
    ),
    Reason(
        "geometry_refused",
        "The engine described its host pool in a way that cannot be true.",
        "Report this with the agent's log; client and agent may be of different builds.",
    ),
    Reason(
        "engine_port_version",
        "Client and agent share no version of the engine port.",
        "Restart the pod so that both come from the same image.",
    ),
    Reason(
        "not_attached",
        "The engine is healthy but its client has not attached.",
        "Check PYTHONPATH and VLLM_PLUGINS of the engine container; see the engine's log.",
    ),
    Reason(
        "agent_unreachable",
        "The agent of this member does not answer.",
        "Look at the agent container's state and log.",
    ),
    Reason(
        "agent_not_started",
        "One of kvpool's containers can't be started, and the engine waits for it.",
        "See the pod's Events: often the image can't be pulled, for which the pod's own imagePullSecrets are used.",
    ),
    Reason(
        "nothing_to_warm",
        "No peer of the same format held anything to warm from.",
        "Nothing to do: the first replicas of a pool and of a new revision start cold.",
    ),
    Reason(
        "warm_deadline",
        "The pod was made ready before the hot set was in: a deadline had passed.",
        "Raise readiness.deadlineSeconds or prewarm.maxBytesPerSecond, or lower prewarm.maxBytes.",
    ),
    Reason(
        "warm_incomplete",
        "Sources ended before the hot set was in.",
        "Look at the peers' logs; the blocks that are missing are computed when they are needed.",
    ),
    Reason(
        "arena_lost",
        "The worker was restarted after the pod had become ready, and none of its blocks could be recovered.",
        "Nothing to do: the engine offers its blocks again; see the agent's log for why the worker ended.",
    ),
    Reason(
        "paused",
        "The pool is paused: nothing is loaded nor stored, and pods are ready at once.",
        "Set paused to false in the pool's spec.",
    ),
    Reason(
        "resumed",
        "The pool was paused before the hot set was in; it is being fetched while the pod serves.",
        "Nothing to do.",
    ),
    Reason(
        "config_invalid",
        "The agent's configuration file has vanished or can't be used; the last configuration stays in force.",
        "See config.problem in the agent's status; correct the pool's spec, or restore its ConfigMap.",
    ),
    *MISS_REASONS,
    # why there is no disk tier now
    Reason(
        "disk_full",
        "The volume is full beside what the disk tier holds, so the tier keeps to that for a minute.",
        "Free the volume, or lower tiers.disk.size.",
    ),
    Reason(
        "disk_read_only",
        "The disk tier's volume is mounted read-only, or has become so after a fault.",
        "Look at the node's kernel log and at the volume; the agent tries again by itself.",
    ),
    Reason(
        "disk_not_writable",
        "The agent may not write to the disk tier's volume.",
        "Give the volume to the agent's group by the pod's securityContext.fsGroup.",
    ),
    Reason(
        "disk_vanished",
        "The disk tier's volume is not there, or not there any more.",
        "Check that the pod has the volume that tiers.disk names; the agent tries again by itself.",
    ),
    Reason(
        "disk_in_use",
        "Another agent has locked the disk tier's folder.",
        "Give each pod a volume of its own.",
    ),
    Reason(
        "disk_slow",
        "The disk did not answer in time.",
        "Look at the node's disk; the agent tries again by itself when the call has come back.",
    ),
    Reason(
        "disk_corrupt",
        "The disk returned other bytes than were written, for many files in a row.",
        "Replace the disk.",
    ),
    Reason(
        "disk_io_error",
        "The disk tier's volume returned an error.",
        "Look at the node's kernel log; the agent tries again by itself.",
    ),
    # why another member was refused
    Reason(
        "peer_version",
        "The two agents share no version of the peer protocol.",
        "Finish the update of the pool's agents.",
    ),
    Reason(
        "members_apart",
        "Members of the pool do not reach each other, though each of them answers.",
        "Let their pods reach each other's port 7700: see NetworkPolicies, meshes, and kvpool status for each view.",
    ),
    # why an object was not injected
    Reason(
        "no_engine_container",
        "No container of the pod runs vLLM as far as can be told.",
        "Name it in engine.container.",
    ),
    Reason(
        "host_network",
        "The pod uses the host's network, where the agent's ports may be taken.",
        "Move the engine off the host's network.",
    ),
    Reason(
        "plugins_from_source",
        "VLLM_PLUGINS, an allow-list, comes from a ConfigMap, a Secret or a field.",
        "Set VLLM_PLUGINS as a plain value.",
    ),
    Reason(
        "engine_port_differs",
        "The engine's --port is another than the pool's engine.port.",
        "Set engine.port to the engine's own.",
    ),
    Reason(
        "pythonpath_from_source",
        "PYTHONPATH comes from a ConfigMap, a Secret or a field.",
        "Set PYTHONPATH as a plain value.",
    ),
    Reason(
        "shm_not_memory",
        "/dev/shm is mounted from something other than a memory emptyDir.",
        "Use an emptyDir with medium Memory, or remove the mount.",
    ),
    Reason(
        "already_injected",
        "The object carries kvpool's parts already.",
        "Give the command the original manifest.",
    ),
    Reason(
        "not_injected",
        "The pod carries the pool's label and has no agent: it was made while the webhook was away.",
        "Make the pod anew, or join its workload with `kvpool inject`; without an agent it stays bare.",
    ),
    Reason(
        "port_taken",
        "A container of the pod uses one of the agent's ports, 7700 to 7702.",
        "Give that container another port.",
    ),
    Reason(
        "path_taken",
        "The engine's container has a volume at /run/kvpool or /kvpool/client, or a read-only one above.",
        "Mount that volume elsewhere.",
    ),
    Reason(
        "annotations_full",
        "The record of what kvpool changes does not fit into the pod's annotations, which hold 256 KiB.",
        "Put a long script of the engine's command into a ConfigMap or the image.",
    ),
    Reason(
        "sidecars_unsupported",
        "A node is older than Kubernetes 1.29, which has no native sidecars.",
        "Update the nodes.",
    ),
    Reason("windows", "The pod is for Windows.", "Nothing to do: the agent runs on Linux alone."),
    Reason(
        "mirror_pod",
        "The pod is a static pod's mirror, in which nothing can be changed.",
        "Let a Deployment or a StatefulSet own the engine.",
    ),
    Reason(
        "pool_unknown",
        "The pod's Kubernetes namespace has no KVCachePool of the name in its label.",
        "Create the pool, or correct the label kvpool.io/pool; then create the pod anew.",
    ),
    Reason(
        "pool_unread",
        "The webhook does not know the pool, and the API server did not answer when asked for it.",
        "Create the pod anew when the API server answers; see the webhook's log.",
    ),
    Reason(
        "pool_invalid",
        "The KVCachePool named in the pod's label can't be used.",
        "Correct the pool by the sentence in its status; then create the pod anew.",
    ),
    Reason("other_pool", "The pod is labelled for another pool.", "Change the label or name the other pool."),
    Reason(
        "unsupported_kind",
        "Only a Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or Pod can be injected.",
        "Give the command the object that owns the pod template.",
    ),
)

_ALL = (*_TABLE, *CERTIFICATE_REASONS, *PREFIX_REASONS, *RDMA_REASONS, *STORE_REASONS)
REASONS: dict[str, Reason] = {reason.word: reason for reason in _ALL}


def explain(word: str) -> str:
    """`word: sentence fix`, for people; an unknown word (of a newer version) stands alone."""
    reason = REASONS.get(word)
    return f"{word}: {reason.sentence} {reason.fix}" if reason else word

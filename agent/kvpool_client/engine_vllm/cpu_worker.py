"""Copies between the engine's KV cache and its host pool where there is no GPU to do it.

vLLM's own worker needs CUDA or XPU. This one copies with torch, late and in a thread of its own, as a GPU's copy
engine does: jobs complete some steps after they were submitted, so the order of events that the tier sees on a CPU
is the one it sees on a GPU.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion


def fragments(group_sizes: Any, block_indices: Any, blocks_per_chunk: int) -> Iterator[tuple[int, int, int, int]]:
    """For each engine block of a transfer: (group, index into its block ids, index into its chunk ids, place inside
    the chunk). A group's first block may lie in the middle of its first chunk."""
    block = chunk = 0
    for group, size in enumerate(group_sizes):
        if not size:
            continue
        skip = int(block_indices[group]) % blocks_per_chunk
        for k in range(size):
            position = skip + k
            yield group, block + k, chunk + position // blocks_per_chunk, position % blocks_per_chunk
        block += size
        chunk += (skip + size + blocks_per_chunk - 1) // blocks_per_chunk


class CpuWorker(OffloadingWorker):
    """One per rank. The host pool's region is the one that the scheduler's side opens by the same engine id."""

    def __init__(self, kv_caches: Any, spec: Any) -> None:
        self._caches = kv_caches
        self._blocks_per_chunk = spec.blocks_per_chunk
        self._region = SharedOffloadRegion(
            engine_id=spec.config.engine_id,
            num_chunks=spec.num_chunks,
            rank=spec.config.parallel.rank,
            kv_bytes_per_chunk=spec.kv_bytes_per_chunk,
            cpu_page_size=spec.cpu_page_size_per_worker,
        )
        self._rows = [
            self._region.create_next_worker_view(tensor.page_size_bytes * self._blocks_per_chunk)
            for tensor in kv_caches.tensors
        ]
        self._pool = ThreadPoolExecutor(1, "kvpool-cpu-copy")
        self._jobs: dict[int, Future[None]] = {}
        self._lock = threading.Lock()
        self._finished: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._jobs[job_id] = self._pool.submit(self._copy, job_id, src_spec, dst_spec, True)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._jobs[job_id] = self._pool.submit(self._copy, job_id, dst_spec, src_spec, False)
        return True

    def _copy(self, job_id: int, device: Any, host: Any, store: bool) -> None:
        started, moved = time.monotonic(), 0
        chunk_ids = host.chunk_ids if hasattr(host, "chunk_ids") else host.block_ids
        places = fragments(device.group_sizes, device.block_indices, self._blocks_per_chunk)
        for group, block, chunk, place in places:
            for ref in self._caches.group_data_refs[group]:
                tensor = self._caches.tensors[ref.tensor_idx]
                cached = tensor.tensor[int(device.block_ids[block]), : ref.page_size_bytes]
                start = place * tensor.page_size_bytes
                row = self._rows[ref.tensor_idx][int(chunk_ids[chunk]), start : start + ref.page_size_bytes]
                if store:
                    row.copy_(cached)
                else:
                    cached.copy_(row)
                moved += ref.page_size_bytes
        with self._lock:
            self._finished.append(TransferResult(job_id, True, moved, time.monotonic() - started))

    def get_finished(self) -> list[Any]:
        with self._lock:
            finished, self._finished = self._finished, []
        for result in finished:
            self._jobs.pop(result.job_id).result()
        return finished

    def wait(self, job_ids: set[int]) -> None:
        for job_id in list(job_ids):
            job = self._jobs.get(job_id)
            if job is not None:
                job.result()

    def shutdown(self) -> None:
        self._pool.shutdown(wait=True)
        self._rows.clear()
        self._region.cleanup()

"""Block hashes as vLLM makes them of equal tokens beside different images: hash_images.py TARGET_FILE

Writes, by name of the image, the keys under which its connector offers the blocks of the prompt, as hex. Run by the
engine's interpreter.
"""

import json
import sys
from pathlib import Path

from PIL import Image
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.request import Request

BLOCK, BLOCKS, AT = 32, 6, 70  # the image's placeholders begin in the third block

plain = Image.new("RGB", (16, 16), (10, 20, 30))
dot = plain.copy()
dot.putpixel((7, 7), (10, 20, 31))
init_none_hash(sha256)
hasher = get_request_block_hasher(BLOCK, sha256)


def keys(image: Image.Image | None) -> list[str]:
    features = []
    if image is not None:
        name = MultiModalHasher.hash_kwargs("sha256", model_id="model", image=image)
        features.append(MultiModalFeatureSpec(None, "image", name, PlaceholderRange(AT, 40), name))
    tokens = [i % 1000 for i in range(BLOCKS * BLOCK + 1)]
    request = Request("r", tokens, SamplingParams(), None, mm_features=features, block_hasher=hasher)
    return [bytes(make_offload_key(one, 0)).hex() for one in request.block_hashes]


images = {"plain": plain, "same": plain.copy(), "dot": dot, "none": None}
Path(sys.argv[1]).write_text(json.dumps({name: keys(image) for name, image in images.items()}))

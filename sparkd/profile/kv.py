"""What the KV cache of one request of full length costs a rank, as vLLM's own planner (0.33) would bill it.

All layers share one pool of blocks, so every layer's page is brought to one size: a smaller page grows if it
divides the largest one, and is padded to it, and billed in full, if it does not. That is how a bf16 drafter
beside an fp8 target costs three times the content. A layout with the block outermost packs pages side by side
instead. A contract test compares this with the planner itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from sparkd.engine.flags import whole_number
from sparkd.profile.schema import KvLayers, Profile

DEFAULT_BLOCK: Final = 16
PACKED_LAYOUTS: Final = ("BLHNC", "BLNHC", "BHLNC")
"""Values of VLLM_KV_CACHE_LAYOUT with the block outermost (vLLM 0.29 and later)."""
LAYOUT_VARIABLE: Final = "VLLM_KV_CACHE_LAYOUT"

_BYTES: Final = {
    "auto": Fraction(2), "bfloat16": Fraction(2), "float16": Fraction(2),
    "fp8": Fraction(1), "fp8_e4m3": Fraction(1), "fp8_e5m2": Fraction(1),
    # 4 bits a value and one byte of scale for 16 of them.
    "nvfp4": Fraction(9, 16),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """Layers of one kind on one rank. `value_bytes` is what one number takes."""

    count: int
    heads: int
    key: int
    value: int
    window: int | None
    value_bytes: Fraction
    block: int
    padded: int = 0
    """The page that it is billed, where that is more than its content."""

    @property
    def content(self) -> int:
        return int(self.block * self.heads * (self.key + self.value) * self.value_bytes)

    @property
    def page(self) -> int:
        return self.padded or self.content

    def blocks(self, length: int, in_flight: int) -> int:
        """Blocks that one request holds at most in one of these layers."""
        if self.window is None:
            return -(-length // self.block)
        return -(-min(self.window - 1 + in_flight, length) // self.block) + 1


@dataclass(frozen=True, slots=True)
class KvNeed:
    """Bytes of one request of `length` tokens on one rank, and what its content alone takes."""

    length: int
    dtype: str
    draft_dtype: str | None
    bytes: int
    content_bytes: int
    packed: bool
    pages: tuple[int, ...]
    """The different page sizes before they were brought to one, smallest first."""
    block_bytes: int
    """Of one block of the pool, in all layers of a group."""
    blocks: int
    """How many a request of `length` takes."""

    def tokens(self, pool: int) -> int:
        """What a pool of so many bytes holds, as vLLM counts it when it has made its cache."""
        return int(pool // self.block_bytes / self.blocks * self.length)


def kv_need(profile: Profile) -> KvNeed | None:
    """None when the profile does not describe its layers, or leaves open what the sum needs.

    That is `max-model-len` and `max-num-batched-tokens`, and a dtype with a known size.
    """
    args = profile.engine.args
    dtype = str(args.get("kv-cache-dtype", "auto"))
    speculation = args.get("speculative-config")
    draft_dtype = None
    if speculation is not None:
        own = speculation.get("kv_cache_dtype") if isinstance(speculation, Mapping) else None
        draft_dtype = str(own or dtype)
    block = whole_number(args.get("block-size")) or DEFAULT_BLOCK
    packed = profile.env.get(LAYOUT_VARIABLE) in PACKED_LAYOUTS
    return _need(profile, dtype, draft_dtype, block, profile.memory.kv.draft_block or block, packed=packed)


def kv_beside(profile: Profile) -> list[KvNeed]:
    """The same for what the profile names to be compared with."""
    speculates = profile.engine.args.get("speculative-config") is not None
    found = []
    for other in profile.memory.kv.beside:
        draft_dtype = (other.draft_dtype or other.dtype) if speculates else None
        need = _need(profile, other.dtype, draft_dtype, other.block, other.block, packed=other.packed)
        found += [need] if need is not None else []
    return found


def _need(
    profile: Profile, dtype: str, draft_dtype: str | None, block: int, draft_block: int, *, packed: bool
) -> KvNeed | None:
    args = profile.engine.args
    length = whole_number(args.get("max-model-len"))
    batched = whole_number(args.get("max-num-batched-tokens"))
    if not profile.memory.kv.layers or not length or not batched:
        return None
    if dtype not in _BYTES or (draft_dtype is not None and draft_dtype not in _BYTES):
        return None
    kinds = [
        _kind(
            layers,
            profile,
            draft_dtype if layers.draft else dtype,
            draft_block if layers.draft else block,
        )
        for layers in profile.memory.kv.layers
        if draft_dtype is not None or not layers.draft
    ]
    # One batch is in flight; with asynchronous scheduling, the default, one more.
    batches = profile.layout.pp + (args.get("async-scheduling") is not False)
    in_flight = batches * batched
    block_bytes, blocks = pool_blocks(kinds, length, in_flight, packed=packed)
    return KvNeed(
        length=length,
        dtype=dtype,
        draft_dtype=draft_dtype,
        bytes=block_bytes * blocks,
        content_bytes=sum(kind.count * kind.content * kind.blocks(length, in_flight) for kind in kinds),
        packed=packed,
        pages=tuple(sorted({kind.content for kind in kinds})),
        block_bytes=block_bytes,
        blocks=blocks,
    )


def _kind(layers: KvLayers, profile: Profile, dtype: str | None, block: int) -> Kind:
    return Kind(
        count=-(-layers.count // profile.layout.pp),
        heads=max(1, layers.heads // profile.layout.tp),
        key=layers.key,
        value=layers.value,
        window=layers.window,
        value_bytes=_BYTES[dtype or "auto"],
        block=block,
    )


def pool_blocks(kinds: list[Kind], length: int, in_flight: int, *, packed: bool) -> tuple[int, int]:
    """Bytes of a block, and the blocks that one request takes in all groups of layers."""
    kinds = _merged(kinds)
    same_tokens = {(kind.window, kind.block) for kind in kinds}
    if len(same_tokens) == 1:
        # Every layer holds the same tokens: one group, whatever the page sizes.
        return sum(kind.count * kind.page for kind in kinds), kinds[0].blocks(length, in_flight)
    if packed and len({kind.page for kind in kinds}) > 1:
        groups = _packed_groups(kinds)
    else:
        groups = _equal_groups(_merged(_one_page(kinds)))
    per_block = max(sum(kind.count * kind.page for kind in group) for group in groups)
    return per_block, sum(max(kind.blocks(length, in_flight) for kind in group) for group in groups)


def _merged(kinds: list[Kind]) -> list[Kind]:
    """Layers that differ in nothing are of one kind."""
    counts: dict[Kind, int] = {}
    for kind in kinds:
        alike = replace(kind, count=0)
        counts[alike] = counts.get(alike, 0) + kind.count
    return [replace(kind, count=count) for kind, count in counts.items()]


def _one_page(kinds: list[Kind]) -> list[Kind]:
    """`unify_kv_cache_spec_page_size`."""
    largest = max(kind.page for kind in kinds)
    return [
        replace(kind, block=kind.block * (largest // kind.page))
        if largest % kind.page == 0
        else replace(kind, padded=largest)
        for kind in kinds
    ]


def _equal_groups(kinds: list[Kind]) -> list[list[Kind]]:
    """`_get_kv_cache_groups_uniform_page_size`: groups of as many layers as the rarest kind has.

    Or as many as the most frequent kind has, if that is less than half more.
    """
    least, most = min(kind.count for kind in kinds), max(kind.count for kind in kinds)
    size = most if most < least * 1.5 else least
    return [part for kind in kinds for part in _split(kind, -(-kind.count // size))]


def _packed_groups(kinds: list[Kind]) -> list[list[Kind]]:
    """`_get_packed_kv_cache_groups`: a group for each kind of tokens held.

    Windows are split as far as needed to fit the block that full attention fills anyway. (vLLM also looks for
    repeats where layers of one window have several page sizes; those stay one group here.)
    """
    by_tokens: dict[tuple[int | None, int], list[Kind]] = {}
    for kind in kinds:
        by_tokens.setdefault((kind.window, kind.block), []).append(kind)
    widest = max(
        max(kind.page for kind in group) if window else sum(kind.count * kind.page for kind in group)
        for (window, _), group in by_tokens.items()
    )
    groups: list[list[Kind]] = []
    for (window, _), group in by_tokens.items():
        if window is None or len(group) > 1:
            groups.append(group)
        else:
            states = max(widest // group[0].page, 1)
            groups += _split(group[0], -(-group[0].count // states))
    return groups


def _split(kind: Kind, parts: int) -> list[list[Kind]]:
    """The layers dealt out in turn, so the first groups have one more if they do not divide."""
    counts = [(kind.count + parts - 1 - part) // parts for part in range(parts)]
    return [[replace(kind, count=count)] for count in counts if count]

"""Reasons that a profile gives for its values, and what it asks a model that sees."""

import base64
import re
import zlib

from sparkd.profile.load import load_source
from sparkd.profile.lookup import builtin_profiles
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from sparkd.records.plan import Plan
from tests.bed.builtin_plans import EIGHT_SPARKS
from tests.bed.make_canary_image import data_url

M3 = builtin_profiles() / "minimax-m3.yaml"


def _plan(sets: tuple[str, ...] = (), variants: tuple[str, ...] = ()) -> Plan:
    intent = resolve(load_source(M3), variants=variants, sets=sets).intent
    ports = {"api_port": 8100, "rendezvous_port": 29600}
    return build_plan("minimax-m3", intent, EIGHT_SPARKS[:2], generation=1, serial=1, **ports)


def _notes(plan: Plan) -> dict[str, tuple[str, str]]:
    found = {arg.words[0]: (arg.origin, arg.note) for arg in plan.ranks[1].args}
    return found | {one.name: (one.origin, one.note) for one in plan.ranks[1].env}


def test_every_value_of_the_profile_has_its_reason_beside_it() -> None:
    notes = _notes(_plan())
    silent = [name for name, (origin, note) in notes.items() if origin == "profile" and not note]
    assert [name for name in silent if name.startswith("--")] == []
    assert [name for name in silent if name != "SPARKD_MODS" and not name.startswith("/")] == []
    assert notes["--block-size"] == (
        "profile",
        "a page must be one block of the sparse attention, 128 tokens",
    )


def test_a_reason_is_not_given_for_a_value_that_somebody_else_set() -> None:
    notes = _notes(_plan(("engine.args.block-size=64", "env.NCCL_DEBUG=INFO")))
    assert notes["--block-size"] == ("set", "--set engine.args.block-size=64")
    assert notes["NCCL_DEBUG"] == ("set", "--set env.NCCL_DEBUG=INFO")


def test_a_variant_has_reasons_of_its_own() -> None:
    origin, note = _notes(_plan(variants=("fp8-kv",)))["--kv-cache-dtype"]
    assert (origin, note) == (
        "variant",
        "variant fp8-kv: 45 KB a token on each rank; the indexer's keys stay in bf16",
    )


def _pixels(url: str) -> bytes:
    image = base64.b64decode(url.partition(",")[2])
    at = image.index(b"IDAT")
    return zlib.decompress(image[at + 4 : at + 4 + int.from_bytes(image[at - 4 : at], "big")])


def test_the_image_of_its_canaries_is_the_generated_one() -> None:
    urls = set(re.findall(r"data:image/png;base64,[A-Za-z0-9+/=]+", M3.read_text(encoding="utf-8")))
    assert {_pixels(url) for url in urls} == {_pixels(data_url())}

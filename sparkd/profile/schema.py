"""The schema of a profile (`sparkd/v1`). Its descriptions are the documentation: they become JSON Schema.

Types are strict (a text is no number), unknown keys are refused. What needs more than one value to decide
(arguments, environment, layout against variants) is in `profile/check.py`.
"""

import ipaddress
import json
import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
    model_validator,
)

from sparkd.engine import flags
from sparkd.engine.versions import VersionRange
from sparkd.records.defaults import DEFAULTS

HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Gib = Annotated[float, Field(ge=0, le=4096, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)]
Degree = Annotated[int, Field(ge=1, le=1024)]


def _version_range(text: str) -> str:
    VersionRange.parse(text)
    return text


def _host(text: str) -> str:
    if text != "node":
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise ValueError("write `node` or an IP address") from None
    return text


def _env_value(value: object) -> object:
    # `1` in YAML is a number; the environment knows text only. Other types have more than one spelling.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError("write a text or a whole number (quote it)")  # noqa: TRY004 - pydantic wants it
    return value


def _env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise ValueError("is not the name of an environment variable")
    return name


def _beside(path: str) -> str:
    # Whoever uses a profile of somebody else must not publish a file of their own with it.
    if not path or path.startswith("/") or ".." in path.split("/"):
        raise ValueError("write a path beside the profile, without `..`")
    return path


def _folder(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError("write a path without `..`")
    if not flags.encodable(path):
        raise ValueError("holds a character that no path can hold")
    return path


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
EnvValue = Annotated[
    str, BeforeValidator(_env_value), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]})
]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=False)


class ModelSource(Section):
    path: Annotated[str, AfterValidator(_folder)] | None = Field(
        default=None, min_length=1, description="A folder: absolute, or below a node's first model root."
    )
    id: Annotated[str, Field(pattern=f"^{HUB_ID.pattern}$")] | None = Field(
        default=None, description="The model's name on the Hub (org/name); nothing is downloaded from it."
    )
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = Field(
        default=None, description="The commit of `id` to serve, 40 hex digits: a branch may move."
    )

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSource":
        if (self.path is None) == (self.id is None):
            raise ValueError("needs `path`, or `id` and `revision`")
        if (self.id is None) != (self.revision is None):
            raise ValueError("`id` and `revision` go together")
        return self


class Model(ModelSource):
    trust: bool = Field(
        default=False,
        description="Whether code that comes with the model, or is named by it, may run (trust-remote-code).",
    )
    also: dict[FileName, ModelSource] = Field(
        default_factory=dict,
        description="Further models that the engine loads, such as a drafter, by name; looked for on every "
        "node. An argument names one as `also:NAME`.",
    )


class Layout(Section):
    """Ranks = tp x pp, one per node."""

    tp: Degree = Field(default=1, description="Tensor parallel size.")
    pp: Degree = Field(default=1, description="Pipeline parallel size.")
    dp: Literal[1] = Field(default=1, description="Data parallel size; more than 1 is not supported yet.")

    @property
    def ranks(self) -> int:
        return self.tp * self.pp


class Fabric(Section):
    rdma: Literal["if-there", "required"] = Field(
        default="if-there",
        description="`required`: no launch where no RDMA leads to all nodes, and an end to one that NCCL "
        "takes over sockets.",
    )


class Engine(Section):
    vllm: Annotated[str, AfterValidator(_version_range)] = Field(
        default=">=0.24,<0.34", description="The vLLM versions that this profile is for."
    )
    args: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Flags of `vllm serve` without dashes: true is `--x`, false `--no-x`, a map one JSON "
        "word, a list repeated values.",
    )
    files: dict[FileName, Annotated[str, AfterValidator(_beside)]] = Field(
        default_factory=dict,
        description="Small files that every node gets, read-only: name -> path beside the profile. "
        "An argument names one as `files:NAME`.",
    )


class Mod(Section):
    name: str = Field(min_length=1, description="The mod's name, as `sparkd mods list` shows it.")
    required: bool = Field(default=True, description="Whether ranks may run without it.")
    unknown: Literal["refuse", "try"] = Field(
        default="refuse", description="What to do when the code that it changes is not one that it knows."
    )
    settings: dict[str, str] = Field(
        default_factory=dict, description="The mod's own settings, as `sparkd mods list` shows them."
    )


class Floors(Section):
    loading: Gib = Field(default=2, description="MemAvailable that must be left while weights load, GiB.")
    serving: Gib = Field(default=4, description="MemAvailable that must be left while serving, GiB.")


class Returned(Section):
    margin_gib: Gib = Field(
        default=DEFAULTS.memory_margin_bytes / 2**30,
        description="How far below the baseline memory may stay before the next start, GiB.",
    )
    hold_s: Seconds = Field(
        default=DEFAULTS.memory_hold_s, description="How long it must stay there, seconds."
    )
    timeout_s: Seconds = Field(
        default=DEFAULTS.memory_timeout_s, description="How long to wait for it, seconds."
    )


class KvLayers(Section):
    """Attention layers of one kind, of the whole model: tp and pp divide them."""

    count: int = Field(ge=1, le=10_000, description="How many layers.")
    heads: int = Field(ge=1, le=10_000, description="KV heads of one layer.")
    key: int = Field(ge=1, le=65_536, description="Width of a key.")
    value: int = Field(ge=1, le=65_536, description="Width of a value.")
    window: int | None = Field(default=None, ge=1, description="Sliding window; left out: all tokens.")
    draft: bool = Field(default=False, description="The drafter's: there with speculation only.")


class KvBeside(Section):
    """Another way to keep the KV cache, which the plan states beside the chosen one."""

    dtype: str = Field(min_length=1, max_length=40, description="The model's KV dtype.")
    draft_dtype: str | None = Field(
        default=None, min_length=1, max_length=40, description="The drafter's; left out: the model's."
    )
    block: int = Field(default=16, ge=1, le=65_536, description="Block size.")
    packed: bool = Field(default=False, description="In a layout with the block outermost.")


class Kv(Section):
    """The KV cache, for the memory sum. Its dtype, block size and length come from the arguments."""

    layers: list[KvLayers] = Field(default_factory=list, description="Left out: not added up.")
    requests: int = Field(
        default=1, ge=1, le=100_000, description="How many requests of full length must fit at a time."
    )
    draft_block: int | None = Field(
        default=None, ge=1, le=65_536, description="The drafter's own block size, if a mod gives it one."
    )
    beside: list[KvBeside] = Field(
        default_factory=list, description="Other ways to keep it: the plan says what a pool holds with each."
    )


class Memory(Section):
    """Needs of one rank, and what a node must keep."""

    weights_gib: Gib = Field(default=0, description="Weights of one rank, GiB; 0 when unknown.")
    runtime_gib: Gib = Field(default=2, description="Everything else that a rank holds while serving, GiB.")
    kv: Kv = Field(default_factory=Kv, description="What its KV cache takes.")
    load_spike_gib: Gib = Field(default=0, description="What loading needs beyond that, GiB.")
    reserve_gib: Gib = Field(default=4, description="What must stay free for the node itself, GiB.")
    shm_gib: Gib = Field(
        default=0, description="Bound of a container's /dev/shm, GiB; 0: half of the node's memory."
    )
    floors_gib: Floors = Field(default_factory=Floors, description="Below these the gang is ended cleanly.")
    returned: Returned = Field(
        default_factory=Returned, description="When memory counts as given back after a gang has ended."
    )


class Boot(Section):
    max_s: Seconds = Field(
        default=DEFAULTS.boot_max_s,
        gt=0,
        description="A boot that takes longer has failed, whatever its progress.",
    )


class Expect(Section):
    contains: str | None = Field(
        default=None,
        description="Text that the answer must hold; left out: any answer with at least one token.",
    )


class Completion(Section):
    messages: list[dict[str, JsonValue]] = Field(min_length=1, description="As in OpenAI's chat API.")
    max_tokens: int = Field(default=64, ge=1, le=32_768, description="At most so many tokens are generated.")
    timeout_s: Seconds = Field(
        default=180, gt=0, description="An answer that takes longer is no answer, seconds."
    )


class CanaryCheck(Completion):
    expect: Expect = Field(default_factory=Expect, description="What the answer must look like.")


class Pulse(Section):
    silence_s: Seconds = Field(
        default=DEFAULTS.pulse_silence_s,
        gt=0,
        description="A pulse is sent after so long without new tokens.",
    )
    timeout_s: Seconds = Field(
        default=DEFAULTS.pulse_timeout_s,
        gt=0,
        description="A pulse unanswered for so long proves nothing any more.",
    )


class Ready(Section):
    canaries: list[CanaryCheck] = Field(
        default_factory=list, description="Asked once per generation; `ready` needs every answer right."
    )
    warmup: list[Completion] = Field(
        default_factory=list, description="Asked once after the canaries, so that clients meet warm kernels."
    )
    pulse: Pulse = Field(default_factory=Pulse, description="The proof that all ranks still compute.")


class Restart(Section):
    budget: int = Field(
        default=DEFAULTS.restart_budget, ge=0, le=100, description="Falls before the deployment has failed."
    )
    backoff_s: Seconds = Field(
        default=DEFAULTS.restart_backoff_s, description="Wait before the first restart; doubles."
    )
    backoff_max_s: Seconds = Field(
        default=DEFAULTS.restart_backoff_max_s, description="The longest such wait."
    )


class Api(Section):
    port: Annotated[int, Field(ge=1024, le=65_535)] | None = Field(
        default=None, description="The endpoint's port; left out: one of 8100-8199, kept over restarts."
    )
    host: Annotated[str, AfterValidator(_host)] = Field(
        default="node",
        description="`node`: rank 0's management address (loopback in a local set); or an address.",
    )
    key: Literal["generate", "none"] = Field(
        default="generate", description="`generate`: clients need a key, unless the endpoint is on loopback."
    )


class When(Section):
    nodes: Degree | None = Field(default=None, description="Only for layouts of so many nodes.")


_Part = Annotated[dict[str, JsonValue] | None, Field(description="Laid over the profile's section.")]


class Variant(Section):
    """Laid over the profile: maps merge, lists replace, null removes; the result must be a valid profile."""

    when: When = Field(default_factory=When, description="The layouts that this variant is for.")
    model: _Part = None
    layout: _Part = None
    fabric: _Part = None
    engine: _Part = None
    env: _Part = None
    why: _Part = None
    mods: list[dict[str, JsonValue]] | None = Field(default=None, description="Replaces the profile's list.")
    memory: _Part = None
    boot: _Part = None
    ready: _Part = None
    restart: _Part = None
    api: _Part = None


class Profile(Section):
    """How to serve one model on one or more nodes."""

    model_config = ConfigDict(title="sparkd profile", serialize_by_alias=True)

    schema_: Literal["sparkd/v1"] = Field(alias="schema", description="The version of this format.")
    name: str = Field(
        pattern=r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$",
        description="The deployment's name unless another is given: a-z, 0-9, inner hyphens, at most 40.",
    )
    verified: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default_factory=list,
        description="What was tried and what was not, of a profile that never ran on the machines it is for.",
    )
    model: Model = Field(description="What to serve.")
    layout: Layout = Field(default_factory=Layout, description="How the model is spread over ranks.")
    fabric: Fabric = Field(default_factory=Fabric, description="What ranks need between their nodes.")
    engine: Engine = Field(default_factory=Engine, description="Arguments and files of vLLM.")
    env: dict[Annotated[str, AfterValidator(_env_name)], EnvValue] = Field(
        default_factory=dict, description="Environment of every rank."
    )
    why: dict[str, Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default_factory=dict,
        description="Why an argument or a variable has its value, by its name; the plan shows it beside it.",
    )
    mods: list[Mod] = Field(default_factory=list, description="Changes made to vLLM while it is loaded.")
    memory: Memory = Field(default_factory=Memory, description="What a node needs, and must keep.")
    boot: Boot = Field(default_factory=Boot, description="How long a start may take.")
    ready: Ready = Field(default_factory=Ready, description="What proves that the model serves.")
    restart: Restart = Field(default_factory=Restart, description="What happens after a fall.")
    api: Api = Field(default_factory=Api, description="Where clients reach the model.")
    variants: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")], Variant] = Field(
        default_factory=dict, description="Named changes, chosen with --variant."
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a profile file, for editors and other programs."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Profile.model_json_schema(by_alias=True),
    }


def schema_text() -> str:
    """The JSON Schema as it is committed in `profiles/schema.json`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"

"""The class of the mod `mimo-config`. A module of its own: it needs transformers, and it is pickled by its
name when a rank hands its configuration to its workers.
"""

from typing import Any

from transformers import PretrainedConfig


class MiMoV2Config(PretrainedConfig):  # type: ignore[misc]
    model_type = "mimo_v2"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - as transformers declares it

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

from typing import Any

import pytest

from sparkd.engine.code_names import code_named_in


@pytest.mark.parametrize(
    ("written", "value", "place"),
    [
        ("kv-transfer-config", {"kv_connector_module_path": "evil"}, "kv_connector_module_path"),
        ("kv-transfer-config", '{"kv_connector_module_path": "evil"}', "kv_connector_module_path"),
        ("kv-transfer-config", {"kv-connector-module-path": "evil"}, "kv_connector_module_path"),
        ("kv_transfer_config.kv_connector_module_path", "evil", "kv_connector_module_path"),
        (
            "kv-transfer-config",
            {"kv_connector_extra_config": {"tiers": [{"type": "X", "module_path": "evil"}]}},
            "kv_connector_extra_config.tiers.module_path",
        ),
        (
            "kv-transfer-config",
            {"kv_connector_extra_config": {"policy": "evil.Policy"}},
            "kv_connector_extra_config.policy",
        ),
        ("ec-manager-config", {"encoder_cache_manager_cls": "evil.M"}, "encoder_cache_manager_cls"),
        ("speculative-config", {"model": "evil.Proposer"}, "model"),
        ("speculative-config", {"method": "custom_class"}, "method"),
        ("compilation-config", {"backend": "evil.compile"}, "backend"),
        ("compilation-config.backend", "evil.compile", "backend"),
        ("compilation-config", {"inductor_passes": {"a": "evil.f"}}, "inductor_passes.a"),
        ("logging-config", {"pylogging_config_file": "/tmp/x.json"}, "pylogging_config_file"),
        ("structured-outputs-config", {"reasoning_parser_plugin": "/tmp/x.py"}, "reasoning_parser_plugin"),
    ],
)
def test_the_place_of_a_name_of_code(written: str, value: Any, place: str) -> None:
    flag = written.partition(".")[0].replace("_", "-")
    assert code_named_in(flag, written, value) == f"{flag}.{place}"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("speculative-config", {"method": "mtp", "num_speculative_tokens": 1}),
        ("speculative-config", {"model": "org/name-1.5", "method": "eagle"}),
        ("speculative-config", {"model": "/models/draft.v2", "method": "dflash"}),
        ("speculative-config", {"model": "also:drafter"}),
        ("compilation-config", {"backend": "inductor", "splitting_ops": ["vllm.unified_attention"]}),
        ("compilation-config", {"inductor_passes": None}),
        ("kv-transfer-config", {"kv_connector": "NixlConnector", "kv_ip": "node.local", "kv_rank": 0}),
        ("chat-template", "{% if a.b %} {not json"),
        ("override-generation-config", {"stop": ["a.b.c"], "temperature": 0.6}),
        ("max-model-len", 4096),
    ],
)
def test_values_that_name_no_code(flag: str, value: Any) -> None:
    assert code_named_in(flag, flag, value) is None

from collections.abc import Iterator

from sparkd.diagnosis.copying import bring, fetch
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log

_LINE = log(
    "FileNotFoundError",
    "No such file or directory: ",
    "Repo id must be in the form",
    "Can't load the configuration of",
    "does not appear to have a file named",
    "LocalEntryNotFoundError",
    "offline mode is enabled",
    # What makes a kernel while the model loads, its caches and shared memory are no files of the model.
    pattern=r"FileNotFoundError(?!.*(\b(ninja|nvcc|ptxas|gcc|g\+\+|cc1plus)\b|/psm_|/dev/|/tmp/|/proc/|\.tmp|\.lock|"
    r"triton|inductor|flashinfer|torch_compile_cache))|"
    r"No such file or directory: ['\"].*(config\.json|\.safetensors)|Error: Repo id must be|Can't load the conf|"
    r"does not appear to have a file named|LocalEntryNotFoundError|offline mode is enabled",
)


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _LINE(evidence)
    for member in evidence.members:
        if member.models is None and member.models_unknown:
            yield Found(
                member.models_unknown,
                node=member.name,
                title="the model is not on this node",
                remedy=bring(evidence.members, "", member) or fetch(evidence.asked, member),
            )


RULE = Rule(
    id="MODEL_MISSING",
    title="a file of the model is missing",
    cause="the checkpoint is not, or not whole, on the node of that rank",
    remedy="put the whole checkpoint into a model root of every node",
    match=_match,
    needles=_LINE.needles,
    retry="never",
    reference="eugr/spark-vllm-docker#262",
)

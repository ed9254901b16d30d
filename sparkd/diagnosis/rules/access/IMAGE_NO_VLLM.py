from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="IMAGE_NO_VLLM",
    title="the image has no vLLM that its python3 knows of",
    cause="it is a base image, or its vLLM lies in an environment that is not first on its PATH",
    remedy="use an image with vLLM installed, whose PATH finds that python3 first",
    match=reported("IMAGE_NO_VLLM"),
    retry="never",
)

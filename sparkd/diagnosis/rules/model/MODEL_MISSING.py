from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="MODEL_MISSING",
    title="a file of the model is missing",
    cause="the checkpoint is not, or not whole, on the node of that rank",
    remedy="put the whole checkpoint into a model root of every node",
    match=log(
        "FileNotFoundError",
        "No such file or directory: ",
        "Repo id must be in the form",
        "Can't load the configuration of",
        "does not appear to have a file named",
        "LocalEntryNotFoundError",
        "offline mode is enabled",
        # The compilers of a kernel that is made while the model loads are no files of the model.
        pattern=r"FileNotFoundError(?!.*\b(ninja|nvcc|ptxas|gcc|g\+\+|cc1plus)\b)|"
        r"No such file or directory: '.*(config\.json|\.safetensors)|Repo id must be|Can't load the conf|"
        r"does not appear to have a file named|LocalEntryNotFoundError|offline mode is enabled",
    ),
    retry="never",
    reference="eugr/spark-vllm-docker#262",
)

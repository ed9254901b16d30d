from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="LIBRARY_MISSING",
    title="a shared library is missing",
    cause="vLLM was built for another version of CUDA, or of a library, than this node has",
    remedy="install the build of vLLM for this node's CUDA (13 on a Spark)",
    match=log(
        "cannot open shared object file",
        "undefined symbol: ",
        pattern=r"\blib[\w.+-]*\.so[\w.]*: (cannot open shared object file|undefined symbol)",
    ),
    retry="never",
    reference="natolambert/dgx-spark-setup",
)

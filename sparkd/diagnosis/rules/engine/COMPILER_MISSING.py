from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="COMPILER_MISSING",
    title="kernels cannot be compiled on this node",
    cause="Triton and torch compile while a model loads, which takes a C compiler and Python's headers",
    remedy="`sudo apt install build-essential python3-dev` on that node, for the Python that runs vLLM",
    match=log(
        "Failed to find C compiler",
        "Python.h: No such file",
        "No working C compiler",
        "InvalidCxxCompiler",
        pattern=r"Failed to find C compiler|fatal error: Python\.h: No such file|No working C(\+\+)? compiler|InvalidCxxCompiler",
    ),
    retry="never",
)

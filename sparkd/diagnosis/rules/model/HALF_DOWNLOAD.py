from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="HALF_DOWNLOAD",
    title="a file of the model is cut off",
    cause="a download that was interrupted, or a pointer of Git LFS instead of the file",
    remedy="copy that file to the node again; compare its size with the one on a node that loads it",
    match=log(
        "deserializing header",
        "MetadataIncompleteBuffer",
        "HeaderTooLarge",
        "HeaderTooSmall",
        "InvalidHeader",
        "not fully covered",
        pattern=r"Error while deserializing header|MetadataIncompleteBuffer|HeaderToo(Large|Small)|InvalidHeader(Length|Start|Deserialization)?\b|not fully covered",
    ),
    retry="never",
    reference="MiniMax-AI/MiniMax-M2.5#37; lyogavin/airllm#137",
)

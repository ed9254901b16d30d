from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="SSH_HOSTKEY",
    title="a node shows another ssh key than before",
    cause="it was installed anew, or another machine has its address",
    remedy="make sure that it is the machine you mean, then `ssh-keygen -R ADDRESS` and connect once by hand",
    match=log(
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "Host key verification failed",
        "key for host",
        pattern=r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed",
    ),
    retry="never",
    reference="kftsehk/phy-clusters#29",
)

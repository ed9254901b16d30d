"""Every error that sparkd raises on purpose, as one tree with stable codes.

    SparkdError                     code              HTTP  CLI exit
    ├── UsageError                  usage             400   2
    │   ├── ProfileError            profile-invalid   422   2
    │   └── EngineUnknown           engine-unknown    422   2
    ├── NotFound                    not-found         404   1
    ├── Conflict                    conflict          409   1
    │   └── IntentDiffers           intent-differs    409   1
    ├── Refused                     refused           409   1     an agent or a coordinator will not do it
    │   ├── Fenced                  fenced            409   1     a lower (term, revision) or generation
    │   ├── Spent                   spent             409   1     this rank's name was started before
    │   └── NeedsHello              needs-hello       409   1     this run has not said hello to this instance
    ├── Unauthorized                unauthorized      401   3
    ├── Forbidden                   forbidden         403   1     a known caller may not do that
    ├── TooLarge                    too-large         413   1     a body over the bound
    │   └── HeadTooLarge            head-too-large    431   1
    ├── Unavailable                 unavailable       503   3
    │   ├── CoordinatorUnreachable  unreachable       -     3
    │   └── CoordinatorStarting     starting          503   3
    ├── ExchangeFailed              exchange-failed   502   1     an HTTP exchange came to nothing
    │   ├── NotConnected            not-connected     502   1     nothing was sent
    │   ├── NotAnswered             not-answered      504   1     sent, and no whole answer in time
    │   ├── AnswerBroken            answer-broken     502   1     broken off, too large, or no HTTP
    │   └── CertificateRefused      certificate-refused 403 1     one end does not accept the other's
    │       └── ClockOff            clock-off         403   1     for its dates alone
    ├── RankNotStarted              not-started       -     1     a node could not even begin a rank
    ├── ServiceManagerUnreachable   no-systemd        -     1     systemd was not asked, or does not answer
    ├── DockerUnreachable           no-docker         -     1     Docker was not asked, or does not answer
    ├── DockerRefused               docker-refused    -     1     it answered, and would not
    │   └── ImageUnusable           image             -     1     no such image, or not what is needed
    ├── DeploymentFailed            failed            -     1
    ├── LocalSetFailed              local-set         -     1     a local daemon did not start or end
    ├── EnrolmentFailed             enrolment         -     1     a step on a node that is set up failed
    │   ├── NotReached              not-reached       -     1     no SSH connection
    │   ├── HostKeyRefused          host-key          -     1     not the machine we know, or nobody vouches
    │   └── LoginFailed             login             -     1     not let in, or not as root
    ├── TimedOut                    timed-out         -     4
    └── StateCorrupt                state-corrupt     500   1     a database or ledger that cannot be trusted
        └── StateTooNew             state-too-new     500   1     written by a later sparkd

`code` is a contract (REST `type`, `-o json`); the text is for people and says what to do.
"""

from typing import ClassVar


class SparkdError(Exception):
    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


class UsageError(SparkdError):
    code = "usage"
    http_status = 400
    exit_code = 2


class ProfileError(UsageError):
    """A profile is invalid; `problems` holds every finding, each as `file:line: key: text`."""

    code = "profile-invalid"
    http_status = 422

    def __init__(self, problems: "list[str] | tuple[str, ...]") -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class EngineUnknown(UsageError):
    code = "engine-unknown"
    http_status = 422


class NotFound(SparkdError):
    code = "not-found"
    http_status = 404


class Conflict(SparkdError):
    code = "conflict"
    http_status = 409


class IntentDiffers(Conflict):
    """`up` of something that runs with another intent; `differences` are lines `key: old -> new`."""

    code = "intent-differs"

    def __init__(self, message: str, differences: tuple[str, ...]) -> None:
        super().__init__(message)
        self.differences = differences


class Refused(SparkdError):
    code = "refused"
    http_status = 409


class Fenced(Refused):
    code = "fenced"


class Spent(Refused):
    code = "spent"


class NeedsHello(Refused):
    code = "needs-hello"


class Unauthorized(SparkdError):
    code = "unauthorized"
    http_status = 401
    exit_code = 3


class Forbidden(SparkdError):
    code = "forbidden"
    http_status = 403


class TooLarge(SparkdError):
    code = "too-large"
    http_status = 413


class HeadTooLarge(TooLarge):
    code = "head-too-large"
    http_status = 431


class Unavailable(SparkdError):
    code = "unavailable"
    http_status = 503
    exit_code = 3


class CoordinatorUnreachable(Unavailable):
    code = "unreachable"


class CoordinatorStarting(Unavailable):
    code = "starting"


class RankNotStarted(SparkdError):
    """`cause` is the id of a verdict; empty where none is known."""

    code = "not-started"

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause


class ServiceManagerUnreachable(SparkdError):
    code = "no-systemd"


class DockerUnreachable(SparkdError):
    code = "no-docker"


class DockerRefused(SparkdError):
    """`status` is the HTTP status of the engine's answer; 0 where sparkd itself says no."""

    code = "docker-refused"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ImageUnusable(DockerRefused):
    code = "image"


class ExchangeFailed(SparkdError):
    code = "exchange-failed"
    http_status = 502


class NotConnected(ExchangeFailed):
    code = "not-connected"


class NotAnswered(ExchangeFailed):
    code = "not-answered"
    http_status = 504


class AnswerBroken(ExchangeFailed):
    code = "answer-broken"


class CertificateRefused(ExchangeFailed):
    code = "certificate-refused"
    http_status = 403


class ClockOff(CertificateRefused):
    code = "clock-off"


class DeploymentFailed(SparkdError):
    code = "failed"


class LocalSetFailed(SparkdError):
    code = "local-set"


class EnrolmentFailed(SparkdError):
    code = "enrolment"


class NotReached(EnrolmentFailed):
    code = "not-reached"


class HostKeyRefused(EnrolmentFailed):
    code = "host-key"


class LoginFailed(EnrolmentFailed):
    code = "login"


class TimedOut(SparkdError):
    code = "timed-out"
    exit_code = 4


class StateCorrupt(SparkdError):
    code = "state-corrupt"


class StateTooNew(StateCorrupt):
    code = "state-too-new"

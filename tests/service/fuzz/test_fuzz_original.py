"""Whatever the original protocol is sent, nothing fails, and every answer is one that its description promises.

Nothing is said of what has to be refused: these clients send whatever lies on their command line, and always could.
"""

import pytest
import schemathesis
from support.fuzz_target import CHECKS, describe_api, fuzz_settings

API = schemathesis.openapi.from_dict(describe_api()).include(path_regex="^/(original|_s3)/")
API.config.analysis.constants.enabled = False
API.config.generation.with_security_parameters = False
BY_PASSWORD = {"POST /original/users/login", "POST /original/apiTokens/createPublic"}
REFUSALS = {401, 405}


@pytest.fixture(autouse=True, scope="module")
def impatient():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.original.long_poll.MAX_WAIT_SECONDS", 0.02)
        yield


@API.parametrize()
@fuzz_settings(5)
def test_every_answer_is_as_described(case, fuzz_target):
    case.validate_response(fuzz_target.call(case), checks=CHECKS)


@pytest.mark.slow  # service/auth/test_every_route.py asks each route without one
@API.parametrize()
@fuzz_settings(2)
def test_without_a_key_nothing_is_answered(case, fuzz_target):
    answer = fuzz_target.call(case, key=False)
    case.validate_response(answer, checks=CHECKS)
    if case.operation.label in BY_PASSWORD:  # the body is read before it can be told
        assert answer.status_code in REFUSALS | {400, 422, 429}
    elif case.operation.path.startswith("/_s3/"):
        assert answer.status_code in {403, 405, 422}
    else:
        assert answer.status_code in REFUSALS

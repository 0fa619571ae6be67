"""Whatever the original protocol is sent, nothing fails, and every answer is one that its description promises.

Nothing is said of what has to be refused: these clients send whatever lies on their command line, and always could.
"""

import pytest
import schemathesis
from support.fuzz_target import CHECKS, WITH_COVERAGE, describe_api, fuzz_settings

API = schemathesis.openapi.from_dict(describe_api()).include(path_regex="^/(original|_s3)/")
API.config.analysis.constants.enabled = False
API.config.generation.with_security_parameters = False
API.config.phases.coverage.enabled = WITH_COVERAGE


@pytest.fixture(autouse=True, scope="module")
def impatient():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.original.long_poll.MAX_WAIT_SECONDS", 0.02)
        yield


@API.parametrize()
@fuzz_settings(6)
def test_every_answer_is_as_described(case, fuzz_target):
    case.validate_response(fuzz_target.call(case), checks=CHECKS)

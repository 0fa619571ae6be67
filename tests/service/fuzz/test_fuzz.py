"""Whatever is sent, no request makes the service fail, and every answer is one that its description promises."""

import itertools
import shutil
from collections import Counter

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.python.asgi import shutdown_lifespans
from schemathesis.specs.openapi.checks import negative_data_rejection
from support.fuzz_target import CHECKS, WITH_COVERAGE, FuzzTarget, describe_api, fuzz_settings

from core.db.database import Database

pytestmark = pytest.mark.integration

DESCRIPTION = describe_api()
ANOTHER_PROTOCOL = "^/(original|_s3)/"  # it takes whatever it is sent: tests/service/fuzz/test_fuzz_original.py
API = schemathesis.openapi.from_dict(DESCRIPTION).exclude(path_regex=ANOTHER_PROTOCOL)
API.config.analysis.constants.enabled = False
API.config.generation.with_security_parameters = False
API.config.phases.coverage.enabled = WITH_COVERAGE
LINKED = schemathesis.openapi.from_dict(DESCRIPTION).include(path_regex="^/jobs")
LINKED.config.analysis.constants.enabled = False
LINKED.config.generation.with_security_parameters = False
LINKED.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE])


@API.parametrize()
@fuzz_settings(6)
def test_every_answer_is_as_described(case, fuzz_target):
    case.validate_response(fuzz_target.call(case), checks=[*CHECKS, negative_data_rejection])


@pytest.fixture
def walk(tmp_path, migrated_sqlite):
    """From answer to answer along the links of the description; each walk starts from the same jobs."""
    number = itertools.count()
    reached = Counter()

    class Walk(LINKED.as_state_machine()):
        answered = reached

        def setup(self):
            super().setup()
            home = tmp_path / str(next(number))
            home.mkdir()
            shutil.copy(migrated_sqlite, home / "gradient.db")
            self._database = Database(f"sqlite:///{home / 'gradient.db'}")
            self._fuzzed = FuzzTarget(home, self._database)

        def teardown(self):
            self.answered.update(self._fuzzed.response_counts)
            shutdown_lifespans()
            self._database.close()
            super().teardown()

        def call(self, case, **_kwargs):
            return self._fuzzed.call(case)

        def validate_response(self, response, case, **_kwargs):
            case.validate_response(response, checks=CHECKS)

    return Walk


def test_every_answer_along_the_links_is_as_described(walk):
    walk.run(settings=settings(fuzz_settings(12), stateful_step_count=12))
    followed = {label for (label, status) in walk.answered if status < 300 and "{job_id}" in label}
    # Which links are taken is drawn from the description; an id that comes from no link is unknown.
    assert len(followed) >= 6, walk.answered

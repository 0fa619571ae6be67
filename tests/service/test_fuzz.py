"""Whatever is sent, no request makes the service fail, and every answer is one that its description promises."""

import os
from pathlib import Path

import pytest
import schemathesis
from fuzzing import Fuzzed
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.python.asgi import shutdown_lifespans
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from core import schema
from core.db import Database

EXAMPLES = int(os.environ.get("GRADIENT_FUZZ_EXAMPLES", "0"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
API = schemathesis.openapi.from_path(Path(__file__).with_name("openapi.json"))
API.config.analysis.constants.enabled = False
API.config.generation.with_security_parameters = False


def examples(few: int):
    return settings(
        max_examples=EXAMPLES or few,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def fuzzed(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    url = f"sqlite:///{home / 'gradient.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").new_database()
    database = Database(url)
    schema.upgrade(database)
    yield Fuzzed(home, database)
    shutdown_lifespans()
    database.close()


@API.parametrize()
@examples(30)
def test_every_answer_is_as_described(case, fuzzed):
    case.validate_response(fuzzed.call(case), checks=[*CHECKS, negative_data_rejection])

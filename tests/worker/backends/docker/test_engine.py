"""What an engine tells of itself."""

import pytest
from dockerserver import running_engine

from worker.backends.docker.engine import Engine, EngineAway


def test_what_lasts_is_not_asked_for_again_until_the_engine_goes_away(docker_server):
    with running_engine() as server:
        engine = Engine(server.settings())
        hasty = engine.hasty(5)
        told = hasty.lasting_info()
        assert engine.lasting_info() is told, "two connections, one engine"
        assert hasty.info() is not told, "what is asked for now is asked for"
        assert engine.lasting_info() is not told, "and remembered"
        server.kill()
        with pytest.raises(EngineAway):
            engine.call(lambda api: api.ping())
        with pytest.raises(EngineAway):
            hasty.lasting_info()
        server.start()
        assert engine.lasting_info()["ID"] == told["ID"]

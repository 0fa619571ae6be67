"""Hostile jobs and uploads, each through the whole service; what they try in detail is tested beside each store."""

import pytest
from support.faults.control_folder_attacks import run_control_folder_attacks
from support.faults.fault_report import FULL_RUN
from support.faults.job_journal import recorded_command

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 240)]


def test_jobs_that_fight_their_control_folder_harm_only_themselves(deployment):
    deployment.start_api()
    run_control_folder_attacks(deployment, deployment.start_worker(GRADIENT_WORKER__SLOTS="4"), recorded_command)

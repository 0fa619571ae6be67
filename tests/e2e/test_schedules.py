"""A schedule from the command line: created with its folder, run at once, suspended, resumed and deleted."""

import json
import subprocess

from support.deployment import CLI_PROGRAM


def test_a_folder_runs_again_and_again(service, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.sh").write_text("echo trained at $SCHEDULED_AT\n")

    def schedules(*arguments, code=0):
        done = subprocess.run(
            [str(CLI_PROGRAM), "schedules", *arguments],
            env=service.client_environment() | {"TZ": "UTC"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    missing = schedules("show", code=2).stderr
    assert "id: required, because no schedule has been created in this folder yet" in missing
    options = ("--cron", "0 3 29 2 *", "--timezone", "Europe/Berlin", "--name", "leap", "--machineType", "CPU")
    made = schedules("create", *options, "--onOverlap", "skip", "--", "sh", "train.sh")
    schedule_id = made.stdout.strip()
    assert made.stderr.count("-02-29 03:00 CET") == 5
    ran = [schedules("trigger", schedule_id).stdout.strip()]
    assert service.wait_ended(ran[0])["state"] == "Stopped"
    assert service.raw_log(ran[0]).startswith(b"trained at 20")
    assert "suspended" in schedules("suspend").stderr
    shown = schedules("list").stdout
    assert f"{ran[0]} Succeeded" in shown
    assert "suspended" in shown
    ran.append(json.loads(schedules("trigger", schedule_id, "--json").stdout)["id"])
    assert service.wait_ended(ran[1])["scheduleId"] == schedule_id
    assert "02-29 03:00 CET" in schedules("resume", "@last").stderr
    assert "0 3 29 2 * (Europe/Berlin)" in schedules("show", schedule_id).stdout
    assert json.loads(schedules("list", "--json").stdout)["schedules"][0]["lastJob"]["id"] == ran[1]
    assert "required" in schedules("delete", code=2).stderr
    schedules("delete", schedule_id)
    assert "no schedules" in schedules("list").stderr

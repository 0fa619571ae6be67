"""The form of a new job, sweep, schedule or comparison, or of a job's changed clone: filled in, checked, submitted."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.datastructures import UploadFile

from core.db.models.jobs import Job
from core.errors import GradientError, IdempotencyMismatch, NotFound, SpecInvalid, StoreUnavailable
from core.formatting import format_bytes
from core.jobs import projects, queries
from core.jobs.spec.arrays import array_name, standalone_command
from core.security import credentials, users
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from core.storage.workspaces import StoredWorkspace
from service.app_state import AppState
from service.auth.authentication import PageCaller, Principal, require_key_or_session
from service.dashboard.forms import cli_equivalent, job_fields
from service.dashboard.forms.job_plan import GENERAL, JobPlan, check_job, machine_choices, machine_groups
from service.dashboard.forms.kinds import KINDS
from service.dashboard.forms.upload import (
    LEFT_OUT,
    MAX_FILES,
    MAX_UPLOAD_BYTES,
    JobForm,
    JobFormDep,
    pack,
)
from service.dashboard.login import SameOriginForm
from service.dashboard.rendering import job_url, render_page
from service.deps import AppStateDep, RequestId
from service.http.errors import STATUS_BY_ERROR
from service.http.routing import Router
from service.http.upload_form import upload_folder
from service.schemas.jobs import SubmitJob
from service.submission import compare, create, schedules, sweeps
from service.submission.stages import RequestOrigin
from service.submission.validation import DEFAULT_PROJECT
from service.submission.withheld import Withheld, withheld_from
from service.submission.workspace import may_use_workspace, store_workspace

router = Router(dependencies=[Depends(require_key_or_session)])

PAGE = "/ui/jobs/new"
SOURCES = {
    "none": "None: the command needs no files",
    "files": "Files from this computer",
    "git": "A git repository",
    "job": "The workspace of an earlier job",
}
"""Sources of a workspace, with their labels."""
_CREATE: dict[str, tuple[Callable[[AppState, RequestOrigin, Any, None], tuple[str, bool]], str]] = {
    "sweep": (sweeps.create, "/ui/sweeps"),
    "schedule": (schedules.create, "/ui/schedules"),
    "comparison": (compare.submit, "/ui/comparisons"),
}
_SHARED = {
    "page": PAGE,
    "kinds": KINDS,
    "sources": SOURCES,
    "options": job_fields,
    "machine_groups": machine_groups,
    "limits": f"up to {MAX_FILES:,} files, {format_bytes(MAX_UPLOAD_BYTES)}; without {', '.join(LEFT_OUT)}",
}
_RECENT, _RECENT_JOBS = 4, 100  # shown commands and images, and the jobs that they are of


@dataclass(slots=True)
class FormState:
    """The contents of the form, and what the server found about them."""

    texts: dict[str, str]
    secrets: list[str] = field(default_factory=list)
    # the texts that stand for the job that the form was filled from
    before: Mapping[str, str] = field(default_factory=dict)
    original: Job | None = None
    withheld: Withheld | None = None  # what its clone by this caller goes without
    plan: JobPlan | None = None  # the result of the check; None: not checked yet
    # the fields of the request, as far as valid, with hidden values
    fields: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200

    @property
    def makes(self) -> str:
        kind = self.texts.get("kind", "")
        return kind if kind in KINDS else "job"


@router.get(PAGE)
def show_form(request: Request, app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show the form: empty, filled from the job `from`, or with fields of the address."""
    texts = dict(request.query_params)
    unknown = next((name for name in texts if name not in {*job_fields.FIELDS, "kind", "from"}), None)
    if unknown is not None or texts.get("kind", "job") not in KINDS:
        raise NotFound(f"This form has no {unknown or 'kind ' + texts['kind']}. To clone a job, open its page.")
    with app_state.database.read() as session:
        state = _read_original(session, app_state, caller, texts.pop("from", ""))
        state.texts = {"serial": "on"} | dict(state.before) | texts
        return _render(session, app_state, caller, state)


@router.post(PAGE, dependencies=[SameOriginForm])
async def submit_form(app_state: AppStateDep, caller: PageCaller, request_id: RequestId, form: JobFormDep) -> Response:
    """Check the job of the form, and submit it if the button for that was used and nothing is wrong."""
    app_state.limits.submissions.acquire(caller.id)
    errors = {} if form.error is None else {"workspace": form.error}
    if form.files and not errors:
        errors = await _store_files(app_state, caller.id, form)
    return await app_state.lanes.changing.run(_check_and_submit, app_state, caller, request_id, form, errors)


async def _store_files(app_state: AppState, key_id: str, form: JobForm) -> dict[str, str]:
    """Store the uploaded files, so that they need not be chosen again after an error elsewhere; return the errors."""
    form.texts["source"] = "files"
    try:
        # The form holds the upload slot of its key, so this waits only for a thread that reads archives.
        stored = await app_state.lanes.archives.run(_pack_and_store, app_state, key_id, form.files)
    except GradientError as error:
        return {"workspace": error.message}
    form.texts["workspaceSha256"] = stored.sha256 if stored else ""
    return {}


def _pack_and_store(app_state: AppState, key_id: str, files: list[UploadFile]) -> StoredWorkspace | None:
    try:
        packed = pack(files, upload_folder(app_state.settings))
    except OSError as error:
        raise StoreUnavailable(f"The files could not be packed: {error.strerror}. Try again later.") from error
    with packed:
        return store_workspace(app_state, key_id, packed, None)


def _check_and_submit(
    app_state: AppState, caller: Principal, request_id: str, form: JobForm, errors: dict[str, str]
) -> Response:
    if "drop" in form.texts:
        form.texts["params"] = job_fields.without_param(form.texts.get("params", ""), form.texts["drop"])
    with app_state.database.read() as session:
        state = _read_original(session, app_state, caller, form.texts.get("from", ""))
        fields, field_errors = _read_fields(session, form)
        errors = field_errors | errors  # why files were not taken, rather than that there are none
        state.texts, state.secrets, state.fields = form.texts, form.secrets, fields
    complete = {name: dict(value) if isinstance(value, dict) else value for name, value in fields.items()}
    if state.original is not None and state.withheld is not None:
        job_fields.reveal_values(complete, state.withheld.remainder(state.original.spec))
    state.plan = check_job(app_state, caller.id, KINDS[state.makes], complete, errors)
    if form.texts.get("action") == "submit":
        state.status = 422
        answer = _submit(app_state, RequestOrigin(caller.id, request_id, form.texts.get("key") or None), state)
        if answer is not None:
            return answer
    with app_state.database.read() as session:
        return _render(session, app_state, caller, state)


def _submit(app_state: AppState, origin: RequestOrigin, state: FormState) -> Response | None:
    """Submit what a valid form makes and lead to its page; None: it was refused, and the plan has the error."""
    if state.plan is None or state.plan.request is None:
        return None
    try:
        address = _create(app_state, origin, state, state.plan.request)
    except IdempotencyMismatch:
        state.texts["key"] = ""
        state.plan.errors[GENERAL] = (
            "This form was already submitted with other values. Submit it again to create another."
        )
    except GradientError as error:
        state.plan.errors[(error.field or GENERAL).split(".")[0]] = error.message
        state.status = STATUS_BY_ERROR[type(error)]
    else:
        return RedirectResponse(address, 303)
    return None


def _create(app_state: AppState, origin: RequestOrigin, state: FormState, request: SubmitJob) -> str:
    """Create what the form makes, and return the address of its page."""
    original, withheld = state.original, state.withheld or Withheld("")
    if state.makes == "job":
        parent_id, notes = withheld.job_id or None, withheld.notes(request.env_vars or {})
        made = create.submit(app_state, origin, request, None, parent_id=parent_id, withheld=notes)
        return job_url(made.job.id)
    if original is not None and request.workspace == original.spec.workspace and not withheld.git_login:
        with app_state.database.read() as session:
            login = credentials.git_login(session, Vault(app_state.settings), original)
        given = {"workspace": (request.workspace or "").replace("://", f"://{login}@", 1)} if login else {}
        request = request.model_copy(update=given)
    create_it, pages = _CREATE[state.makes]
    return f"{pages}/{create_it(app_state, origin, request, None)[0]}"


def _read_original(session: Session, app_state: AppState, caller: Principal, job_id: str) -> FormState:
    """Return the form with the texts that stand for a job as `before`; empty without an id."""
    if not job_id:
        return FormState({})
    job = queries.get(session, job_id)
    withheld = withheld_from(session, app_state, caller.id, job)
    spec = replace(withheld.remainder(job.spec), command=standalone_command(job))
    texts = job_fields.describe_spec(spec, queries.project(session, job.project_id).name)
    if job.name:
        texts["name"] = array_name(job.name, job.array_index)
    source = "git" if job.spec.workspace else "job" if job.spec.workspace_sha256 else "none"
    before = texts | {"source": source, "workspaceOf": job.id if source == "job" else ""}
    return FormState({}, before=before, original=job, withheld=withheld)


def _read_fields(session: Session, form: JobForm) -> tuple[dict[str, Any], dict[str, str]]:
    """Convert the form into the fields of a request, and the errors of those that cannot be."""
    texts = {name: text for name, text in form.texts.items() if not name.startswith("workspace")}
    fields, errors = job_fields.parse_fields(texts, FormState(texts).makes)
    job_fields.add_secrets(fields, form.secrets)
    try:
        fields |= _workspace_fields(session, form.texts)
    except (SpecInvalid, NotFound) as error:
        errors["workspace"] = error.message
    return fields, errors


def _workspace_fields(session: Session, texts: Mapping[str, str]) -> dict[str, str]:
    address, uploaded = texts.get("workspace", "").strip(), texts.get("workspaceSha256", "")
    match texts.get("source", "none"):
        case "files":
            if not uploaded and not texts.get("chosen"):
                raise SpecInvalid("Choose files, an archive, a folder or another source for the workspace.")
            return {"workspaceSha256": uploaded} if uploaded else {}
        case "git":
            if not address:
                raise SpecInvalid("Give the address of the repository, such as https://host/repo.git#branch.")
            return {"workspace": address}
        case "job":
            spec = queries.get(session, texts.get("workspaceOf", "").strip()).spec
            if spec.workspace_sha256 is not None:
                return {"workspaceSha256": spec.workspace_sha256}
            if spec.workspace is not None:
                return {"workspace": spec.workspace}
            raise SpecInvalid("That job had no workspace. Choose another job, or None.")
        case _:
            if address:
                raise SpecInvalid("A repository address is given, but None is selected. Choose one of them.")
            return {}


def _recent(session: Session, caller: Principal) -> dict[str, list[str]]:
    """Return the commands and images of the caller's last jobs, by their fields."""
    columns = Job.spec_text("command"), Job.spec_text("container")
    of_caller = Job.submitted_by.in_(users.keys_of_same_user(session, caller.id)), Job.deleted_at.is_(None)
    rows = session.execute(select(*columns).where(*of_caller).order_by(Job.seq.desc()).limit(_RECENT_JOBS)).all()
    commands, images = ([text for text in dict.fromkeys(row[at] for row in rows) if text][:_RECENT] for at in (0, 1))
    return {"command": commands, "container": images}


def _shown_errors(state: FormState) -> dict[str, str]:
    """Return the errors by field; while the form is filled in, without those of fields that are still empty."""
    texts, errors = state.texts, dict(state.plan.errors) if state.plan else {}
    if "workspaceSha256" in errors:
        errors.setdefault("workspace", errors.pop("workspaceSha256"))
    if texts.get("action") != "typing":
        return errors
    return {name: error for name, error in errors.items() if name == GENERAL or texts.get(name, "").strip()}


def _render(session: Session, app_state: AppState, caller: Principal, state: FormState) -> Response:
    texts = state.texts
    shown = {**state.fields, **({"workspaceSha256": ""} if texts.get("source") == "files" else {})}
    errors = _shown_errors(state)
    parsed, _ = job_fields.parse_fields(texts, state.makes)
    sha256 = texts.get("workspaceSha256")
    stored = sha256 is not None and may_use_workspace(app_state, caller.id, sha256)
    uploaded = app_state.workspaces.stat(sha256) if sha256 and stored else None
    project_id = projects.find_id(session, texts.get("project", "").strip() or DEFAULT_PROJECT)
    names = {secret.name for secret in credentials.secrets_of(session, ALL_PROJECTS)}
    names |= {secret.name for secret in credentials.secrets_of(session, project_id)} if project_id else set()
    return render_page(
        "forms/job.html",
        state.status,
        caller=caller,
        makes=state.makes,
        key=texts.get("key") or secrets.token_urlsafe(16),
        original=state.original,
        withheld=[] if state.withheld is None else state.withheld.notes(),
        texts=texts,
        errors=errors,
        plan=state.plan,
        conflicts=job_fields.find_conflicts(parsed),
        params=parsed.get("params", {}),
        unfold=any(texts.get(option.name) or option.name in errors for option in job_fields.OTHER_FIELDS),
        changes=job_fields.find_changes(texts, state.before) if state.original is not None else {},
        recent=_recent(session, caller),
        uploaded=uploaded,
        machines=machine_choices(session, app_state),
        images=[image.name for image in app_state.images],
        projects=[project.name for project in queries.projects(session)],
        secrets=sorted(names),
        chosen_secrets=state.secrets,
        command_line=cli_equivalent.as_command(shown, KINDS[state.makes].command) if state.plan else None,
        project_file=cli_equivalent.as_project_file(shown) if state.plan and state.makes == "job" else None,
        **_SHARED,
    )

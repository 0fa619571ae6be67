"""The last checkpoint of real frameworks, whatever ends their jobs: each saves in its own way, on its own signal."""

import pytest
from support.deployment import Deployment, wait_until
from support.documents import ROOT
from support.job_packages import share_environments

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bubblewrap"), pytest.mark.timeout(900)]

REASONS = {"stop": "stopped_by_user", "time limit": "time_limit", "ceiling": "cost_limit", "preemption": "preempted"}

LIGHTNING = """
import os, time, torch, lightning
from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        time.sleep(0.05)
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
class Begin(Callback):
    def on_train_start(self, trainer, module):
        print("training", flush=True)
if __name__ == "__main__":
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(1000, 4)), 8, num_workers=2)
    save = OnExceptionCheckpoint(os.environ["GRADIENT_ARTIFACTS_DIR"], "last")
    settings = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "max_epochs": -1}
    lightning.Trainer(callbacks=[Begin(), save], enable_checkpointing=True, **settings).fit(Net(), data)
"""

TRANSFORMERS = """
import os, time, torch, transformers
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        time.sleep(0.05)
        return {"loss": self.layer(x).sum(), "logits": self.layer(x)}
class Begin(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 1:
            print("training", flush=True)
if __name__ == "__main__":
    data = [{"x": torch.randn(4), "labels": torch.zeros(1)} for _ in range(1000)]
    settings = {"save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    args = transformers.TrainingArguments(
        os.environ["GRADIENT_ARTIFACTS_DIR"], max_steps=10**6, enable_jit_checkpoint=True, dataloader_num_workers=2,
        **settings,
    )
    transformers.Trainer(Net(), args, train_dataset=data, callbacks=[Begin()]).train()
"""

KERAS = """
import os, time, keras, numpy
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
begin = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: (time.sleep(0.05), batch or print("training", flush=True))
)
try:
    model.fit(numpy.zeros((1000, 4)), numpy.zeros((1000, 1)), 8, epochs=10**6, verbose=0, callbacks=[begin])
except KeyboardInterrupt:
    model.save(os.environ["GRADIENT_ARTIFACTS_DIR"] + "/last.keras")
"""

SUBMITIT = """
import os, time, submitit
class Training(submitit.helpers.Checkpointable):
    def __call__(self):
        open("begun", "w").close()
        time.sleep(600)
    def checkpoint(self):
        open(os.environ["GRADIENT_ARTIFACTS_DIR"] + "/last", "w").write("saved")
        return super().checkpoint()
if __name__ == "__main__":
    executor = submitit.LocalExecutor("submitit")
    executor.update_parameters(timeout_min=60)
    job = executor.submit(Training())
    while not os.path.exists("begun"):
        time.sleep(0.1)
    print("training", flush=True)
    job.result()
"""

LOOP = """
import os, signal, sys, time, torch
from torch.utils.data import DataLoader
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return torch.randn(4)
if __name__ == "__main__":
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    layer = torch.nn.Linear(4, 1)
    method = None if ranks > 1 else sys.argv[1]
    data = DataLoader(Data(), 4, num_workers=0 if ranks > 1 else 2, multiprocessing_context=method)
    begun = False
    while True:
        for batch in data:
            layer(batch).sum().backward()
            begun or rank or print("training", flush=True)
            begun = True
            time.sleep(0.05)
            flag = torch.tensor(len(stopped))
            if ranks > 1:
                torch.distributed.all_reduce(flag)
            if flag:
                if not rank:
                    torch.save(layer.state_dict(), os.environ["GRADIENT_ARTIFACTS_DIR"] + "/last.pt")
                    print("saved", flush=True)
                sys.exit(0)
"""


def reach(end, seconds):
    """Return the options of a job that ends in this way after a running time."""
    if end == "ceiling":
        return {"maxCost": 0.47 * seconds / 3600}
    return {"timeLimit": seconds} if end == "time limit" else {"envVars": {"SIMULATE_PREEMPT_AFTER": str(seconds)}}


def requirements(example):
    return (ROOT / "examples" / example / "requirements.txt").read_text().split()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    deployment = Deployment(tmp_path_factory.mktemp("service") / "home")
    deployment.start_up(GRADIENT_PROCESS__SANDBOX="require", **share_environments(deployment.home))
    yield deployment
    deployment.stop()


PYTORCH = "pytorch"
CASES = {  # program, command, packages of an example, its options, and its checkpoint
    "Lightning": (LIGHTNING, "python main.py", "lightning", {}, "last.ckpt"),
    "Transformers": (TRANSFORMERS, "python main.py", "transformers", {}, "checkpoint-"),
    "Keras": (KERAS, "python main.py", "trainer", {"stopSignal": "INT"}, "last.keras"),
    "submitit": (SUBMITIT, "python main.py", PYTORCH, {"stopSignal": "USR2", "packages": ["submitit"]}, "last"),
    "torchrun": (LOOP, "torchrun --nproc-per-node 2 main.py", PYTORCH, {}, "last.pt"),
    "DataLoader": (LOOP, "python main.py spawn", PYTORCH, {}, "last.pt"),
    "tee": (LOOP, "bash -c 'python main.py fork | tee log'", PYTORCH, {}, "last.pt"),
}


@pytest.mark.parametrize(("name", "_packages"), [(name, case[2]) for name, case in CASES.items()])
def test_the_last_checkpoint_is_there(service, name, _packages):
    program, command, example, options, saved = CASES[name]
    packages = [] if example == "trainer" else requirements(example)
    options = {"packages": packages, "stopGrace": 300, "files": {"main.py": program}} | options
    jobs = {"stop": service.submit(command, **options)}
    wait_until(lambda: b"training" in service.raw_log(jobs["stop"]), "it to train", 600)
    # The others begin to train within a multiple of its time, also on a busy machine.
    seconds = 15 + 4 * round(service.job(jobs["stop"])["durationSeconds"])
    service.request("POST", f"/jobs/{jobs['stop']}/stop")
    jobs |= {end: service.submit(command, **options, **reach(end, seconds)) for end in REASONS if end != "stop"}
    for end, job_id in jobs.items():
        job = service.wait_ended(job_id, 600)
        files = [file["path"] for file in service.artifacts(job_id)["files"]]
        assert job["reason"] == REASONS[end], end
        assert any(path.startswith(saved) for path in files), (end, files, service.raw_log(job_id)[-2000:])

"""A Slurm of one node on loopback: munged, slurmctld and slurmd, without systemd or accounting."""

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

CONFIGURATION = Path("/etc/slurm/slurm.conf")
"""Where Slurm looks without SLURM_CONF, which the executor plugin drops from jobs."""
MARK = "# Written by the tests of widthlab and removed after them.\n"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "setpriv")
CPUS = 4
"""Processors that Slurm believes in: enough that small jobs do not wait for one another."""
MEMORY = 8000
"""Megabytes that it believes in."""
GPUS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
"""Devices that it counts out as GPUs."""


def hindrance():
    """Return why no cluster can be brought up here, or None."""
    for plugin in ("snakemake_executor_plugin_slurm", "snakemake_executor_plugin_cluster_generic"):
        if importlib.util.find_spec(plugin) is None:
            return f"{plugin} is not installed"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in PROGRAMS if which(name) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)} missing)"
    if CONFIGURATION.exists() and not CONFIGURATION.read_text().startswith(MARK):
        return f"this machine has a Slurm of its own ({CONFIGURATION})"
    if "SLURM_CONF" in os.environ:
        return "this machine has a Slurm of its own (SLURM_CONF is set)"
    return None


def which(program):
    """Return where a program is; daemons lie in folders that are not on everybody's PATH."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Cluster:
    """The daemons, and what their client commands say."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.daemons = []

    def start(self):
        """Bring the daemons up and wait until the node takes jobs."""
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        CONFIGURATION.parent.mkdir(exist_ok=True)
        CONFIGURATION.write_text(MARK + self._configuration())
        # Slurm looks for gres.conf beside slurm.conf.
        (CONFIGURATION.parent / "gres.conf").write_text(
            MARK + "".join(f"Name=gpu File={device}\n" for device in GPUS)
        )
        self._daemon(
            *("munged", "--foreground", "--force", "--num-threads", "1"),
            *("--key-file", key, "--socket", self.folder / "munge.socket"),
            *("--pid-file", self.folder / "munged.pid", "--log-file", self.folder / "munged.log"),
            *("--seed-file", self.folder / "munged.seed"),
        )
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "-D", "-i")
        self._daemon("slurmd", "-D")
        self._wait(lambda: self("sinfo", "--noheader", "--format=%T").strip() == "idle", "the node")

    def stop(self):
        """Cancel what runs and take the daemons down, the last one started first."""
        self("scancel", "--user=root")
        end = time.monotonic() + 60
        while self.jobs(state="running,completing") and time.monotonic() < end:
            time.sleep(0.2)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        CONFIGURATION.unlink(missing_ok=True)
        (CONFIGURATION.parent / "gres.conf").unlink(missing_ok=True)

    def __call__(self, *command):
        """Return what a client command prints, or nothing where it failed."""
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def jobs(self, folder=None, stage="", state="all"):
        """Return what Slurm knows of the jobs of a folder and stage, oldest first."""
        numbers = self("squeue", "--noheader", f"--states={state}", "--format=%i").split()
        found = []
        for number in sorted(numbers, key=int):
            lines = self("scontrol", "--oneliner", "show", "job", number).split()
            job = dict(word.split("=", 1) for word in lines if "=" in word)
            here = folder is None or job["WorkDir"] == str(folder)
            if here and job.get("Comment", "").startswith(f"rule_{stage}" if stage else ""):
                found.append(job)
        return found

    def _daemon(self, program, *arguments):
        # They end with the tests, even with tests that are killed.
        command = ["setpriv", "--pdeathsig", "KILL", which(program), *map(str, arguments)]
        with (self.folder / f"{program}.out").open("wb") as output:
            self.daemons.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait(self, condition, what):
        end = time.monotonic() + 60
        while not condition():
            if time.monotonic() > end or any(d.poll() is not None for d in self.daemons):
                logs = "\n".join(
                    f"{log.name}:\n{log.read_text()[-2000:]}"
                    for log in sorted(self.folder.glob("*.out"))
                )
                raise RuntimeError(f"{what} did not come up\n{logs}")
            time.sleep(0.1)

    def _configuration(self):
        host = socket.gethostname().split(".")[0]
        node_has = f"CPUs={CPUS} RealMemory={MEMORY} Gres=gpu:{len(GPUS)}"
        controller, node = _free_ports(2)
        return f"""\
ClusterName=widthlab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.socket
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
# Without cgroups and without accounting.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# squeue must know of finished jobs.
MinJobAge=3600
KillWait=30
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 {node_has} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _free_ports(count):
    """Return ports that nothing listens on; they must all be held while they are chosen."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()

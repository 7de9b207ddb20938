"""A real Slurm with four stand-in H200s, a real sshd and SkyPilot's API server, all on loopback and all our own.

    bed = SlurmBed(folder).up()
    ...
    bed.down()

It needs root (Slurm's daemons change users, `mknod` makes the GPUs), and the Debian packages in `PACKAGES`. Nothing of
a Slurm, munge or ssh that the machine already has is read or changed: every daemon gets its own folder, socket and
port. Traps, each of which costs an hour: GPUs must have device files, or slurmd drops them; `config_overrides` lets a
small machine pose as a node with 64 CPUs; sshd's `-f` must be absolute, and without PAM it refuses a locked password;
SkyPilot waits for a busy Slurm for a day without `provision_timeout`; on the node it fetches uv from the network.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

from slurm_machine import (
    SBIN,
    all_pids,
    environ_of,
    free_port,
    is_server,
    node_python,
    owner_of,
    pids_of_user,
    pids_titled,
    port_is_open,
    program_path,
    same_disk,
    script,
    strike,
    user_exists,
    uv_path,
    wait,
)

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "openssh-server", "rsync")
PROGRAMS = (
    "slurmctld",
    "slurmd",
    "squeue",
    "scancel",
    "sinfo",
    "munged",
    "mungekey",
    "sshd",
    "rsync",
    "useradd",
    "mknod",
)
CLUSTER = "bed"
GPUS = 4


def why_not():
    """Why the bed can not stand here, None where it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the Slurm bed needs root on Linux"
    missing = [program for program in PROGRAMS if program_path(program) is None]
    if missing:
        return f"the Slurm bed needs {', '.join(missing)}: apt-get install {' '.join(PACKAGES)}"
    if uv_path() is None:
        return "the Slurm bed needs uv: pip install uv"
    return None


class SlurmBed:
    """The servers and what they write, below `folder`. `provision_timeout_s` is SkyPilot's own patience with Slurm."""

    def __init__(self, folder, *, provision_timeout_s=20):
        self.folder = Path(folder)
        self.provision_timeout_s = provision_timeout_s
        # Of this bed alone: whoever takes another one down on this machine ends every process of its user.
        self.user = f"orcbed{os.getpid()}"
        self.home = self.folder / "home"
        self.client = self.folder / "client"
        self.host = socket.gethostname().partition(".")[0]
        self.ports = {name: free_port() for name in ("slurmctld", "slurmd", "sshd", "api")}
        self.processes = {}
        self.neighbours = []

    @property
    def environ(self):
        """The environment of whoever uses SkyPilot here."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRATE_", "SKYPILOT_"))}
        return {
            **kept,
            "HOME": str(self.client),
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(self.ports["api"]),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:{SBIN}",
        }

    def up(self):
        """Start everything but the API server, which SkyPilot starts when it is first asked."""
        for name in ("ctld", "slurmd", "munge", "log", "ssh", "bin", "dev", "client/.slurm", "client/.ssh"):
            (self.folder / name).mkdir(parents=True)
        (self.client / ".sky/catalogs/v8/common").mkdir(parents=True)
        for path in (self.folder, *self.folder.parents):
            if not path.stat().st_mode & 0o001:
                raise RuntimeError(f"{path} is closed to other users, and the node's user is one")
        try:
            self._make_user()
            self._make_gpus()
            self._write_slurm()
            self._write_ssh()
            self._write_node_programs()
            self._write_client()
            self.start("munged")
            wait((self.folder / "munge/socket").exists, "munged's socket")
            self.start("slurmctld")
            self.start("slurmd")
            self.start("sshd")
            wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t"), "an idle node", limit_s=60)
            wait(lambda: port_is_open(self.ports["sshd"]), "sshd")
        except BaseException:
            self.down()
            raise
        return self

    def down(self):
        """End everything by its id, and remove the user. Every step is tried."""
        daemons = [partial(self.stop, name) for name in DAEMONS[::-1]]
        steps = (self.stop_api_server, self.cancel_everything, *daemons, self._end_users_processes, self._remove_shared,
                 self._remove_user)  # fmt: skip
        problems = []
        for step in steps:
            try:
                step()
            except (OSError, subprocess.SubprocessError, AssertionError) as error:
                problems.append(str(error))
        if problems:
            raise AssertionError(f"the Slurm bed did not go down whole: {problems}")

    def start(self, name):
        """Start one daemon in the foreground, as our child."""
        log = (self.folder / "log" / f"{name}.out").open("ab")
        self.processes[name] = subprocess.Popen(
            self._command(name),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self.environ,
            start_new_session=True,
        )
        log.close()

    def stop(self, name):
        """End one daemon; the jobs of a slurmctld or slurmd that goes live on."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)
        if name == "sshd":
            for pid in pids_titled((f"sshd: {self.user}@", f"sshd: {self.user} ")):
                os.kill(pid, signal.SIGTERM)

    def run(self, *command, check=True, limit_s=30):
        """What a command prints that is run as root beside the servers."""
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=limit_s, check=False, cwd=self.folder
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: {done.stderr.strip()}")
        return done.stdout

    def queue(self):
        """Names and states of every job that still holds or may yet get an allocation: Slurm's own word."""
        lines = self.run("squeue", "-h", "-o", "%j|%T").splitlines()
        return [tuple(line.split("|")) for line in lines]

    def submit(self, name, *, gpus=0, comment=None, seconds=3600):
        """A job of somebody else under the same Slurm user; its id."""
        options = ["--parsable", f"--job-name={name}", "--output=/dev/null", "--chdir=/", "--mem=64"]
        options += [f"--uid={self.user}"]
        options += [f"--gres=gpu:H200:{gpus}"] if gpus else []
        options += [f"--comment={comment}"] if comment else []
        return self.run("sbatch", *options, f"--wrap=exec sleep {seconds}").strip()

    def job_state(self, job):
        """The state of one job, also of one that has ended."""
        return self.run("squeue", "-h", "--states=all", "-j", job, "-o", "%T", check=False).strip()

    def cancel(self, *jobs):
        """`scancel`, as somebody outside would."""
        self.run("scancel", *jobs)

    def cancel_everything(self):
        """Leave no job in the queue."""
        if self.processes.keys() >= {"slurmctld", "munged"}:
            self.run("scancel", f"--user={self.user}", check=False)
            wait(lambda: not self.run("squeue", "-h", check=False).strip(), "an empty queue", limit_s=60)

    def sky(self, *arguments, limit_s=180):
        """SkyPilot's own command, for what the product is not to be asked."""
        program = Path(sys.executable).parent / "sky"
        return self.run(str(program), *arguments, check=False, limit_s=limit_s)

    def stop_api_server(self):
        """End SkyPilot's server and whatever it started; each process by its id."""
        if self.server_pids():
            self.sky("api", "stop", limit_s=60)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.server_pids():
                strike(pid, signum)
            try:
                wait(lambda: not self.server_pids(), "the API server to go", limit_s=15)
            except AssertionError:
                continue
            return

    def server_pids(self):
        """Processes that live in the client's home and are not ours: SkyPilot's server and its workers."""
        mark = f"HOME={self.client}".encode()
        daemons = {process.pid for process in self.processes.values()}
        return [pid for pid in all_pids() if pid not in daemons and mark in environ_of(pid) and is_server(pid)]

    def break_runtime(self, *, broken):
        """Whether SkyPilot's runtime can not be set up on the node."""
        mark = self.folder / "bin" / "broken"
        mark.touch() if broken else mark.unlink(missing_ok=True)

    def _command(self, name):
        folder = self.folder
        conf = str(folder / "slurm.conf")
        match name:
            case "munged":
                files = {"socket": "munge/socket", "key-file": "munge/key", "pid-file": "munge/pid",
                         "log-file": "log/munged.log", "seed-file": "munge/seed"}  # fmt: skip
                options = [f"--{option}={folder / path}" for option, path in files.items()]
                return [program_path("munged"), "--foreground", "--force", *options]
            case "slurmctld":
                return [program_path("slurmctld"), "-D", "-f", conf]
            case "slurmd":
                return [program_path("slurmd"), "-D", "-f", conf]
            case "sshd":
                return [
                    program_path("sshd"),
                    "-D",
                    "-f",
                    str(folder / "ssh/sshd_config"),
                    "-E",
                    str(folder / "log/sshd.log"),
                ]

    def _make_user(self):
        if not user_exists(self.user):
            # `*` and not `!`: sshd without PAM refuses a user whose password is locked.
            self.run("useradd", "--no-create-home", "-d", str(self.home), "-s", "/bin/bash", "-p", "*", self.user)
        self.home.mkdir()
        (self.home / ".ssh").mkdir(mode=0o700)

    def _remove_user(self):
        if user_exists(self.user):
            self.run("userdel", self.user)

    def _end_users_processes(self):
        if not user_exists(self.user):
            return
        uid = pwd.getpwnam(self.user).pw_uid
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids_of_user(uid):
                strike(pid, signum)
            try:
                wait(lambda: not pids_of_user(uid), f"the processes of {self.user} to go", limit_s=5)
            except AssertionError:
                continue
            return
        raise AssertionError(f"processes of {self.user} do not go: {pids_of_user(uid)}")

    def shared(self):
        """SkyPilot's folders in shared memory (its `tmpdir` here) of clusters of this bed."""
        return [path for path in Path("/dev/shm").glob("*-????????") if owner_of(path) == self.user]

    def _remove_shared(self):
        for path in self.shared():
            shutil.rmtree(path, ignore_errors=True)

    def _make_gpus(self):
        for index in range(GPUS):
            self.run("mknod", "-m", "666", str(self.folder / f"dev/h200_{index}"), "c", "1", "3")

    def _write_slurm(self):
        folder = self.folder
        (folder / "slurm.conf").write_text(f"""\
ClusterName={CLUSTER}
SlurmctldHost={self.host}(127.0.0.1)
SlurmctldPort={self.ports["slurmctld"]}
SlurmdPort={self.ports["slurmd"]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile={folder}/ctld/pid
SlurmdPidFile={folder}/slurmd/pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/slurmd
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=5
MinJobAge=300
NodeName={self.host} NodeAddr=127.0.0.1 CPUs=64 RealMemory=262144 Gres=gpu:H200:{GPUS} State=UNKNOWN
PartitionName=gpu Nodes={self.host} Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00 State=UP
""")
        last = GPUS - 1
        (folder / "gres.conf").write_text(
            f"NodeName={self.host} Name=gpu Type=H200 File={folder}/dev/h200_[0-{last}]\n"
        )
        self.run(program_path("mungekey"), "--create", f"--keyfile={folder / 'munge/key'}")

    def _write_ssh(self):
        folder = self.folder
        for key in ("host", "client"):
            self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "ssh" / key))
        Path("/run/sshd").mkdir(exist_ok=True)
        (folder / "ssh/sshd_config").write_text(f"""\
Port {self.ports["sshd"]}
ListenAddress 127.0.0.1
HostKey {folder}/ssh/host
PidFile none
AllowUsers {self.user}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
MaxSessions 100
MaxStartups 100
AcceptEnv SKY_CLUSTER_NAME
SetEnv SLURM_CONF={folder}/slurm.conf
Subsystem sftp internal-sftp
""")
        keys = self.home / ".ssh/authorized_keys"
        shutil.copy(folder / "ssh/client.pub", keys)
        keys.chmod(0o600)

    def _write_node_programs(self):
        """What a job and SkyPilot's runtime find on the node's PATH instead of the network."""
        binaries = self.folder / "bin"
        shutil.copy(uv_path(), binaries / "uv-real")
        script(binaries / "uv-offline", f"""\
args=(); for a in "$@"; do [ "$a" = 3.10 ] && a={node_python()}; args+=("$a"); done
exec {binaries}/uv-real "${{args[@]}}"
""")  # fmt: skip
        install = f'mkdir -p "$UV_INSTALL_DIR" && cp -p {binaries}/uv-offline "$UV_INSTALL_DIR/uv"'
        script(binaries / "curl", f"""\
for a in "$@"; do if [ "$a" = https://astral.sh/uv/install.sh ]; then
  if [ -e {binaries}/broken ]; then echo 'echo no uv today >&2; exit 7'; exit 0; fi
  echo '{install}'; exit 0
fi; done
exec /usr/bin/curl "$@"
""")  # fmt: skip
        # Says yes to `import torch` and runs anything else: for harnesses that need none.
        script(binaries / "python-stand-in", f'[ "$1" = -c ] && exit 0\nexec {node_python()} "$@"\n')
        kept = ("SSL_CERT_FILE", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
        exports = {name: os.environ[name] for name in kept if name in os.environ}
        exports |= {"UV_PYTHON_DOWNLOADS": "never", "SLURM_CONF": str(self.folder / "slurm.conf")}
        lines = [f"export PATH={binaries}:$PATH", *(f"export {name}={value}" for name, value in exports.items())]
        for name in (".bashrc", ".bash_profile"):
            (self.home / name).write_text("\n".join(lines) + "\n")
        self.run("chown", "-R", f"{self.user}:{self.user}", str(self.home))

    def _write_client(self):
        client, folder = self.client, self.folder
        (client / ".slurm/config").write_text(f"""\
Host {CLUSTER}
    HostName 127.0.0.1
    Port {self.ports["sshd"]}
    User {self.user}
    IdentityFile {folder}/ssh/client
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/ssh/known_hosts
""")
        (client / ".sky/config.yaml").write_text(f"""\
slurm:
  allowed_clusters: [{CLUSTER}]
  provision_timeout: {self.provision_timeout_s}
  cluster_configs:
    {CLUSTER}:
      tmpdir: /dev/shm
""")
        catalog = client / ".sky/catalogs/v8/common"
        (catalog / "accelerators.csv").write_text("AcceleratorName,Clouds\nH200,\"['Slurm']\"\n")
        (catalog / "metadata.csv").write_text("GPU,MemoryGB,Manufacturer\nH200,141,NVIDIA\n")

    def python_with_torch(self):
        """An interpreter that the node's user can run and that imports torch: this one's, by way of its files."""
        wrapper = self.folder / "bin" / "python-torch"
        if not wrapper.exists():
            import torch

            packages = Path(torch.__file__).parents[1]
            if not self._user_can_read(packages / "torch" / "__init__.py"):
                copy = self.folder / "site-packages"
                self.run(
                    "cp", "-al" if same_disk(packages, self.folder) else "-a", str(packages), str(copy), limit_s=300
                )
                packages = copy
            python = self._readable_python()
            script(wrapper, f'export PYTHONPATH="{packages}${{PYTHONPATH:+:$PYTHONPATH}}"\nexec {python} "$@"\n')
        return str(wrapper)

    def _readable_python(self):
        """This interpreter, or its files in a place that the node's user can read."""
        real = Path(sys.executable).resolve()
        if self._user_can_read(real):
            return real
        beside = shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin")
        if beside is not None:
            return beside
        base = Path(sys.base_prefix).resolve()
        copy = self.folder / "python"
        self.run("cp", "-al" if same_disk(base, self.folder) else "-a", str(base), str(copy), limit_s=300)
        return copy / real.relative_to(base)

    def _user_can_read(self, path):
        done = subprocess.run(["runuser", "-u", self.user, "--", "test", "-r", str(path)], check=False)
        return done.returncode == 0


DAEMONS = ("munged", "slurmctld", "slurmd", "sshd")

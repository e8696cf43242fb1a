"""Faults while commands write: kills at random moments, disks that fill up, file systems that are read-only.

    python -m benchmarks.faults --faults 5

Each command runs on tiny inputs of its own. Exit code 0: after every fault there was one line and exit code 2 (none after a
kill), no file under its name but whole ones, and nothing temporary; and the next run of the command ended with the same bytes as
an undisturbed run, but for times. A read-only fault comes half of the times to what a kill has left.

Where file systems can be mounted (Linux, by a superuser or in a user namespace), the disk is a file system in memory, of limited
size, or mounted read-only. Elsewhere the stand-ins are files that may not grow, and a file where a folder is needed.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fault_cases import BASE, COMMANDS, contents, files, is_partial, torn, write_inputs

FAULTS = ("kill", "full disk", "read-only")
DISK_BYTES, PAGE_BYTES = 1 << 28, 4096
MOUNTED = "OLMO_SPARSITY_FAULTS_MOUNTED"  # set in the process that may mount
NAMESPACES = (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user"))


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (minus the signal that killed it) and the lines on standard error."""

    code: int
    lines: list[str]


class Disk:
    """The folder that a command writes into: a file system of its own, or a plain folder."""

    def __init__(self, folder: Path, *, is_mounted: bool) -> None:
        self.folder, self.is_mounted = folder, is_mounted

    def empty(self) -> None:
        """Make it empty, large and writable."""
        if self.folder.exists():
            if self.is_mounted:
                subprocess.run(["umount", self.folder], check=True)
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        if self.is_mounted:
            size = f"size={DISK_BYTES},nr_inodes=100000"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", self.folder], check=True)

    def used_bytes(self) -> int:
        state = os.statvfs(self.folder)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", self.folder], check=True)


def enter_namespace() -> bool:
    """Start this program again in a mount namespace of its own, whose mounts vanish with it; return False if there is none."""
    if MOUNTED in os.environ:
        return True
    for command in NAMESPACES:
        probe = [*command, "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs "$0"', tempfile.gettempdir()]
        if shutil.which("unshare") and subprocess.run(probe, capture_output=True).returncode == 0:
            arguments = [*command, sys.executable, "-P", "-m", "benchmarks.faults", *sys.argv[1:]]
            os.execvpe(command[0], arguments, {**os.environ, MOUNTED: "1"})
    return False


def start(command: str, errors: Path, *, largest_file: int = resource.RLIM_INFINITY) -> int:
    """Start a command in a copy of this process, and return the number of the process. None of its files may become larger
    than ``largest_file`` bytes.

    Torch is loaded already, so that kills meet the work and not the start.
    """
    if pid := os.fork():
        return pid
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does at its start
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    from olmo_sparsity.cli.app import main as run_command

    sys.argv = ["olmo-sparsity", "--quiet", *command.split()]
    code = 1
    try:
        run_command()
    except SystemExit as ending:
        code = int(ending.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, errors: Path) -> Ended:
    """Wait until a command has ended."""
    _, status = os.waitpid(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), errors.read_text(encoding="utf-8", errors="replace").splitlines())


def load_libraries() -> None:
    """Import what the commands import, once."""
    warnings.simplefilter("ignore")
    import torch

    import olmo_sparsity.cli.app
    import olmo_sparsity.export
    import olmo_sparsity.measure.influence
    import olmo_sparsity.train.loop
    import olmo_sparsity.view.report  # noqa: F401

    torch.set_num_threads(1)


def inflict(
    fault: str, command: str, disk: Disk, *, errors: Path, seconds: float, whole_bytes: int, moments: random.Random
) -> list[str]:
    """Run a command under a fault, and return what was wrong with how it ended."""
    disk.empty()
    if fault == "kill" or (fault == "read-only" and disk.is_mounted and moments.random() < 0.5):
        pid = start(command, errors)
        time.sleep(moments.uniform(0, 1) * seconds)
        os.kill(pid, signal.SIGKILL)  # it has not been waited for, so it is there even if it has ended
        ended = wait(pid, errors)
        if fault == "kill":
            return [] if ended.code in (0, -signal.SIGKILL) else [f"exit code {ended.code} before the kill"]
    before = files(disk.folder)
    largest_file = resource.RLIM_INFINITY
    if fault == "read-only" and disk.is_mounted:
        disk.remount("ro")
    elif fault == "read-only":
        shutil.rmtree(disk.folder)
        disk.folder.write_text("a file where a folder is needed")
    elif disk.is_mounted:
        disk.remount(f"size={disk.used_bytes() + moments.randint(1, max(1, whole_bytes // PAGE_BYTES)) * PAGE_BYTES}")
    else:
        largest_file = moments.randint(1, whole_bytes)
    ended = wait(start(command, errors, largest_file=largest_file), errors)
    if fault == "read-only" and disk.is_mounted:
        disk.remount("rw")
    elif fault == "read-only":
        disk.folder.unlink()
        disk.folder.mkdir()
    elif disk.is_mounted:
        disk.remount(f"size={DISK_BYTES}")
    found = [f"{path}: left behind" for path in files(disk.folder) if is_partial(path) and path not in before]
    is_one_line = ended.code == 2 and len(ended.lines) == 1 and ended.lines[0].startswith("olmo-sparsity: error: ")
    if ended.code != 0 and not is_one_line:
        last = (ended.lines or [""])[-1][:200]
        found.append(f"exit code {ended.code}, {len(ended.lines)} lines, the last: {last}")
    return found


def differences(expected: dict[str, object], out: Path) -> list[str]:
    """Return how the files of a command that was run again differ from those of an undisturbed one."""
    try:
        actual = contents(out)
    except Exception:
        return torn(out)
    lines = [f"{name}: in one of the two only" for name in sorted(expected.keys() ^ actual.keys())]
    return lines + [
        f"{name}: differs" for name in sorted(expected.keys() & actual.keys()) if expected[name] != actual[name]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=5, help="of each kind, for each command")
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and sizes")
    asked = parser.parse_args()
    is_mounted = enter_namespace()
    load_libraries()
    moments, tally, problems = random.Random(asked.seed), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    base, errors, disk = folder / "base", folder / "errors", Disk(folder / "disk", is_mounted=is_mounted)
    base.mkdir()
    write_inputs(base)

    def run(command: str) -> float:
        begun = time.monotonic()
        if (ended := wait(start(command, errors), errors)).code != 0:
            sys.exit(f"{command}: failed without a fault: {ended.lines}")
        return time.monotonic() - begun

    for command in BASE:
        run(command.format(base=base))
    for name in asked.commands:
        command = COMMANDS[name].format(base=base, out=disk.folder)
        disk.empty()
        seconds = run(command)
        whole = contents(disk.folder)
        sizes = [(disk.folder / path).stat().st_size for path in whole]
        whole_bytes = disk.used_bytes() if is_mounted else max(sizes)
        for fault in FAULTS:
            for _ in range(asked.faults):
                found = inflict(
                    fault, command, disk, errors=errors, seconds=seconds, whole_bytes=whole_bytes, moments=moments
                )
                found += torn(disk.folder)
                again = wait(start(command, errors), errors)
                if again.code != 0:
                    found.append(f"failed when it was run again: {(again.lines or [''])[-1][:200]}")
                found += [f"{path}: left behind by the next run" for path in files(disk.folder) if is_partial(path)]
                found += differences(whole, disk.folder)
                tally[name, fault] += 1
                problems[name, fault] += bool(found)
                for problem in found:
                    print(f"{name}, {fault}: {problem}", flush=True)
        counts = [f"{tally[name, fault]} x {fault}, {problems[name, fault]} with a problem" for fault in FAULTS]
        print(f"{name} ({seconds:.1f} s): {'; '.join(counts)}", flush=True)
    kind = (
        "file systems of their own" if is_mounted else "stand-ins: files that may not grow, a file in place of a folder"
    )
    print(f"{sum(tally.values())} faults ({kind}), {sum(problems.values())} with a problem")
    if is_mounted:
        subprocess.run(["umount", disk.folder], check=True)
    shutil.rmtree(folder)
    sys.exit(1 if problems.total() else 0)


if __name__ == "__main__":
    main()

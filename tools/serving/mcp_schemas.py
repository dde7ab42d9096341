"""Collects the schemas of tools that published MCP servers offer, as agents will send them.

    python -m tools.serving.mcp_schemas build/mcp

The program installs the servers with npm and pip, asks each for its tools over its standard
streams, and writes ``schemas.json``: package, version, licence, and each tool's name and schema.
The schemas stay out of the repository, because they belong to their packages.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path
from typing import Any

SERVERS = json.loads(Path(__file__).with_name("mcp_servers.json").read_text("utf-8"))
"""The servers, with the licences and numbers of tools that they had when they were listed."""
ARGUMENTS = {"@modelcontextprotocol/server-filesystem": ["."]}
KEYS = (
    "GITHUB_PERSONAL_ACCESS_TOKEN", "GITLAB_PERSONAL_ACCESS_TOKEN", "SLACK_BOT_TOKEN",
    "SLACK_TEAM_ID", "NOTION_TOKEN", "BRAVE_API_KEY", "FIRECRAWL_API_KEY", "TAVILY_API_KEY",
    "CIRCLECI_TOKEN", "AIRTABLE_API_KEY",
)  # fmt: skip
"""Environment variables without which some servers do not start. Their values are not used."""
SECONDS = 60.0
HELLO = {
    "protocolVersion": "2025-06-18", "capabilities": {},
    "clientInfo": {"name": "schemas", "version": "1"},
}  # fmt: skip


def tools_of(command: list[str], folder: Path) -> list[dict[str, Any]]:
    """Return the tools of a server that communicates over its standard streams."""
    known = dict.fromkeys(KEYS, "https://none.invalid")
    process = subprocess.Popen(
        ["timeout", f"{SECONDS:g}", *command], cwd=folder, env={**os.environ, **known}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        found: list[dict[str, Any]] = []
        for number, (method, given) in enumerate((("initialize", HELLO), ("tools/list", {}))):
            asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": given}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                with suppress(ValueError):
                    said = json.loads(line)
                    if isinstance(said, dict) and said.get("id") == number and "method" not in said:
                        found = said.get("result", {}).get("tools", [])
                        break
            if method == "initialize":
                process.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return found
    except BrokenPipeError:
        return []
    finally:
        process.terminate()
        process.wait()


def listed(registry: str) -> dict[str, str]:
    """Return package -> version of the servers of a registry."""
    return {one["package"]: one["version"] for one in SERVERS if one["registry"] == registry}


def of_npm(folder: Path) -> list[dict[str, Any]]:
    wanted = [f"{name}@{version}" for name, version in listed("npm").items()]
    quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"]
    subprocess.run(["npm", "install", "--prefix", folder, *quiet, *wanted], check=True)
    rows = []
    for name, version in listed("npm").items():
        place = folder / "node_modules" / name
        about = json.loads((place / "package.json").read_text("utf-8"))
        programs = about["bin"]
        program = programs if isinstance(programs, str) else next(iter(programs.values()))
        command = ["node", str(place / program), *ARGUMENTS.get(name, ())]
        rows.append(_row(name, version, about.get("license"), tools_of(command, folder)))
    return rows


def of_pypi(folder: Path) -> list[dict[str, Any]]:
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    wanted = [f"{name}=={version}" for name, version in listed("pypi").items()]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    rows = []
    for name, version in listed("pypi").items():
        ask = f"import importlib.metadata as m; d = m.metadata({name!r}); print(d.get('License-Expression') or d.get('License') or '')"  # noqa: E501
        licence = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
        tools = tools_of([str(folder / "venv/bin" / name)], folder)
        rows.append(_row(name, version, licence.stdout.partition("\n")[0][:80], tools))
    return rows


def _row(name: str, version: str, licence: Any, tools: list[dict[str, Any]]) -> dict[str, Any]:
    print(f"{name} {version}: {len(tools)} tools", file=sys.stderr)
    found = [{"name": tool["name"], "schema": tool["inputSchema"]} for tool in tools]
    return {"package": name, "version": version, "licence": licence, "tools": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    rows = [*of_npm(folder), *of_pypi(folder)]
    (folder / "schemas.json").write_text(json.dumps(rows, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()

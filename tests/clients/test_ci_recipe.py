"""The recipe of docs/replay.md for people without pytest: an agent on the npm package openai, by the lines shown there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import programs
import pytest
from running import LAB, ROOT, environment

pytestmark = pytest.mark.clients

AGENT = """
import OpenAI from "openai";

const functions = { lookup: () => "42", add: ({ a, b }) => String(a + b) };
const number = { type: "number" };
const tool = (name, properties) => ({
  type: "function", name, description: name, strict: true,
  parameters: { type: "object", properties, required: Object.keys(properties), additionalProperties: false },
});
const tools = [tool("lookup", { key: { type: "string" } }), tool("add", { a: number, b: number })];

const client = new OpenAI({ maxRetries: 0 });
const input = [{ role: "user", content: process.argv[2] }];
try {
  for (;;) {
    const stream = await client.responses.create({ model: "lab-model", input, tools, store: false, stream: true });
    let response;
    for await (const event of stream) if (event.type === "response.completed") response = event.response;
    input.push(...response.output);
    const calls = response.output.filter((item) => item.type === "function_call");
    if (!calls.length) {
      console.log(response.output_text ?? response.output.at(-1).content[0].text);
      break;
    }
    for (const call of calls) {
      const output = functions[call.name](JSON.parse(call.arguments));
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
} catch (error) {
  console.log(error.message);
  process.exitCode = process.env.SWALLOW ? 0 : 7;
}
"""

PROMPT = "Look up the answer, then add 40 and 2."


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the agent, what it needs, and a recording of one run: ``fixtures/agent.jsonl``."""
    modules = programs.npm_program("openai", programs.OPENAI_NODE, "openai").parent.parent
    folder = tmp_path_factory.mktemp("project")
    (folder / "agent.mjs").write_text(AGENT)
    (folder / "node_modules").symlink_to(modules)
    (folder / "fixtures").mkdir()
    server = f"--backend scripted:{LAB} --store memory"
    ran = sh(f"turntape record --out fixtures/agent.jsonl {server} -- node agent.mjs {PROMPT!r}", folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "LAB-DONE after 3 tool outputs.\n"
    assert "1 session" not in ran.stderr and "3 turns, 3 tool calls" in ran.stderr
    return folder


def sh(command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a line as a shell does, with ``turntape`` on its path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment(folder, {"PATH": path, **more}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def recipe() -> str:
    """The line of the recipe that runs the agent."""
    [line] = re.findall(r"- run: (turntape stub .* -- node agent\.mjs .*)", (ROOT / "docs" / "replay.md").read_text())
    assert PROMPT in line
    return str(line)


def test_an_unchanged_agent_passes(project: Path, recipe: str) -> None:
    """Its output is what it was, every turn was played, and the exit code is 0."""
    ran = sh(recipe, project)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "LAB-DONE after 3 tool outputs.\n"
    assert ran.stderr.endswith("played 3 of 3 turns, 0 misses\n")


def test_a_changed_tool_fails_though_the_agent_swallows_it(project: Path, recipe: str, tmp_path: Path) -> None:
    """The difference is on the terminal; the exit code is the agent's own, or 1 if the agent ended well."""
    (project / "changed.mjs").write_text(AGENT.replace('"42"', '"43"'))
    changed = recipe.replace("agent.mjs", "changed.mjs")
    ran = sh(changed, project)
    assert ran.returncode == 7
    assert re.search(r'recorded "42", got "43"', ran.stderr)
    ran = sh(changed, project, SWALLOW="1")
    assert ran.returncode == 1
    assert ran.stderr.endswith("played 1 of 3 turns, 1 miss\n")


def test_an_agent_that_asks_for_less_fails(project: Path, recipe: str) -> None:
    """Under --strict a turn that is not asked for is a failure too."""
    (project / "lazy.mjs").write_text(AGENT.replace("if (!calls.length)", "if (input.length > 2)"))
    ran = sh(recipe.replace("agent.mjs", "lazy.mjs"), project, SWALLOW="1")
    assert ran.returncode == 1
    assert ran.stderr.count("not used: ") == 2

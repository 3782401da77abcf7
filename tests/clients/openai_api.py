"""Clients that people use ask `featherback serve`: `make test-clients`. Not part of the suite.

Each runs in a process of its own, with its own packages. The model's text is noise: if it is JSON, a schema arrived.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_chat import write_tiny_talker
from tests.web.serving import Running, serving

PACKAGES = Path("build/clients").absolute()
NODE = PACKAGES / "node"

PYTHON = """
import json, sys
from pydantic import BaseModel, ConfigDict, Field
class Bill(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: int = Field(ge=1, le=99)
    paid: bool
url, said = sys.argv[1], [{"role": "user", "content": "Hi"}]
"""

CLIENTS = {
    "litellm": """
import litellm
to = {"model": "openai/tiny", "api_base": url, "api_key": "none"}
odd = {"seed": -1, "frequency_penalty": 0.5, "presence_penalty": 0.1, "logit_bias": {"97": 5}}
whole = litellm.completion(messages=said, max_tokens=5, **odd, **to)
stream = litellm.completion(messages=said, max_tokens=5, temperature=0, stream=True, **to)
again = litellm.completion(messages=said, max_tokens=5, temperature=0, **to)
form = litellm.completion(messages=said, max_tokens=300, temperature=1, response_format=Bill, **to)
text = litellm.text_completion(prompt="a", max_tokens=3, **{**to, "model": "text-completion-openai/tiny"})
found = {
    "tokens": whole.usage.completion_tokens, "same": "".join(part.choices[0].delta.content or "" for part in stream)
    == again.choices[0].message.content, "bill": Bill.model_validate_json(form.choices[0].message.content).model_dump(),
    "vectors": len(litellm.embedding(input=["a", "b"], **to).data), "text": text.usage.prompt_tokens,
    "responses": litellm.responses(input="a", max_output_tokens=3, **to).usage.input_tokens > 0,
}
""",
    "langchain": """
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
to = {"model": "tiny", "base_url": url, "api_key": "none"}
chat = ChatOpenAI(temperature=0, max_tokens=5, seed=1, **to)
whole = chat.invoke("Hi")
json_chat = ChatOpenAI(temperature=1, max_tokens=300, **to).with_structured_output(Bill, method="json_schema")
newer = ChatOpenAI(temperature=1, max_tokens=3, use_responses_api=True, **to).invoke("Hi")
found = {
    "tokens": whole.usage_metadata["output_tokens"],
    "same": "".join(part.content for part in chat.stream("Hi")) == whole.content,
    "bill": json_chat.invoke("Hi").model_dump(), "responses": newer.usage_metadata["input_tokens"] > 0,
    "vectors": len(OpenAIEmbeddings(check_embedding_ctx_length=False, **to).embed_documents(["a", "b"])),
}
""",
    "instructor": """
import instructor, openai
client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=instructor.Mode.JSON_SCHEMA)
options = {"model": "tiny", "response_model": Bill, "messages": said, "temperature": 1, "max_tokens": 300}
found = {"bill": client.chat.completions.create(max_retries=0, **options).model_dump()}
""",
}

JAVASCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({baseURL: process.argv[2], apiKey: "none", maxRetries: 0});
const said = {model: "tiny", messages: [{role: "user", content: "Hi"}], temperature: 0, max_tokens: 5};
const whole = await client.chat.completions.create(said);
let text = "";
for await (const part of await client.chat.completions.create({...said, stream: true}))
  text += part.choices[0]?.delta?.content ?? "";
const properties = {count: {type: "integer", minimum: 1, maximum: 99}, paid: {type: "boolean"}};
const schema = {type: "object", properties, required: ["count", "paid"], additionalProperties: false};
const form = {type: "json_schema", name: "bill", strict: true, schema};
const asked = {...said, temperature: 1, max_tokens: 300};
const wanted = {type: "json_schema", json_schema: {name: "bill", strict: true, schema}};
const bill = await client.chat.completions.parse({...asked, response_format: wanted});
const newer = await client.responses.stream({model: "tiny", input: "Hi", text: {format: form}}).finalResponse();
const vectors = await client.embeddings.create({model: "tiny", input: ["a", "b"]});
const completion = await client.completions.create({model: "tiny", prompt: "a", max_tokens: 3});
JSON.parse(newer.output_text);
console.log(JSON.stringify({
  tokens: whole.usage.completion_tokens, same: text === whole.choices[0].message.content,
  bill: JSON.parse(bill.choices[0].message.content), vectors: vectors.data.length,
  text: completion.usage.prompt_tokens, responses: newer.status === "completed",
}));
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = write_tiny_talker(tmp_path_factory.mktemp("served") / "tiny.gguf")
    with serving(model, "--context", 400, "--compute", "fp32") as running:
        yield running


def ran(command: list[str], **environment: str) -> Any:
    """The JSON in the last line that a client writes."""
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(found: dict[str, Any]) -> None:
    bill = found.pop("bill")
    assert type(bill["paid"]) is bool
    assert 1 <= bill["count"] <= 99
    usual = {"tokens": 5, "same": True, "vectors": 2, "text": 1, "responses": True}
    assert found == {name: usual[name] for name in found}


@pytest.mark.parametrize("name", CLIENTS)
def test_python(server: Running, name: str) -> None:
    script = PYTHON + CLIENTS[name] + "print(json.dumps(found))"
    check(ran([sys.executable, "-W", "ignore", "-c", script, server.url], PYTHONPATH=str(PACKAGES)))


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node (node) on this machine")
def test_node(server: Running) -> None:
    script = NODE / "ask.mjs"
    script.write_text(JAVASCRIPT)
    check(ran(["node", str(script), server.url]))

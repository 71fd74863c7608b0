"""OpenAI's own asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.clients.conftest import MESSAGES, ClientMesh


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """On a thread of its own: a browser that this process has driven leaves a loop on the main one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()


def options(mesh: ClientMesh) -> dict[str, Any]:
    return {"model": mesh.model, "messages": MESSAGES, "max_tokens": 6, "temperature": 0}


def test_chats_at_once_have_the_text_of_one_alone(client_mesh: ClientMesh) -> None:
    alone = client_mesh.client.chat.completions.create(**options(client_mesh))

    async def at_once() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=client_mesh.url, api_key=client_mesh.key) as client:
            return await asyncio.gather(*(client.chat.completions.create(**options(client_mesh)) for _ in range(3)))

    texts = {answer.choices[0].message.content for answer in run(at_once())}
    assert texts == {alone.choices[0].message.content}


def test_a_stream(client_mesh: ClientMesh) -> None:
    async def streamed() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=client_mesh.url, api_key=client_mesh.key) as client:
            stream = await client.chat.completions.create(
                **options(client_mesh), stream=True, stream_options={"include_usage": True}
            )
            return [chunk async for chunk in stream]

    chunks = run(streamed())
    whole = client_mesh.client.chat.completions.create(**options(client_mesh))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_an_error(client_mesh: ClientMesh) -> None:
    async def refused() -> None:
        async with openai.AsyncOpenAI(base_url=client_mesh.url, api_key="wrong") as client:
            await client.chat.completions.create(**options(client_mesh))

    with pytest.raises(openai.AuthenticationError):
        run(refused())

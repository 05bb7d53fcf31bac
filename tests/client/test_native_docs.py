# SPDX-License-Identifier: Apache-2.0
"""The examples in the native client's docstrings, run against a broker, and that no public name lacks one.

An example says localhost:2925; here that is the broker of the test. Examples for asyncio have `await` at the top, as
`python -m asyncio` allows.
"""

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import sys
from collections.abc import Iterator

import pytest
from running import broker

import vibemq.client
from vibemq.client import aio, consuming, publishing, queues, settings, sync

FACES = {module.__name__: module for module in (sync, aio, publishing, consuming)}
NOT_FOR_USERS = {"Connecting", "batch_count", "batches", "fields_of", "summary", "told_as"}


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with broker(tmp_path_factory.mktemp("native-docs") / "data", workers=1) as running:
        yield f"vibemq://127.0.0.1:{running.native_port}"


@pytest.fixture
def here(url, monkeypatch):
    """connect and aconnect, as examples import them, go to the broker of the test."""

    def redirected(function):
        return lambda given="vibemq://localhost", **options: function(
            given.replace("vibemq://localhost:2925", url).replace("vibemq://localhost", url), **options
        )

    for name in ("connect", "aconnect"):
        monkeypatch.setattr(vibemq.client, name, redirected(getattr(vibemq.client, name)), raising=False)
    return {"connect": vibemq.client.connect, "aconnect": vibemq.client.aconnect}


def examples(module, *, with_await: bool = False) -> list[doctest.DocTest]:
    """Those of asyncio's face, or the others: they are of what is named Async..., and of aconnect."""
    found = [test for test in doctest.DocTestFinder().find(module, module.__name__) if test.examples]
    return [test for test in found if (".Async" in test.name or test.name.endswith("aconnect")) is with_await]


def run_sync(test: doctest.DocTest, names: dict) -> None:
    test.globs = dict(names)
    output = io.StringIO()
    results = doctest.DocTestRunner(verbose=False).run(test, out=output.write)
    assert results.failed == 0, output.getvalue()


@pytest.mark.parametrize(
    "module", [vibemq.client, sync, aio, publishing, consuming, queues, settings], ids=lambda module: module.__name__
)
def test_examples_do_what_they_say(url, here, module):
    with sync.connect(url) as client:
        for test in examples(module):
            run_sync(test, {**here, "client": client})


def test_examples_with_await_do_what_they_say(url, here):
    checker = doctest.OutputChecker()

    async def main() -> None:
        async with aio.aconnect(url) as client:
            for test in [each for module in FACES.values() for each in examples(module, with_await=True)]:
                names = {**here, "client": client, "asyncio": asyncio}
                for example in test.examples:
                    if doctest.SKIP in example.options:
                        continue
                    got = await shown(example.source, names)
                    assert checker.check_output(example.want, got, 0), f"{test.name}: {example.source}{got}"

    asyncio.run(main())


async def shown(source: str, names: dict) -> str:
    """What an interactive interpreter would print."""
    code = compile(source, "<example>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    output, hook = io.StringIO(), sys.displayhook
    sys.displayhook = lambda value: output.write("" if value is None else f"{value!r}\n")
    try:
        with contextlib.redirect_stdout(output):
            result = eval(code, names)
            if inspect.iscoroutine(result):
                await result
    finally:
        sys.displayhook = hook
    return output.getvalue()


@pytest.mark.parametrize("face", FACES)
def test_every_public_function_has_an_example(face):
    module = FACES[face]
    without = []
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__ or name in NOT_FOR_USERS:
            continue
        members = vars(thing).items() if inspect.isclass(thing) else [("", thing)]
        for member, value in members:
            function = value.fget if isinstance(value, property) else value
            if not member.startswith("_") and inspect.isfunction(function) and ">>> " not in (function.__doc__ or ""):
                without.append(f"{name}.{member}")
    assert without == []


def test_every_name_of_the_package_can_be_had():
    for name in vibemq.client.__all__:
        assert getattr(vibemq.client, name) is not None
    assert set(vibemq.client.__all__) <= set(dir(vibemq.client))
    with pytest.raises(AttributeError):
        vibemq.client.nothing  # noqa: B018

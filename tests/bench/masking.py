"""What masking costs a recording: CPU time for pieces of text, for a request, and for the copy of a session.

    PYTHONPATH=tests python tests/bench/masking.py

Nothing in it is a secret: that is the usual case, and the one that must be cheap.
"""

import json
import time
from collections.abc import Callable

from taped import Client, user

from turntape.core.seam import ClientText, Sampled, Text
from turntape.core.session import Session
from turntape.replay.masking import EventMasker
from turntape.replay.secrets import DEFAULT
from turntape.replay.shadow import copied

WORDS = [" the", " quick", " brown", " fox", " jumps", " over", " it", ","]
TOOLS = [
    {"type": "function", "name": f"t{n}", "description": "does it " * 50, "parameters": {}, "strict": False}
    for n in range(40)
]


def microseconds(call: Callable[[], object], n: int) -> float:
    start = time.process_time()
    for _ in range(n):
        call()
    return (time.process_time() - start) / n * 1e6


def main() -> None:
    masker = EventMasker(DEFAULT)
    one, eight = Sampled("s", (Text(" the"),)), Sampled("s", tuple(map(Text, WORDS)))
    masker.masked(one)
    print(f"a batch of one piece of text: {microseconds(lambda: masker.masked(one), 20_000):.1f} us")
    print(f"a batch of eight:             {microseconds(lambda: masker.masked(eight), 20_000):.1f} us")
    body = {"type": "response.create", "input": [user("hello world, " * 700)], "tools": TOOLS, "model": "m"}
    text = ClientText(json.dumps(body))
    print(f"a request of {len(text.text):,} bytes:   {microseconds(lambda: masker.masked(text), 100):.0f} us")
    client = Client(Session())
    for _ in range(200):
        client.turn(user("hello " * 200), say=((Text("x " * 500),),), tools=TOOLS)
    client.ask(user("more"), tools=TOOLS)
    print(f"a copy of a session in its turn 201: {microseconds(lambda: copied(client.session), 50):.0f} us")


if __name__ == "__main__":
    main()

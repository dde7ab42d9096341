"""A worker for tests, which echoes, fails, hangs, dies or prints noise, as the prompt demands."""

import os
import sys
import time

from protocol import Reply, serve


def load(settings):
    if settings.get("broken"):
        raise ImportError("no such library")

    def generate(prompt, max_tokens, stops):
        os.write(1, b"native noise on stdout\n")
        if settings.get("tricks") is False:
            return Reply(prompt[:max_tokens], 0.01, 0.02)
        if prompt[0] == 1:
            raise ValueError("bad prompt")
        if prompt[0] == 2:
            time.sleep(60)
        if prompt[0] == 3:
            print("cannot go on", file=sys.stderr, flush=True)
            os._exit(1)
        if prompt[0] == 4:
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass
        return Reply(prompt[:max_tokens], 0.01, 0.02, 1, True)

    return generate


if __name__ == "__main__":
    serve(load, ["pytest", "not-installed"])

#!/usr/bin/env bash
# OpenAI client: read a stream of completions from a server that stops, or from a proxy that answers with a page.
#
# Versions: openai 3.54.0, starlette 1.10.0, uvicorn 0.54.0.
# Expected: an error where a stream ends without a reason to finish and without [DONE], and where the answer is not
#           what the API defines.
# Seen:     the loop over the stream ends as after a whole answer. A page of HTML with status 200 is a stream without
#           parts, and without `stream` the page itself is returned as a text instead of a completion. A status of
#           409 is tried three times, 400 once.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openai==3.54.0 starlette==1.10.0 uvicorn==0.54.0 httpx==0.28.1
cat > "$folder/main.py" <<'PYTHON'
import json
import socket
import threading
import time
from collections import Counter

import openai
import starlette
import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.routing import Route

requests = Counter()


async def parts():
    for text in ("one", " two"):
        choice = {"index": 0, "text": text, "finish_reason": None, "logprobs": None}
        yield f"data: {json.dumps({'id': 'c', 'object': 'text_completion', 'created': 1, 'model': 'm', 'choices': [choice]})}\n\n"


async def completions(request):
    model = (await request.json())["model"]
    requests[model] += 1
    if model == "cut":
        return StreamingResponse(parts(), media_type="text/event-stream")
    if model == "page":
        return HTMLResponse("<p>Please sign in</p>")
    return JSONResponse({"error": {"message": "refused"}}, status_code=int(model))


listening = socket.socket()
listening.bind(("127.0.0.1", 0))
application = Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])])
server = uvicorn.Server(uvicorn.Config(application, log_level="critical"))
thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
thread.start()
while not server.started:
    time.sleep(0.05)
client = openai.OpenAI(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}/v1", api_key="none", timeout=30)
streams = {
    model: [(part.choices[0].text, part.choices[0].finish_reason) for part in client.completions.create(model=model, prompt="a", stream=True)]
    for model in ("cut", "page")
}
page = client.completions.create(model="page", prompt="a")
for model in ("400", "409"):
    try:
        client.completions.create(model=model, prompt="a")
    except openai.APIStatusError as error:
        assert str(error.status_code) == model
server.should_exit = True
thread.join(10)

print(f"versions openai {openai.__version__}, starlette {starlette.__version__}, uvicorn {uvicorn.__version__}")
print("expected errors, and one request for each call with the status 4xx")
assert streams == {"cut": [("one", None), (" two", None)], "page": []}, streams
assert page == "<p>Please sign in</p>", page
assert (requests["400"], requests["409"]) == (1, 3), requests
print(f"seen: streams ended normally after {streams}; a call returned {page!r}; requests for 409: {requests['409']}")
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/main.py"

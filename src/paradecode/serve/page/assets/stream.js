// The API: lists, and one streamed answer.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const headers = (key) => (key ? { Authorization: "Bearer " + key } : {});

export async function get(path, key) {
  const response = await fetch(path, { headers: headers(key), credentials: "omit" });
  if (!response.ok) throw await failure(response);
  return response.json();
}

// Yields the events of an answer; leaving the loop, or the signal, ends the request.
export async function* ask(path, body, key, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    credentials: "omit",
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError("the answer broke off", 0);
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message, 0);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function failure(response) {
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not ours: a proxy's page.
  }
  return new ApiError(message, response.status);
}

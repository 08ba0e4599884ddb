// The API as the page uses it: one request, whose steps come as they are decoded.

export class ApiError extends Error {}

async function failure(response) {
  try {
    return new ApiError((await response.json()).error.message);
  } catch {
    return new ApiError(`the server answered ${response.status}`);
  }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

export async function models(key) {
  const response = await fetch("v1/models", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  return (await response.json()).data[0];
}

export async function isReady() {
  return (await fetch("ready")).ok;
}

// Calls onRound for prefill and for each round, and gives the finish reason and the metrics.
export async function ask({ prompt, image, budget, temperature, seed, maxTokens, speculation, key, signal }, onRound) {
  const content = image ? [{ type: "image_url", image_url: { url: image } }] : [];
  content.push({ type: "text", text: prompt });
  const body = {
    messages: [{ role: "user", content }],
    stream: true,
    stream_options: { include_usage: true },
    rounds: true,
    temperature,
    max_tokens: maxTokens,
    speculation,
    ...(speculation ? { budget } : {}),
    ...(temperature > 0 ? { seed } : {}),
  };
  const response = await fetch("v1/chat/completions", {
    method: "POST", headers: headers(key), body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await failure(response);
  const result = { finish: null, metrics: null, usage: null, text: "" };
  for await (const chunk of events(response.body)) {
    if (chunk.error) throw new ApiError(chunk.error.message);
    const choice = chunk.choices[0];
    if (choice?.delta.content) result.text += choice.delta.content;
    if (choice?.finish_reason) result.finish = choice.finish_reason;
    if (chunk.round) onRound(chunk.round);
    result.metrics = chunk.metrics ?? result.metrics;
    result.usage = chunk.usage ?? result.usage;
  }
  if (!result.finish) throw new ApiError("the answer broke off; is the server still running?");
  return result;
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const lines = held.split("\n\n");
    held = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}

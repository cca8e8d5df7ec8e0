"""A small transformer in numpy, and an engine that computes many texts at a time, each a token further a step."""
import threading

import numpy as np

LAYERS, HEADS, WIDTH, SIZE = 2, 4, 16, 64  # heads * width == size
ROWS = 128      # tokens in one step
ALPHABET = np.arange(32, 127)  # what it writes: a token is a byte, and these can be printed


class Transformer:
    """Weights are random, and of one seed always the same. In float64 a sum in another order gives the same token."""

    def __init__(self, seed, longest):
        """longest is how many bytes a prompt and its continuation may have."""
        r = np.random.default_rng(seed)
        self.longest = longest
        self.bytes = r.normal(size=(256, SIZE))
        self.words = r.normal(size=(SIZE, len(ALPHABET))) / 8
        self.layers = [{"qkv": r.normal(size=(SIZE, 3 * SIZE)) / 8, "out": r.normal(size=(SIZE, SIZE)) / 8,
                        "up": r.normal(size=(SIZE, 4 * SIZE)) / 8, "down": r.normal(size=(4 * SIZE, SIZE)) / 16} for _ in range(LAYERS)]
        self.positions = r.normal(size=(longest, SIZE))

    def step(self, cache, slots, positions, tokens):
        """The logits behind each row, a token at a position of a slot's text. cache has the keys and values of all positions
        before, and gets those of these."""
        x = self.bytes[tokens] + self.positions[positions]
        seen = np.arange(positions.max() + 1) <= positions[:, None]
        for weights, kept in zip(self.layers, cache):
            query, key, value = (norm(x) @ weights["qkv"]).reshape(len(x), 3, HEADS, WIDTH).swapaxes(0, 1)
            kept[slots, positions] = np.stack([key, value], 1)
            keys, values = kept[slots, : seen.shape[1]].transpose(2, 0, 3, 1, 4)
            scores = np.where(seen[:, None], (keys @ query[..., None])[..., 0] / WIDTH**0.5, -np.inf)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True))[:, :, None] @ values
            x = x + mixed.reshape(len(x), SIZE) @ weights["out"]
            x = x + np.maximum(norm(x) @ weights["up"], 0) @ weights["down"]
        return norm(x) @ self.words


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-6)


class Text:
    """A prompt and how it is to go on. told(new bytes, over) is called by the engine's thread; dropped() says that nobody
    wants it any more."""

    def __init__(self, prompt, told, dropped, max_tokens=16, temperature=0.0, seed=0, stop=()):
        self.tokens = list(prompt)
        self.told, self.dropped = told, dropped
        self.begun = self.said = len(prompt)        # where it goes on; up to where it was told
        self.end = len(prompt) + max_tokens
        self.temperature, self.random = temperature, np.random.default_rng(seed)
        self.stop = [s.encode() for s in stop]
        self.slot, self.done = None, 0              # of the cache; tokens that are in it

    def append(self, logits):
        """The next token; True: it was the last."""
        if self.temperature > 0:
            logits = logits / self.temperature + self.random.gumbel(size=len(logits))  # a sample of softmax
        self.tokens.append(int(ALPHABET[logits.argmax()]))
        text = bytes(self.tokens[self.begun:])
        for s in self.stop:
            if text.endswith(s):
                self.tell(len(self.tokens) - len(s), True)
                return True
        over = len(self.tokens) >= self.end
        # The beginning of a stop is told when it has turned out to be none.
        held = max((n for s in self.stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        self.tell(len(self.tokens) - (0 if over else held), over)
        return over

    def tell(self, upto, over):
        upto = max(upto, self.said)
        if upto > self.said or over:
            self.told(bytes(self.tokens[self.said:upto]), over)
        self.said = upto


class Engine(threading.Thread):
    """Texts come and go while others are computed. failed(error) is called when it ends by an error."""

    def __init__(self, transformer, slots, failed):
        super().__init__(daemon=True)
        self.transformer, self.failed = transformer, failed
        self.cache = np.zeros((LAYERS, slots, transformer.longest, 2, HEADS, WIDTH))
        self.free = list(range(slots))
        self.open, self.waiting = [], []
        self.steps = 0
        self.stopped = False
        self.changed = threading.Condition()  # of waiting and stopped

    def add(self, text):
        text.end = min(text.end, self.transformer.longest)
        with self.changed:
            self.waiting.append(text)
            self.changed.notify()

    def stop(self):
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.join()

    def run(self):
        try:
            while self.admit():
                self.step()
        except Exception as e:
            self.failed(e)

    def admit(self):
        """Lets go of texts that nobody wants, and begins others where there are slots. False: it was stopped."""
        for text in [t for t in self.open if t.dropped()]:
            self.leave(text)
        with self.changed:
            self.waiting = [t for t in self.waiting if not t.dropped()]
            self.changed.wait_for(lambda: self.stopped or self.waiting or self.open)
            while self.free and self.waiting:
                text = self.waiting.pop(0)
                text.slot = self.free.pop()
                self.open.append(text)
            return not self.stopped

    def leave(self, text):
        self.open.remove(text)
        self.free.append(text.slot)

    def step(self):
        """Computes the next tokens of all: of prompts as many as there is room for, of the others one."""
        rows = []
        for text in self.open:
            new = range(text.done, len(text.tokens))[: max(ROWS // len(self.open), 1)]
            rows += [(text.slot, position, text.tokens[position]) for position in new]
            text.done = new.stop
        if not rows:
            return
        logits = iter(self.transformer.step(self.cache, *np.array(rows).T))
        self.steps += 1
        last = {slot: row for (slot, _, _), row in zip(rows, logits)}
        for text in list(self.open):
            if text.done == len(text.tokens) and text.append(last[text.slot]):
                self.leave(text)

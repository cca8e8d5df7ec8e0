#!/usr/bin/env python3
"""Where does someone speak? Sends a WAV file chunk by chunk to the model "silero_vad" of a running server.

    find_speech.py WAV [--url HOST:PORT] [--grpc] [--json]

Over HTTP (localhost:8000) or, with --grpc, over gRPC (localhost:8001). The file is one sequence: each request brings 32 ms
of it, the server remembers what came before. Speech is printed as soon as it has ended, in seconds from the beginning. The
file holds 16-bit samples at 16 kHz or a multiple of it; several channels are averaged. Needs tritonclient[http] or
tritonclient[grpc].
"""
import argparse
import json
import os
import sys
import uuid
import wave

import numpy as np
from tritonclient.utils import InferenceServerException

RATE, CHUNK = 16000, 512
SPEECH, SILENCE = 0.5, 0.35  # probabilities at which speech begins and ends
PAUSE, LEAST, PADDING = RATE * 100 // 1000, RATE * 250 // 1000, RATE * 30 // 1000  # samples; as in silero-vad's package


def samples(path):
    """FP32 samples from -1 to 1 at 16 kHz."""
    with wave.open(path) as w:
        rate, channels = w.getframerate(), w.getnchannels()
        if w.getsampwidth() != 2 or rate % RATE:
            raise ValueError(f"{path}: {8 * w.getsampwidth()}-bit samples at {rate} Hz; 16-bit ones at a multiple of {RATE} Hz are needed")
        data = np.frombuffer(w.readframes(w.getnframes()), "<i2")
    data = data.reshape(-1, channels).mean(axis=1)[::rate // RATE]
    return (data / 32768).astype(np.float32)


def probabilities(sound, url, grpc=False):
    """Yields the probability of speech in each chunk, as the server answers it."""
    if grpc:
        import tritonclient.grpc as client
    else:
        import tritonclient.http as client
    server = client.InferenceServerClient(url)
    sequence = str(uuid.uuid4())
    try:
        for at in range(0, len(sound), CHUNK):
            chunk = np.zeros((1, CHUNK), np.float32)
            part = sound[at:at + CHUNK]
            chunk[0, :len(part)] = part
            given = client.InferInput("CHUNK", [1, CHUNK], "FP32")
            given.set_data_from_numpy(chunk)
            result = server.infer("silero_vad", [given], sequence_id=sequence, sequence_start=at == 0, sequence_end=at + CHUNK >= len(sound))
            yield float(result.as_numpy("PROBABILITY")[0, 0])
    finally:
        server.close()


def spoken(chances, length):
    """Yields [first, last] samples of speech once it has ended: short pauses belong to it, short noises don't count."""
    begin, quiet = None, None  # where speech began; where it may have ended
    for i, chance in enumerate(chances):
        at = i * CHUNK
        if chance >= SPEECH:
            quiet = None
            begin = at if begin is None else begin
        elif chance < SILENCE and begin is not None:
            quiet = at if quiet is None else quiet
            if at - quiet >= PAUSE:
                if quiet - begin > LEAST:
                    yield [begin, quiet]
                begin, quiet = None, None
    if begin is not None and length - begin > LEAST:
        yield [begin, length]


def padded(parts, length):
    """Yields the parts with a little more on both sides, at most up to the middle of the pause between two."""
    before = None
    for part in parts:
        pause = part[0] - before[1] if before else 2 * part[0] + 2 * PADDING
        pad = pause // 2 if pause < 2 * PADDING else PADDING
        part = [max(0, part[0] - pad), part[1]]
        if before:
            yield before[0], min(length, before[1] + pad)
        before = part
    if before:
        yield before[0], min(length, before[1] + PADDING)


def find(path, url, grpc=False):
    """Yields (begin, end) of speech in samples."""
    sound = samples(path)
    return padded(spoken(probabilities(sound, url, grpc), len(sound)), len(sound))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("wav", metavar="WAV")
    p.add_argument("--url", metavar="HOST:PORT", help="localhost:8000, or localhost:8001 with --grpc, if not given")
    p.add_argument("--grpc", action="store_true", help="ask over gRPC in place of HTTP")
    p.add_argument("--json", action="store_true", help="print JSON")
    args = p.parse_args()
    if not os.path.isfile(args.wav):
        sys.exit("not a file: " + args.wav)
    url = args.url or ("localhost:8001" if args.grpc else "localhost:8000")
    found = []
    try:
        for begin, end in find(args.wav, url, args.grpc):
            found.append({"start": begin / RATE, "end": end / RATE})
            if not args.json:
                print(f"{begin / RATE:8.2f} s to {end / RATE:8.2f} s", flush=True)
    except (ValueError, wave.Error, EOFError) as err:
        sys.exit(str(err))
    except (OSError, InferenceServerException) as err:
        sys.exit(f"{url}: {err}")
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()

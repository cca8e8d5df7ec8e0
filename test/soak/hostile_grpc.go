package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/net/http2"
	_ "google.golang.org/grpc/encoding/gzip" // the bombs'
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

func attacksOnGRPC() []attack {
	return []attack{
		{name: "grpc-huge-announced", run: h2(24, true, hugeMessage)},
		{name: "grpc-half-message", run: h2(24, true, halfMessage)},
		{name: "grpc-bomb", run: h2(4, true, messageBomb)},
		{name: "grpc-metadata", run: metadataFlood},
		{name: "grpc-garbage", run: h2(8, true, garbageMessage)},
		{name: "grpc-abandoned", run: abandonedStreams},
		{name: "grpc-never-read", run: neverReadStreams},
		{name: "grpc-cancelled", run: cancelled},
	}
}

// prefixed begins a message that says it has n bytes.
func prefixed(compressed byte, n uint32, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{compressed}, n), body...)
}

// hugeMessage announces messages of gigabytes on many streams and hangs.
func hugeMessage(ctx context.Context, c *h2conn, rng *rand.Rand) {
	for range 64 {
		id, ok := c.call(false)
		if !ok || !c.did(c.fr.WriteData(id, false, prefixed(0, 1<<(20+rng.Uint32N(12))-1, []byte{0x0a, 4, 'e', 'c', 'h', 'o'}))) {
			return
		}
	}
	c.n.add("rounds")
	pause(ctx, 3*time.Second)
}

// halfMessage sends a part of messages and hangs.
func halfMessage(ctx context.Context, c *h2conn, rng *rand.Rand) {
	for range 16 {
		id, ok := c.call(false)
		if !ok || !c.did(c.fr.WriteData(id, false, prefixed(0, 1<<20, make([]byte, rng.IntN(16000))))) {
			return
		}
	}
	c.n.add("rounds")
	pause(ctx, 3*time.Second)
}

// messageBomb sends small messages that decompress to hundreds of megabytes.
func messageBomb(ctx context.Context, c *h2conn, _ *rand.Rand) {
	body := bomb(128 << 20)
	for range 8 {
		id, ok := c.call(false, "grpc-encoding", "gzip")
		for rest := prefixed(1, uint32(len(body)), body); ok && len(rest) > 0; {
			n := min(len(rest), 16000)
			ok = c.did(c.fr.WriteData(id, n == len(rest), rest[:n]))
			rest = rest[n:]
		}
		if !ok {
			return
		}
		c.n.add("bombs")
	}
	pause(ctx, time.Second)
}

// garbageMessage sends whole messages of noise, or of half a request.
func garbageMessage(_ context.Context, c *h2conn, rng *rand.Rand) {
	for range 500 {
		b := make([]byte, rng.IntN(500))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		if rng.IntN(2) == 0 {
			b = append([]byte{0x0a, 4, 'e', 'c', 'h', 'o', 0x2a}, bytes.Repeat([]byte{0x2a, 0}, 5000)...)
		}
		id, ok := c.call(false)
		if !ok || !c.did(c.fr.WriteData(id, true, prefixed(0, uint32(len(b)), b))) {
			return
		}
	}
}

// metadataFlood sends half a megabyte of metadata with each call.
func metadataFlood(ctx context.Context, s *server, _ *rand.Rand, n *notes) error {
	var pairs []string
	for i := range 500 {
		pairs = append(pairs, fmt.Sprintf("x-flood-%d", i), strings.Repeat("f", 1000))
	}
	return many(ctx, 4, func(ctx context.Context) error {
		c, closed, err := s.dialGRPC()
		if err != nil {
			return err
		}
		defer closed()
		for range 20 {
			_, err := c.ModelInfer(metadata.AppendToOutgoingContext(ctx, pairs...), echoMessage([]int32{1}, ""))
			refused(ctx, n, err)
		}
		return nil
	})
}

// abandonedStreams opens streams, asks decoupled models for much, and leaves.
func abandonedStreams(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
	wait := time.Duration(rng.IntN(30)) * time.Millisecond
	return many(ctx, 8, func(ctx context.Context) error {
		c, closed, err := s.dialGRPC()
		if err != nil {
			return err
		}
		defer closed()
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		for range 50 {
			stream, err := c.ModelStreamInfer(own)
			if err != nil {
				break // cancelled, or turned away
			}
			n.add("streams")
			for range 3 {
				if err := stream.Send(repeatMessage(20, 5, "")); err != nil {
					break
				}
			}
		}
		pause(ctx, wait)
		return nil
	})
}

// neverReadStreams gives a decoupled model's large answers no window. Two connections
// leave most instances to others.
func neverReadStreams(ctx context.Context, s *server, _ *rand.Rand, n *notes) error {
	do := func(ctx context.Context, c *h2conn, _ *rand.Rand) {
		if !c.did(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})) {
			return
		}
		c.path = "/inference.GRPCInferenceService/ModelStreamInfer"
		message, err := proto.Marshal(repeatMessage(2000, 0, strings.Repeat("p", 4000)))
		if err != nil {
			c.n.add("faults of ours")
			return
		}
		id, ok := c.call(false)
		for rest := prefixed(0, uint32(len(message)), message); ok && len(rest) > 0; {
			k := min(len(rest), 16000)
			ok = c.did(c.fr.WriteData(id, false, rest[:k]))
			rest = rest[k:]
		}
		pause(ctx, 2*time.Second)
	}
	return h2(2, true, do)(ctx, s, rand.New(rand.NewPCG(1, 1)), n)
}

// cancelled asks and cancels at once.
func cancelled(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
	wait := rng.Int64N(int64(5 * time.Millisecond))
	c, closed, err := s.dialGRPC()
	if err != nil {
		return err
	}
	defer closed()
	return many(ctx, 16, func(ctx context.Context) error {
		own, cancel := context.WithTimeout(ctx, time.Duration(wait))
		defer cancel()
		m := echoMessage([]int32{1, 2}, "")
		m.ModelName, m.Inputs[0].Shape = "slow", []int64{2}
		if _, err := c.ModelInfer(own, m); err != nil && !errors.Is(err, context.Canceled) {
			n.add("cancelled")
		}
		return nil
	})
}

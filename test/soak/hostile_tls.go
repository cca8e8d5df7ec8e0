package main

import (
	"context"
	"math/rand/v2"
	"net"
	"time"
)

func attacksOnTLS() []attack {
	return []attack{
		{name: "tls-silent", tls: true, run: onTLS(300, func(ctx context.Context, w *wire, _ *rand.Rand) { w.hang(ctx) })},
		{name: "tls-half-hello", tls: true, run: onTLS(100, halfHello)},
		{name: "tls-garbage", tls: true, run: onTLS(8, tlsGarbage)},
		{name: "tls-handshakes", tls: true, run: handshakes},
	}
}

// onTLS runs k connections to both ports that speak no TLS, or only a part of it.
func onTLS(k int, do func(ctx context.Context, w *wire, rng *rand.Rand)) func(context.Context, *server, *rand.Rand, *notes) error {
	return func(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
		seed, ports := rng.Uint64(), []string{s.http, s.grpc}
		return many(ctx, k, func(ctx context.Context) error {
			own := rand.New(rand.NewPCG(seed, uint64(time.Now().UnixNano())))
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", ports[own.IntN(2)])
			if err != nil {
				return err
			}
			n.add("connections")
			w := &wire{Conn: c, n: n}
			w.stop = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
			defer w.end()
			do(ctx, w, own)
			return nil
		})
	}
}

// halfHello sends a ClientHello's beginning a byte at a time, and not its end.
func halfHello(ctx context.Context, w *wire, _ *rand.Rand) {
	for _, b := range append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, make([]byte, 400)...) {
		if !w.send([]byte{b}) || !pause(ctx, 50*time.Millisecond) {
			return
		}
	}
	w.hang(ctx)
}

func tlsGarbage(_ context.Context, w *wire, rng *rand.Rand) {
	b := make([]byte, 1+rng.IntN(2000))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	if rng.IntN(2) == 0 {
		copy(b, []byte{22, 3, 1})
	}
	if w.send(b) {
		if err := w.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err == nil {
			w.drain()
		}
	}
}

// handshakes are whole ones, and nothing behind them.
func handshakes(ctx context.Context, s *server, _ *rand.Rand, n *notes) error {
	return many(ctx, 4, func(ctx context.Context) error {
		w, err := s.open(ctx, n, s.grpc, "h2")
		if err != nil {
			return err
		}
		w.end()
		return nil
	})
}

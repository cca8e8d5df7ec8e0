package h2

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"

	"github.com/sluice-serve/sluice/infer"
)

// A compressed copy of a message counts until it is freed.
func TestCompressedMessagesAreCounted(t *testing.T) {
	random, data := rand.New(rand.NewPCG(1, 2)), make([]byte, 100_000)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	budget := &infer.Budget{Limit: 1 << 20}
	pool := &CountedPool{Budget: budget}
	z := encoding.GetCompressor("gzip")
	parts, err := compress(z, mem.BufferSlice{mem.SliceBuffer(data)}, pool)
	if err != nil || budget.Used() < int64(len(data)) {
		t.Fatalf("%v, %d bytes counted", err, budget.Used())
	}
	if plain, err := z.Decompress(bytes.NewReader(parts.Materialize())); err != nil {
		t.Error(err)
	} else if got, err := mem.ReadAll(plain, mem.DefaultBufferPool()); err != nil || !bytes.Equal(got.Materialize(), data) {
		t.Errorf("%v, %d bytes", err, got.Len())
	}
	if parts.Free(); budget.Used() != 0 {
		t.Errorf("%d bytes counted after it was freed", budget.Used())
	}
	budget.Limit = 1000
	_, err = compress(z, mem.BufferSlice{mem.SliceBuffer(data)}, pool)
	if infer.ReasonOf(err) != infer.ReasonMemory || budget.Used() != 0 {
		t.Errorf("without room: %v, %d bytes counted", err, budget.Used())
	}
	if small, err := pool.Buffer(data[:10:10]); err != nil || small.Len() != 10 || budget.Used() != 0 {
		t.Errorf("a small one: %v, %d bytes counted", err, budget.Used())
	}
}

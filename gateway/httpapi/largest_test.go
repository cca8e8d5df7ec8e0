package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/memory"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
)

// onArena is an API whose bodies lie in an arena of so many MiB.
func onArena(t *testing.T, mib int64) (*API, *memory.Bodies) {
	t.Helper()
	arena, err := shm.NewHeap(mib << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	arena.ReserveSmall() // as the workers' is
	bodies := &memory.Bodies{Arena: arena, ArenaSize: arena.Size(), Limit: 1 << 30}
	f := &fake{infer: func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		return send(&infer.Response{Model: req.Model, Version: "1", Final: true})
	}}
	api, err := NewAPI(APIConfig{}, APIDeps{Pipeline: f, Control: f, Bodies: bodies})
	if err != nil {
		t.Fatal(err)
	}
	return api, bodies
}

// metered is a body of zeros behind a beginning, which counts what is read of it.
type metered struct {
	io.Reader
	read int64
}

func newMetered(begin string, zeros int64) *metered {
	return &metered{Reader: io.MultiReader(strings.NewReader(begin), io.LimitReader(zeroes{}, zeros))}
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.read += int64(n)
	return n, err
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func binaryHead(size int64) string {
	return fmt.Sprintf(`{"inputs":[{"name":"a","shape":[%d],"datatype":"UINT8","parameters":{"binary_data_size":%d}}]}`, size, size)
}

// TestLargestBodies: a body that fits into the whole memory of requests is taken when nothing else is
// there, in whatever steps it comes, and a larger one never.
func TestLargestBodies(t *testing.T) {
	for _, mib := range []int64{4, 64, 65, 96} {
		api, bodies := onArena(t, mib)
		most := bodies.Most()
		if most < mib<<19 {
			t.Fatalf("at most %d bytes of %d MiB", most, mib)
		}
		for _, size := range []int64{most / 4, most / 2, most/2 + 1, most * 3 / 4, most} {
			head := binaryHead(size)
			h := header{"Inference-Header-Content-Length": fmt.Sprint(len(head))}
			for _, length := range []int64{int64(len(head)) + size, -1} {
				if got := stream(api, t.Context(), length, newMetered(head, size), h); got.status != 200 {
					t.Errorf("%d of %d MiB, length %d: %d %s", size, mib, length, got.status, got.body)
				}
			}
			if held := bodies.InUse(); held != 0 {
				t.Fatalf("%d bytes are held", held)
			}
		}
	}
}

// TestNeverFits: what is larger than the whole memory of requests is refused as too large, before more
// of it is read than it takes to know that, and not as if memory were scarce.
func TestNeverFits(t *testing.T) {
	const mib = 4
	api, bodies := onArena(t, mib)
	size := int64(mib<<20 + 1)
	head := binaryHead(size)
	binary := header{"Inference-Header-Content-Length": fmt.Sprint(len(head))}
	raw := header{"Inference-Header-Content-Length": "0"}
	typed := `{"inputs":[{"name":"a","shape":[1048576],"datatype":"FP64","data":[` + strings.Repeat("0,", 1<<20-1) + `0]}]}`
	for _, row := range []struct {
		name   string
		length int64
		body   *metered
		h      header
		most   int64 // that is read
	}{
		{"binary", int64(len(head)) + size, newMetered(head, size), binary, 0},
		{"binary, chunked", -1, newMetered(head, size), binary, 64 << 10},
		{"raw", size, newMetered("", size), raw, 0},
		{"raw, chunked", -1, newMetered("", 64<<20), raw, size + 64},
		{"JSON", int64(len(typed)), newMetered(typed, 0), nil, int64(len(typed))},
		{"JSON, chunked", -1, newMetered(typed, 0), nil, int64(len(typed))},
	} {
		var r Reply
		if row.h == nil {
			row.h = header{}
		}
		api.Serve(t.Context(), &Call{Method: "POST", Path: "/v2/models/m/infer", Header: row.h, Body: row.body, Length: row.length}, &r)
		reason := ""
		for _, f := range r.Fields {
			if f.Name == ReasonHeader {
				reason = f.Value
			}
		}
		got := read(&r)
		if got.status != 400 || reason != string(infer.ReasonTooLarge) || !bytes.Contains([]byte(got.body), []byte("never")) &&
			!bytes.Contains([]byte(got.body), []byte("maximum")) {
			t.Errorf("%s: %d, reason %q, %s", row.name, got.status, reason, got.body)
		}
		if row.body.read > row.most {
			t.Errorf("%s: %d bytes were read, want at most %d", row.name, row.body.read, row.most)
		}
		if held := bodies.InUse(); held != 0 || bodies.Pressed() {
			t.Fatalf("%s: %d bytes are held, pressed %t", row.name, held, bodies.Pressed())
		}
	}
}

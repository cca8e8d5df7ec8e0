package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
)

// noWorkers takes every region and does nothing with it.
type noWorkers struct{}

func (noWorkers) OpenRegion(context.Context, *infer.Region) error { return nil }
func (noWorkers) CloseRegion(context.Context, uint32) error       { return nil }
func (noWorkers) ReadPlace(context.Context, infer.Place) (*infer.Buffer, error) {
	return nil, infer.Errorf(infer.Unsupported, "nothing is read here")
}
func (noWorkers) WritePlace(context.Context, infer.Place, []byte) error { return nil }

// newRegions is a registry in which everybody is a caller of this host.
func newRegions() *regions.Registry {
	r, err := regions.New(regions.Config{}, regions.Deps{Workers: noWorkers{}, Log: slog.New(slog.DiscardHandler),
		Local: func(*infer.Envelope) bool { return true }})
	if err != nil {
		panic(err)
	}
	return r
}

// What a request with regions costs does not grow with the length of its texts times the
// number of its tensors: a body of 64 MB may name thousands of both.
func TestTextsAreNotCopiedForEachRegion(t *testing.T) {
	const outputs = 2000
	id := strings.Repeat("x", 1<<20)
	var b strings.Builder
	b.WriteString(`{"id":"` + id + `","inputs":[{"name":"I","datatype":"FP32","shape":[1],"data":[1]}],"outputs":[`)
	for i := range outputs {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":"O%d","parameters":{"shared_memory_region":"none","shared_memory_byte_size":4}}`, i)
	}
	b.WriteString(`]}`)
	a := newFakeAPI(&fake{}, APIConfig{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := ask(t.Context(), a, "POST", "/v2/models/m/infer", b.String(), nil)
	runtime.ReadMemStats(&after)
	if got.status != 404 || !strings.Contains(got.body, "Unable to find shared memory region: 'none'") {
		t.Fatalf("got %d %.200s", got.status, got.body)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 64*uint64(len(id)) {
		t.Errorf("%d bytes were allocated for a request of %d bytes with %d regions", took, b.Len(), outputs)
	}
}

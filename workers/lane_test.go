package workers_test

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/wire"
)

func TestLaneCarriesBatches(t *testing.T) {
	g := startLocal(t, workers.Config{}, workers.Deps{Backends: identityOnly()}, 4<<20)
	if h := g.hello(t, true); !(h.Lane != 0) || len(h.Backends) != 1 || h.Backends[0].Unavailable != "" {
		t.Fatalf("Hello: %v", h)
	}
	g.load(t, loadRequest(1, fp32Config(nil), 3, 5))
	for i, box := range []int{3, 5, 3, 5} {
		b, data := rowsBatch(uint64(10+i), 2+i, 8)
		g.post(box, g.layOut(t, b, data))
		c, res := g.result(t)
		if c.Batch != b.ID || res.ID != b.ID || int(c.Mailbox) != box || res.More || res.Err != "" {
			t.Fatalf("completion %+v, result %+v, want batch %d of mailbox %d", c, res, b.ID, box)
		}
		if len(res.Outputs) != 1 || res.Outputs[0].Name != "OUTPUT0" || !bytes.Equal(g.data(t, res.Outputs[0]), data) {
			t.Fatalf("batch %d: %+v", b.ID, res)
		}
		g.lane.Release(c.Token)
	}
}

func TestLaneGathersSegmentsAndRefusesNonsense(t *testing.T) {
	g := startLocal(t, workers.Config{}, workers.Deps{Backends: identityOnly()}, 4<<20)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))

	b, data := rowsBatch(1, 3, 4)
	b.Inputs[0].Segments = make([]wire.Segment, 3)
	g.post(0, g.layOut(t, b, data[:16], data[16:32], data[32:]))
	c, res := g.result(t)
	if len(res.Outputs) != 1 || !bytes.Equal(g.data(t, res.Outputs[0]), data) {
		t.Fatalf("gathered: %+v", res)
	}
	g.lane.Release(c.Token)

	b, data = rowsBatch(2, 3, 4)
	b.Rows = 4
	g.post(0, g.layOut(t, b, data))
	c, res = g.result(t)
	if res.Err == "" || res.Code != infer.Internal {
		t.Fatalf("rows that don't add up: %+v", res)
	}
	g.lane.Release(c.Token)

	b, data = rowsBatch(3, 1, 4)
	p := g.layOut(t, b, data)
	b.Inputs[0].Segments[0].Offset = g.requests.Size()
	copy(p.mem, wire.AppendBatch(nil, b))
	g.post(0, p)
	c, res = g.result(t)
	if res.Err == "" {
		t.Fatalf("a segment outside: %+v", res)
	}
	g.lane.Release(c.Token)
}

func TestLaneCancelFlagsReachTheBackend(t *testing.T) {
	g := startLocal(t, workers.Config{}, workers.Deps{Backends: identityOnly()}, 4<<20)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(map[string]string{"execute_delay_ms": "600000"}), 0))
	b, data := rowsBatch(1, 2, 4)
	p := g.layOut(t, b, data)
	g.post(0, p)
	for i := range 2 {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&p.flags[4*i])), 1)
	}
	_, res := g.result(t)
	if res.Code != infer.Cancelled || res.Err == "" {
		t.Errorf("result %+v, want Cancelled", res)
	}
}

func TestLaneFullMemoryIsARefusalUntilItIsReleased(t *testing.T) {
	g := startLocal(t, workers.Config{MemoryWait: 30 * time.Millisecond}, workers.Deps{Backends: identityOnly()}, 64<<10)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	var tokens []uint64
	refused := false
	for id := uint64(1); id < 40 && !refused; id++ {
		b, data := rowsBatch(id, 1, 1024)
		g.post(0, g.layOut(t, b, data))
		c, res := g.result(t)
		if refused = c.NoMemory || res.Err != ""; refused {
			if !c.NoMemory && res.Code != infer.Unavailable {
				t.Fatalf("full memory: %+v %+v, want Unavailable", c, res)
			}
			if !c.NoMemory && res.Reason != infer.ReasonMemory {
				t.Errorf("full memory: reason %q, want %q", res.Reason, infer.ReasonMemory)
			}
		}
		if !c.NoMemory {
			tokens = append(tokens, c.Token)
		}
	}
	if !refused {
		t.Fatal("64 KiB of response memory held 40 results of 4 KiB")
	}
	for _, token := range tokens {
		g.lane.Release(token)
	}
	for id := uint64(100); id < 140; id++ {
		b, data := rowsBatch(id, 1, 1024)
		g.post(0, g.layOut(t, b, data))
		c, res := g.result(t)
		if c.NoMemory || res.Err != "" {
			t.Fatalf("after the release, batch %d: %+v %+v", id, c, res)
		}
		g.lane.Release(c.Token)
	}
}

func TestLaneUnloadFinishesTheBatchInFlight(t *testing.T) {
	g := startLocal(t, workers.Config{}, workers.Deps{Backends: identityOnly()}, 4<<20)
	g.hello(t, true)
	g.load(t, loadRequest(7, fp32Config(map[string]string{"execute_delay_ms": "50"}), 2))
	b, data := rowsBatch(1, 1, 4)
	g.post(2, g.layOut(t, b, data))
	unload(t, g, 7)
	c, res := g.result(t)
	if c.Batch != 1 || res.Err != "" {
		t.Fatalf("%+v %+v", c, res)
	}
	g.lane.Release(c.Token)
	g.lane.ResetMailbox(2)
	g.load(t, loadRequest(8, fp32Config(nil), 2))
	b, data = rowsBatch(2, 1, 4)
	g.post(2, g.layOut(t, b, data))
	if c, res := g.result(t); c.Batch != 2 || res.Err != "" {
		t.Fatalf("after loading again: %+v %+v", c, res)
	}
}

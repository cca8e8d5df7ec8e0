//go:build onnxruntime

package workers_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/shm"
	"github.com/sluice-serve/sluice/workers/wire"
)

// client is a client's memory.
type client struct {
	fd  int
	mem []byte
}

func newClient(t testing.TB, size int64) *client {
	c := &client{fd: must(unix.MemfdCreate("client", unix.MFD_CLOEXEC))(t)}
	if err := unix.Ftruncate(c.fd, size); err != nil {
		t.Fatal(err)
	}
	c.mem = must(unix.Mmap(c.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	t.Cleanup(func() {
		unix.Munmap(c.mem)
		unix.Close(c.fd)
	})
	return c
}

func (g *gateway) openRegion(t testing.TB, c *client, slot uint32) {
	t.Helper()
	if err := shm.PassFile(g.pass, uint64(slot), c.fd); err != nil {
		t.Fatal(err)
	}
	must(g.client.OpenRegion(ctx(t), &worker.OpenRegionRequest{Slot: slot, Name: "r", ByteSize: int64(len(c.mem)), Token: uint64(slot)}))(t)
}

func (g *gateway) closeRegion(t testing.TB, slot uint32) {
	t.Helper()
	must(g.client.CloseRegion(ctx(t), &worker.CloseRegionRequest{Slot: slot}))(t)
}

// regionBatch is one request of width floats, 16 in a row, in each of two inputs, one after
// the other in a region, with both outputs behind them.
func regionBatch(id uint64, slot uint32, width int64) *wire.Batch {
	rows := int(width / 16)
	b := &wire.Batch{ID: id, Rows: rows, Requests: []wire.Request{{Rows: rows, Outputs: []string{"OUTPUT0", "OUTPUT1"}}}}
	for k, name := range []string{"INPUT0", "INPUT1"} {
		b.Inputs = append(b.Inputs, wire.Input{Name: name, Datatype: infer.FP32, Shape: []int64{width / 16, 16},
			Segments: []wire.Segment{wire.InRegion(slot, int64(k)*4*width, 4*width)}})
		b.Requests[0].Places = append(b.Requests[0].Places, wire.InRegion(slot, int64(k+2)*4*width, 4*width))
	}
	return b
}

// postRegions posts a batch that names no data of the request arena.
func (g *gateway) postRegions(t testing.TB, b *wire.Batch) { g.post(0, g.layOutRegions(t, b)) }

func (g *gateway) layOutRegions(t testing.TB, b *wire.Batch) *posted {
	d := wire.AppendBatch(nil, b)
	mem := must(g.requests.Alloc(wire.FlagsOffset(int64(len(d))) + wire.FlagsSize(1)))(t)
	clear(mem)
	copy(mem, d)
	return &posted{mem: mem[:len(d)]}
}

// ONNX Runtime reads its inputs in the client's memory and writes its outputs there.
func TestProcessONNXInPlace(t *testing.T) {
	if os.Getenv("SLUICE_ONNXRUNTIME") == "" {
		t.Skip("SLUICE_ONNXRUNTIME does not name the shared library")
	}
	g, _ := startProcess(t)
	loadONNX(t, g)
	const width = 160
	c := newClient(t, 16*width)
	copy(c.mem, append(floats(width, 5), floats(width, 3)...))
	g.openRegion(t, c, 1)
	g.postRegions(t, regionBatch(1, 1, width))
	done, res := g.result(t)
	if res.Err != "" || len(res.Outputs) != 2 {
		t.Fatalf("%+v", res)
	}
	for k, want := range [][]byte{floats(width, 8), floats(width, 2)} {
		at := int64(k+2) * 4 * width
		if got := res.Outputs[k].Data; got != wire.InRegion(1, at, 4*width) || !bytes.Equal(c.mem[at:][:4*width], want) {
			t.Errorf("output %d lies at %+v", k, got)
		}
	}
	g.lane.Release(done.Token)
	g.closeRegion(t, 1)
	unload(t, g, 1)
}

// The client cuts its memory off while ONNX Runtime's threads are in it: that request
// fails, and the worker lives.
func TestProcessONNXTruncated(t *testing.T) {
	if os.Getenv("SLUICE_ONNXRUNTIME") == "" {
		t.Skip("SLUICE_ONNXRUNTIME does not name the shared library")
	}
	g, _ := startProcess(t)
	loadONNX(t, g)
	const width = 4 << 20
	for round := range 10 {
		slot := uint32(round + 1)
		c := newClient(t, 16*width)
		g.openRegion(t, c, slot)
		g.postRegions(t, regionBatch(uint64(slot), slot, width))
		wait := time.NewTimer(time.Duration(round) * time.Millisecond)
		<-wait.C
		if err := unix.Ftruncate(c.fd, int64(round)*width); err != nil {
			t.Fatal(err)
		}
		done, res := g.result(t)
		if r := res.Responses; res.Err != "" || len(r) > 1 || len(r) == 1 && r[0].Code != infer.InvalidArg || len(r)+len(res.Outputs) == 0 {
			t.Errorf("round %d: %+v", round, res)
		}
		g.lane.Release(done.Token)
		g.closeRegion(t, slot)
	}
	unload(t, g, 1)
}

// BenchmarkONNX is 600 KB in two inputs and as much in two outputs, in the arenas and in a
// client's region.
func BenchmarkONNX(b *testing.B) {
	if os.Getenv("SLUICE_ONNXRUNTIME") == "" {
		b.Skip("SLUICE_ONNXRUNTIME does not name the shared library")
	}
	const width = 75264
	for _, where := range []string{"arena", "region"} {
		b.Run(where, func(b *testing.B) {
			g, cmd := startProcess(b)
			loadONNX(b, g)
			c := newClient(b, 16*width)
			g.openRegion(b, c, 1)
			batch := regionBatch(1, 1, width)
			var data [][]byte
			if where == "arena" {
				batch.Requests[0].Places, batch.Requests[0].Outputs = nil, nil
				data = [][]byte{c.mem[:4*width], c.mem[4*width:][:4*width]}
			}
			var p *posted
			if data != nil {
				p = g.layOut(b, batch, data...)
			} else {
				p = g.layOutRegions(b, batch)
			}
			before := cpuTime(b, cmd.Process.Pid)
			for b.Loop() {
				g.post(0, p)
				done, res := g.result(b)
				if res.Err != "" || len(res.Outputs) != 2 {
					b.Fatalf("%+v", res)
				}
				g.lane.Release(done.Token)
			}
			b.ReportMetric(float64(cpuTime(b, cmd.Process.Pid)-before)/float64(b.N)/1e3, "worker-cpu-us/op")
		})
	}
}

// cpuTime is what a process has used, in nanoseconds.
func cpuTime(t testing.TB, pid int) int64 {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	var user, system int64
	if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return (user + system) * 1e7
}

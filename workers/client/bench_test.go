package client

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// ticks are the CPU time of a process in hundredths of a second.
func ticks(b *testing.B, pid int) (n int64) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	var user, system int64
	if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
		b.Fatal(err)
	}
	return user + system
}

// BenchmarkExecute is one batch after the other on one instance of the identity
// backend, with the CPU time of both processes: 2 KiB in and out for each row.
func BenchmarkExecute(b *testing.B) {
	for _, stream := range []bool{false, true} {
		for _, rows := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("stream=%v/rows=%d", stream, rows), func(b *testing.B) { benchmarkExecute(b, stream, rows) })
		}
	}
}

func benchmarkExecute(b *testing.B, stream bool, rows int) {
	w := start(b, Config{Local: []LocalWorker{as("worker")}, UseStream: stream})
	s := spec(1, nil)
	s.Config.Input, s.Config.Output = s.Config.Input[:1], s.Config.Output[:1]
	v := load(b, w, s)
	defer unload(b, v)
	batch, _ := newBatch(rows, 512)
	batch.Inputs = batch.Inputs[:1]
	mem, err := w.Memory().Alloc(int64(rows) * 2048)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Memory().Free(mem)
	batch.Inputs[0].Segments = [][]byte{mem}
	runBatches(b, w, v, batch)
}

// BenchmarkAnswerAsInput is a batch of 1 MiB whose input is what the worker answered
// before, named where it lies and copied to the request arena.
func BenchmarkAnswerAsInput(b *testing.B) {
	w := start(b, Config{Local: []LocalWorker{as("worker")}})
	s := spec(1, nil)
	s.Config.Input, s.Config.Output = s.Config.Input[:1], s.Config.Output[:1]
	v := load(b, w, s)
	defer unload(b, v)
	batch, results := newBatch(1, 1<<18)
	batch.Inputs = batch.Inputs[:1]
	v.Executor(0).Execute(batch)
	first := wait(b, results)
	defer first.Memory.Release()
	for name, data := range map[string][]byte{"named": first.Outputs[0].Data, "copied": append([]byte(nil), first.Outputs[0].Data...)} {
		b.Run(name, func(b *testing.B) {
			batch.Inputs[0].Segments = [][]byte{data}
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				batch.ID++
				v.Executor(0).Execute(batch)
				wait(b, results).Memory.Release()
			}
		})
	}
}

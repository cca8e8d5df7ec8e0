// Command streams opens many ModelStreamInfer calls to a server on this host, and says
// how much memory the server has before, with one answered request on each, with one
// request waiting on each, and after.
//
//	go run ./bench/streams --address=localhost:8001 --pid=$(pgrep -n sluice) --model=identity
//
// The model takes INPUT0, INT32 [-1], and the parameter delay_ms, as identity does.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/proto/inference"
)

// perConnection is how many streams share a connection.
const perConnection = 1000

type options struct {
	address, model string
	pid, streams   int
	wait           time.Duration
}

func main() {
	var o options
	pflag.StringVar(&o.address, "address", "localhost:8001", "of the server's gRPC port")
	pflag.StringVar(&o.model, "model", "identity", "model with INPUT0, INT32 [-1]")
	pflag.IntVar(&o.pid, "pid", 0, "process of the server")
	pflag.IntVar(&o.streams, "streams", 10000, "streams")
	pflag.DurationVar(&o.wait, "wait", 3*time.Second, "rest before memory is looked at")
	pflag.Parse()
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "streams:", err)
		os.Exit(1)
	}
}

type stream = grpc.BidiStreamingClient[inference.ModelInferRequest, inference.ModelStreamInferResponse]

func run(ctx context.Context, o options) error {
	before, err := resident(o.pid)
	if err != nil {
		return err
	}
	fmt.Printf("before: %.1f MB\n", before/1e6)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams := make([]stream, o.streams)
	for i := 0; i < o.streams; i += perConnection {
		conn, err := grpc.NewClient(o.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		client := inference.NewGRPCInferenceServiceClient(conn)
		for k := i; k < min(i+perConnection, o.streams); k++ {
			if streams[k], err = client.ModelStreamInfer(ctx); err != nil {
				return err
			}
		}
	}
	begin := time.Now()
	if err := each(streams, func(s stream) error { return round(s, o.model, 0, true) }); err != nil {
		return err
	}
	fmt.Printf("%d streams answered once in %v\n", o.streams, time.Since(begin).Round(time.Millisecond))
	if err := report(o, "at rest", before); err != nil {
		return err
	}
	if err := each(streams, func(s stream) error { return round(s, o.model, 60000, false) }); err != nil {
		return err
	}
	if err := report(o, "one request waiting on each", before); err != nil {
		return err
	}
	cancel()
	return report(o, "after all were cancelled", before)
}

// each calls f for all streams, some at a time, and gives the first error.
func each(streams []stream, f func(stream) error) error {
	var wg sync.WaitGroup
	errs, turns := make(chan error, len(streams)), make(chan struct{}, 64)
	for _, s := range streams {
		turns <- struct{}{}
		wg.Go(func() {
			if err := f(s); err != nil {
				errs <- err
			}
			<-turns
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func round(s stream, model string, delay int64, answered bool) error {
	m := &inference.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{{1, 0, 0, 0}},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "INT32", Shape: []int64{1}}}}
	if delay > 0 {
		m.Parameters = map[string]*inference.InferParameter{"delay_ms": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: delay}}}
	}
	if err := s.Send(m); err != nil || !answered {
		return err
	}
	got, err := s.Recv()
	if err == nil && got.ErrorMessage != "" {
		err = fmt.Errorf("answered: %s", got.ErrorMessage)
	}
	return err
}

func report(o options, what string, before float64) error {
	<-time.After(o.wait)
	now, err := resident(o.pid)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %.1f MB, %.1f KB for each stream\n", what, now/1e6, (now-before)/float64(o.streams)/1e3)
	return nil
}

// resident is a process's anonymous memory in bytes.
func resident(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d tells no RssAnon", pid)
}

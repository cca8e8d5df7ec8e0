// Command callers calls a v2 server over HTTP/1.1 and gRPC at one time, in closed loops,
// and checks every answer: what each model adds to its input, which version says so, and
// the sums of sequences.
//
//	callers -address 127.0.0.1:10000 -models echo=0,which=1001:2001,which/1=1001 -callers 8
//	callers -address 127.0.0.1:10000 -sequences sum -sequence-callers 24
//
// -models names each model, or model/version, with the numbers that it may add; one of
// 1000 and more says the version: 2001 is version 2's. Lines on standard input say what
// changes, and each is answered with a line of JSON: "allow which 3001", "forbid which
// 1001" (for calls that begin from then on), "killed" (what is in flight now may fail),
// "count". At "end", or when standard input ends, no further call begins, and the result
// is printed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	address         string
	protocols       []string
	models          []*model
	sequences       string
	callers         int // of each protocol
	sequenceCallers int
	headers         []string // names and values in turn
	distinct        int      // tensors that are sent; 0: each is new
	patience        time.Duration
	grace           time.Duration
	pace            time.Duration
}

func main() {
	o, err := parse(os.Args[1:])
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		err = run(ctx, o, os.Stdin, os.Stdout)
		stop()
	}
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "callers:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("callers", flag.ContinueOnError)
	f.StringVar(&o.address, "address", "127.0.0.1:10000", "host:port of both protocols")
	protocols := f.String("protocols", "http,grpc", "of http, grpc and stream, which is a stream of gRPC for each caller")
	models := f.String("models", "",
		"NAME[/VERSION]=NUMBER[:NUMBER…],…: what each may add to its input INPUT0, for OUTPUT0")
	f.StringVar(&o.sequences, "sequences", "", "a model that sums up VALUE in SUM")
	f.IntVar(&o.callers, "callers", 4, "callers of -models, over each protocol")
	f.IntVar(&o.sequenceCallers, "sequence-callers", 0,
		"callers of -sequences, over each protocol, each with one correlation ID")
	f.Func("header", "NAME=VALUE, sent with each call; several may be given", func(text string) error {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("want NAME=VALUE")
		}
		o.headers = append(o.headers, name, value)
		return nil
	})
	f.IntVar(&o.distinct, "distinct", 0,
		"tensors that are sent, so that answers are found in a cache; 0: each is new")
	f.DurationVar(&o.patience, "patience", 30*time.Second, "the longest that a call may take")
	f.DurationVar(&o.grace, "grace", 100*time.Millisecond,
		"calls that begin so soon after \"killed\" may have been sent to what was killed")
	f.DurationVar(&o.pace, "pace", 0, "a caller's pause between calls")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	for p := range strings.SplitSeq(*protocols, ",") {
		if p != "http" && p != "grpc" && p != "stream" {
			return nil, fmt.Errorf("-protocols %q: want some of http, grpc, stream", *protocols)
		}
		o.protocols = append(o.protocols, p)
	}
	if *models != "" {
		for text := range strings.SplitSeq(*models, ",") {
			m, err := newModel(text)
			if err != nil {
				return nil, err
			}
			o.models = append(o.models, m)
		}
	}
	if o.callers < 0 || o.sequenceCallers < 0 || o.distinct < 0 || o.patience <= 0 || f.NArg() > 0 {
		return nil, errors.New("want numbers of callers, a -patience of more than 0, and flags alone")
	}
	if (len(o.models) == 0 || o.callers == 0) && (o.sequences == "" || o.sequenceCallers == 0) {
		return nil, errors.New("nothing to call: want -models with -callers, or -sequences with -sequence-callers")
	}
	return o, nil
}

// run calls until standard input says that it is enough, or ctx ends.
func run(ctx context.Context, o *options, in io.Reader, out io.Writer) error {
	calling, stop := context.WithCancel(ctx)
	defer stop()
	t := &tally{grace: o.grace, begun: time.Now(), kinds: map[string]*kind{}}
	var all sync.WaitGroup
	for _, p := range o.protocols {
		if len(o.models) > 0 {
			for range o.callers {
				c := &caller{o: o, kind: t.kind(p), rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
				all.Go(func() { c.loop(calling, p, c.unary) })
			}
		}
		if o.sequences != "" {
			for i := range o.sequenceCallers {
				c := &caller{o: o, kind: t.kind(p + " sequences"), rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
				s := newSequence(p, i)
				all.Go(func() { c.loop(calling, p, func(ctx context.Context, via transport) { c.step(ctx, via, s) }) })
			}
		}
	}
	lines := make(chan error, 1)
	go func() { lines <- control(in, out, o, t) }() // it ends with standard input, or with the process
	var err error
	select {
	case err = <-lines:
	case <-ctx.Done():
	}
	stop()
	all.Wait()
	return errors.Join(err, json.NewEncoder(out).Encode(t.results()))
}

// control obeys the lines of standard input until it ends.
func control(in io.Reader, out io.Writer, o *options, t *tally) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		var answer any = struct{}{}
		switch {
		case words[0] == "end":
			return nil
		case words[0] == "count" && len(words) == 1:
			answer = t.counts()
		case words[0] == "killed" && len(words) == 1:
			t.killed()
		case (words[0] == "allow" || words[0] == "forbid") && len(words) == 3:
			if err := permit(o, words[0] == "allow", words[1], words[2]); err != nil {
				return err
			}
		default:
			return fmt.Errorf("standard input: %q is no command", lines.Text())
		}
		if err := json.NewEncoder(out).Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

// permit changes what a model may add.
func permit(o *options, allow bool, name, number string) error {
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	for _, m := range o.models {
		if m.spec == name {
			m.permit(int32(n), allow)
			return nil
		}
	}
	return fmt.Errorf("standard input: %q is none of -models", name)
}

// counts are the calls so far, of all kinds.
func (t *tally) counts() map[string]int {
	sum := map[string]int{}
	for _, k := range t.all() {
		k.mu.Lock()
		sum["calls"] += k.calls
		sum["failed"] += k.failed
		sum["wrong"] += k.wrong
		k.mu.Unlock()
	}
	return sum
}

// results are what each kind of caller has seen.
func (t *tally) results() map[string]result {
	out := map[string]result{}
	for name, k := range t.all() {
		out[name] = k.result(time.Since(t.begun))
	}
	return out
}

func (t *tally) all() map[string]*kind {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.kinds)
}

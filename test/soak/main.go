// Command soak holds a real server between honest clients, whose every answer is checked,
// and hostile ones, and compares what it holds at rest with what it held at first.
//
//	soak -server bin/sluice -seconds 600            # all of it at random, by a seed
//	soak -server bin/sluice -each 2s                # one attack after the other, with its figures
//	soak -server bin/sluice -only h2-rapid-reset -each 10s
//	soak -server bin/sluice -churn -seconds 3600    # models, cache, regions and calls at random
//
// It starts the server itself, on free ports of the loopback address and with models of
// its own, and ends it. It exits with 1 when the server went down, an honest client got a
// wrong answer, an error or a late one, memory passed the bound, or something was left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	server, folder     string
	http, grpc         string // transports
	seconds            int
	each               time.Duration // 0: a soak
	only               string        // parts of attacks' names, by commas; "": all
	seed               uint64
	tls, calm, verbose bool
	churn              bool
	pace               time.Duration // of a churn's clients
	kills              bool
	patience           time.Duration // the longest that an honest call may take
	memory             int64         // MiB that the gateway may hold
}

func main() {
	o, err := parse(os.Args[1:])
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		err = run(ctx, o)
		stop()
	}
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.StringVar(&o.server, "server", "bin/sluice", "the server's program")
	f.StringVar(&o.folder, "folder", "", "where models, log and ports are kept; a temporary folder if not given")
	f.StringVar(&o.http, "http-transport", "sluice", "sluice or library")
	f.StringVar(&o.grpc, "grpc-transport", "sluice", "sluice or library")
	f.IntVar(&o.seconds, "seconds", 600, "of the soak")
	f.DurationVar(&o.each, "each", 0, "run one attack after the other for so long, and no soak")
	f.StringVar(&o.only, "only", "", "attacks, or a churn's clients, whose names begin so, by commas")
	f.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of all that is random")
	f.BoolVar(&o.tls, "tls", false, "HTTP and gRPC speak TLS")
	f.BoolVar(&o.calm, "calm", false, "no hostile clients")
	f.BoolVar(&o.churn, "churn", false, "reloads, cached answers, regions and cancellation at random, and no hostile clients")
	f.DurationVar(&o.pace, "pace", 200*time.Millisecond, "a client's mean pause between exchanges of a churn")
	f.BoolVar(&o.kills, "kills", true, "kill workers in between")
	f.BoolVar(&o.verbose, "verbose", false, "say when each attack begins and ends")
	f.DurationVar(&o.patience, "patience", 60*time.Second, "the longest that an honest exchange, of several calls maybe, may take")
	f.Int64Var(&o.memory, "memory", 832, "MiB that the gateway may hold at any time")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.pace <= 0 {
		return nil, errors.New("-pace must be more than 0")
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("'%s' is not a flag", f.Arg(0))
	}
	server, err := filepath.Abs(o.server)
	o.server = server
	return o, err
}

// chosen are the attacks that the options name and that the server's set-up takes.
func (o *options) chosen() []attack {
	var out []attack
	for _, a := range attacks() {
		if a.tls && !o.tls || a.own && (o.http != "sluice" || o.grpc != "sluice") || !o.wants(a.name) {
			continue
		}
		out = append(out, a)
	}
	return out
}

// wants says that -only has an attack, or a kind of client, of that name.
func (o *options) wants(name string) bool {
	return o.only == "" || slices.ContainsFunc(strings.Split(o.only, ","), func(p string) bool { return strings.HasPrefix(name, p) })
}

func run(ctx context.Context, o *options) (err error) {
	if o.folder == "" {
		if o.folder, err = os.MkdirTemp("", "soak-"); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				err = os.RemoveAll(o.folder)
			} else {
				err = fmt.Errorf("%w\nlog and models: %s", err, o.folder)
			}
		}()
	}
	fmt.Printf("seed %d, %s over HTTP, %s over gRPC, TLS %t\n", o.seed, o.http, o.grpc, o.tls)
	s, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	r, err := newRunner(ctx, o, s)
	if err != nil {
		return err
	}
	defer r.close()
	if o.churn {
		return newChurn(r, s).run(ctx)
	}
	if o.each > 0 {
		return r.oneByOne(ctx, o.chosen())
	}
	return r.soak(ctx, o.chosen())
}

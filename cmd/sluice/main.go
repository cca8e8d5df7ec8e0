// Command sluice is the gateway: it serves model repositories over the v2 inference
// protocol and starts the workers that execute them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-serve/sluice/cmd/internal/timerslack"
	"github.com/sluice-serve/sluice/cmd/internal/wakelatency"
	"github.com/sluice-serve/sluice/cmd/sluice/internal/access"
	"github.com/sluice-serve/sluice/cmd/sluice/internal/flags"
	"github.com/sluice-serve/sluice/cmd/sluice/internal/health"
	"github.com/sluice-serve/sluice/cmd/sluice/internal/models"
	"github.com/sluice-serve/sluice/cmd/sluice/internal/xds"
	"github.com/sluice-serve/sluice/gateway"
	"github.com/sluice-serve/sluice/gateway/modelconfig"
)

// version is set by the build (-ldflags -X main.version=…).
var version = "0.1.0"

const usage = `sluice serves machine-learning models over the v2 inference protocol.

Usage:
  sluice serve --model-repository=DIR [flags]   serve (sluice serve --help lists the flags)
  sluice check DIR [DIR…]                       say what would be served from a repository, and what is wrong
  sluice engines [flags]                        list the libraries that compute models: found or not, and how to get them
  sluice models COMMAND [flags]                 list, load, unload and watch the models of a running server
  sluice xds COMMAND [flags]                    run the control plane of a fleet, write an Envoy's bootstrap
  sluice health [flags]                         ask a running server whether it is ready
  sluice keys new NAME                          make an API key
  sluice policy check FILE                      say what is wrong with a policy, or what it decides
  sluice version                                print the version
`

// gcPercent is how much the heap grows between two collections; less with a large cache.
const gcPercent = 400

func main() {
	if err := timerslack.Narrow(); err != nil {
		fmt.Fprintln(os.Stderr, "sluice: timers are late:", err)
	}
	// The request path's memory lies in arenas, so the live heap is a few megabytes:
	// collecting at four times of it costs nothing and saves CPU (docs/performance.md).
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	var err error
	status := 1 // of an error
	switch command {
	case "serve":
		err = serve(ctx, args[1:], stdout)
	case "check":
		err = check(ctx, args[1:], stdout)
	case "engines":
		err = engines(ctx, args[1:], stdout)
	case "models":
		err = models.Run(ctx, args[1:], stdout, stderr)
		status = models.Status(err)
	case "keys":
		err = access.Keys(args[1:], stdout, stderr)
	case "policy":
		err = access.Policy(args[1:], stdout)
	case "health":
		err = health.Run(ctx, args[1:], os.LookupEnv, stdout)
		status = health.Status(err)
	case "xds":
		err = xds.Run(ctx, args[1:], stdout, stderr)
	case "version", "--version":
		_, err = fmt.Fprintln(stdout, "sluice", version)
	case "help", "--help", "-h":
		_, err = io.WriteString(stdout, usage)
	default:
		_, err = io.WriteString(stderr, usage+"\n")
		err = errors.Join(err, noCommand(args))
	}
	if err != nil {
		fmt.Fprintln(stderr, "sluice:", err)
		return status
	}
	return 0
}

// noCommand says what is wrong with a command line that has no command of ours.
func noCommand(args []string) error {
	if len(args) == 0 {
		return errors.New("give a command: serve, check, engines, models, keys, policy, health, xds or version")
	}
	if strings.HasPrefix(args[0], "-") {
		return fmt.Errorf("the command comes before the flags: sluice serve %s", strings.Join(args, " "))
	}
	if near := modelconfig.Nearest(args[0], []string{"serve", "check", "engines", "models", "keys", "policy", "health", "xds", "version", "help"}); near != "" {
		return fmt.Errorf("no command '%s'; did you mean '%s'?", args[0], near)
	}
	return fmt.Errorf("no command '%s'", args[0])
}

// timerSlack is how late a timer of Go's monitor thread may be.
const timerSlack = 4 * time.Millisecond

func serve(ctx context.Context, args []string, stdout io.Writer) error {
	s, err := flags.ParseServe(args, os.LookupEnv)
	if err != nil {
		return err
	}
	if s.Help {
		return flags.Usage(stdout)
	}
	slack := timerslack.Widen(timerSlack) // does not return when it works
	threads()
	if s.WakeLatency >= 0 {
		held, err := wakelatency.Hold(wakelatency.Device, s.WakeLatency)
		if err != nil {
			return fmt.Errorf("--cpu-wake-latency-us: %w", err)
		}
		defer held.Close()
	}
	s.Config.Version = version
	debug.SetGCPercent(s.Config.Cache.GCPercent(gcPercent))
	if err := outside(&s.Config); err != nil {
		return err
	}
	g, err := gateway.New(ctx, s.Config)
	if err != nil {
		return err
	}
	if slack != nil {
		g.Log().Warn("the timers stay exact, which costs CPU", "error", slack)
	}
	for _, n := range s.Notices {
		g.Log().Warn(n)
	}
	return g.Run(ctx)
}

// threads lets one more thread run at once than there are cores, for each four of them,
// unless GOMAXPROCS says how many: loops count as running while they wait in epoll
// (gateway/loop).
func threads() {
	if n := runtime.GOMAXPROCS(0); os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n + max(1, n/4))
	}
}

func check(ctx context.Context, args []string, stdout io.Writer) error {
	s, err := flags.ParseCheck(args, os.LookupEnv)
	if err != nil {
		return err
	}
	if s.Help {
		_, err := io.WriteString(stdout, "Usage: sluice check DIR [DIR…] [flags of sluice serve]\n\n"+
			"Says for each model what was completed, what will be loaded where, and what is wrong.\n"+
			"Nothing is loaded and nothing is listened on.\n")
		return err
	}
	if err := outside(&s.Config); err != nil {
		return err
	}
	return gateway.Check(ctx, s.Config, stdout)
}

func engines(ctx context.Context, args []string, stdout io.Writer) error {
	s, err := flags.ParseEngines(args, os.LookupEnv)
	if err != nil {
		return err
	}
	if s.Help {
		_, err := io.WriteString(stdout, "Usage: sluice engines [flags of sluice serve]\n\n"+
			"Lists the libraries that compute models, for each backend: its version or that it is missing, where it is or\n"+
			"was looked for, and the command that brings it. It starts the workers that serve would start, and ends them.\n")
		return err
	}
	return gateway.Engines(ctx, s.Config, stdout)
}

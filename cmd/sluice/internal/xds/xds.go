// Package xds is `sluice xds`: the control plane of a fleet as a process of its own, and
// what an Envoy must be started with.
package xds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/gateway/stats"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
	"github.com/sluice-serve/sluice/xds"
	"github.com/sluice-serve/sluice/xds/bootstrap"
	"github.com/sluice-serve/sluice/xds/fleet"
	"github.com/sluice-serve/sluice/xds/plane"
)

// Usage is the help of `sluice xds`.
const Usage = `Usage: sluice xds --config FILE [flags]        run the control plane of the fleet in FILE (docs/0013-control-plane.md)
       sluice xds check FILE                   say what is wrong with a topology
       sluice xds bootstrap [flags]            write what an Envoy is started with to standard output

Flags of the control plane:
`

// options are the flags of the control plane.
type options struct {
	config       string
	address      string
	port         int
	socket       string
	tls          listen.TLS
	interval     time.Duration
	timeout      time.Duration
	batch, grace time.Duration
	portFile     string
	state        string
	envoys       []string
	scope        string // of sequences
	metrics      metricsFlags
	help         bool
	limits       limitFlags
	identity     identityOptions
}

// Run does what args, those after `sluice xds`, say.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "bootstrap":
			return writeBootstrap(args[1:], stdout)
		case "check":
			return check(args[1:], stdout)
		}
	}
	o, fs := flags()
	if err := fs.Parse(args); err != nil && !errors.Is(err, pflag.ErrHelp) {
		return fmt.Errorf("%w (sluice xds --help lists the flags)", err)
	}
	if o.help || len(args) == 0 {
		_, err := io.WriteString(stdout, Usage+fs.FlagUsages()+"\nFlags of bootstrap:\n"+bootstrapHelp())
		return err
	}
	if rest := fs.Args(); len(rest) > 0 {
		return fmt.Errorf("'%s' is neither a flag nor one of bootstrap, check", rest[0])
	}
	if o.config == "" {
		return errors.New("--config names the topology")
	}
	return o.run(ctx, stderr)
}

func flags() (*options, *pflag.FlagSet) {
	d := xds.DefaultRollout()
	o := &options{}
	fs := pflag.NewFlagSet("sluice xds", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SortFlags = false
	fs.BoolVarP(&o.help, "help", "h", false, "print this")
	fs.StringVar(&o.config, "config", "", "the topology, YAML; read again when it changes")
	fs.StringVar(&o.address, "xds-address", "127.0.0.1", "address to listen on")
	fs.IntVar(&o.port, "xds-port", 18000, "port to listen on; 0 takes any free one")
	fs.StringVar(&o.socket, "xds-unix-socket", "", "Unix socket to listen on as well")
	fs.StringVar(&o.tls.Cert, "xds-cert", "", "PEM file of the certificate shown to Envoys")
	fs.StringVar(&o.tls.Key, "xds-key", "", "PEM file of its key")
	fs.StringVar(&o.tls.Root, "xds-root-cert", "", "PEM file of the roots of Envoys' certificates, which they must show then")
	fs.StringSliceVar(&o.envoys, "xds-envoy", nil, "DNS name or URI in the certificates of Envoys; more by repetition; none: whoever the roots signed")
	fs.DurationVar(&o.interval, "interval", 250*time.Millisecond, "time between two looks at files and gateways")
	fs.DurationVar(&o.timeout, "timeout", 2*time.Second, "what one look at a gateway may take")
	fs.DurationVar(&o.batch, "batch", d.Batch, "how long a change waits for others")
	fs.DurationVar(&o.grace, "grace", d.Grace, "how long what nothing refers to any more stays")
	fs.StringVar(&o.state, "state", "", "file in which the targets of routes outlive this process, so that a switch goes on after a restart")
	fs.StringVar(&o.scope, "sequence-scope", infer.SequencesByTenant.String(),
		"the gateways' --sequence-scope, for the endpoint picker: tenant, caller or none")
	o.metrics.add(fs)
	o.limits.add(fs)
	o.identity.add(fs)
	fs.StringVar(&o.portFile, "port-file", "", "write the ports listened on to this file, as JSON")
	return o, fs
}

func (o *options) run(ctx context.Context, stderr io.Writer) error {
	// Envoys and callers may make a place log for each of their requests.
	handler := slog.NewTextHandler(stderr, &slog.HandlerOptions{ReplaceAttr: logging.Cut})
	log := slog.New(logging.Bounded(handler, logging.DefaultSettings().Rate))
	return o.metrics.serve(ctx, func(m *stats.Registry) error {
		return o.limits.serve(ctx, log, m, func(limits []func(grpc.ServiceRegistrar)) error {
			return o.identity.serve(ctx, log, m, func(authz []func(grpc.ServiceRegistrar)) error {
				return o.plane(ctx, log, m, append(limits, authz...))
			})
		})
	})
}

// plane runs the control plane with further services.
func (o *options) plane(ctx context.Context, log *slog.Logger, metrics *stats.Registry, register []func(grpc.ServiceRegistrar)) error {
	o.tls.Mutual = o.tls.Root != ""
	if err := errors.Join(o.tls.Validate(), plane.Exposed(o.address, o.tls.Mutual)); err != nil {
		return err
	}
	if len(o.envoys) > 0 && !o.tls.Mutual {
		return errors.New("--xds-envoy needs --xds-root-cert, by which Envoys show certificates")
	}
	scope, err := infer.ParseSequenceScope(o.scope)
	if err != nil {
		return fmt.Errorf("--sequence-scope: %w", err)
	}
	listeners, err := listen.Open(ctx, listen.Config{Address: o.address, Port: o.port, UnixSocket: o.socket})
	if err != nil {
		return err
	}
	deps := plane.Deps{Log: log, Listeners: listeners, Register: register, Reloaded: metrics.Reload("topology").Done}
	if o.tls.Cert != "" {
		certificates, err := o.certificates(log, metrics)
		if err != nil {
			return err
		}
		deps.TLS = certificates.Config()
		var watching sync.WaitGroup
		defer watching.Wait()
		running, stop := context.WithCancel(ctx)
		defer stop()
		watching.Go(func() { certificates.Run(running) })
	}
	cfg := plane.Config{Fleet: fleet.Config{File: o.config, Interval: o.interval, Timeout: o.timeout},
		Rollout: xds.DefaultRollout(), State: o.state, Envoys: o.envoys, SequenceScope: scope}
	cfg.Rollout.Batch, cfg.Rollout.Grace = o.batch, o.grace
	p, err := plane.New(cfg, deps)
	if err != nil {
		return err
	}
	metrics.Add(p.Metrics)
	if o.portFile != "" {
		if err := writePorts(o.portFile, map[string]int{"xds": portOf(listeners[0].Addr()), "metrics": o.metrics.bound}); err != nil {
			return err
		}
	}
	return p.Run(ctx)
}

// certificates reads those that Envoys are shown. Later readings are logged, and counted.
func (o *options) certificates(log *slog.Logger, metrics *stats.Registry) (*listen.Certificates, error) {
	reload := metrics.Reload("xds certificates")
	c, err := o.tls.Open(func(err error) {
		reload.Done(err)
		if err != nil {
			log.Error("the old certificates stay in use", "error", err)
			return
		}
		log.Info("certificates were read again")
	}, "h2")
	if err == nil {
		reload.Done(nil)
	}
	return c, err
}

// maxTopology bounds the bytes of a topology that is checked, as of one that is run.
const maxTopology = 8 << 20

// portOf is a TCP address's port; 0: it has none.
func portOf(at net.Addr) int {
	if t, ok := at.(*net.TCPAddr); ok {
		return t.Port
	}
	return 0
}

// writePorts writes the ports by what they are for into a file that appears whole.
func writePorts(file string, ports map[string]int) error {
	data, err := json.Marshal(ports)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".ports-*") // nobody can have made a link of that name
	if err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("port file: %w", err), os.Remove(tmp.Name()))
	}
	return nil
}

func check(args []string, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("sluice xds check takes one file")
	}
	data, err := configfile.Read(args[0], maxTopology)
	if err != nil {
		return err
	}
	t, err := xds.Parse(data)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	_, err = fmt.Fprintf(stdout, "%s: %d gateways, %d routes\n", args[0], len(t.Gateways), len(t.Routes))
	return err
}

// bootstrapFlags are the flags of `sluice xds bootstrap`.
func bootstrapFlags() (*bootstrap.Config, *bootstrap.TLS, *pflag.FlagSet) {
	c, t := bootstrap.Default(), &bootstrap.TLS{}
	fs := pflag.NewFlagSet("sluice xds bootstrap", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SortFlags = false
	fs.StringSliceVar(&c.ControlPlanes, "xds", c.ControlPlanes, "host:port or unix:/path of control planes")
	fs.StringVar(&c.Node, "node", c.Node, "name of this Envoy")
	fs.StringVar(&c.Cluster, "cluster", c.Cluster, "name of the group of Envoys that it belongs to")
	fs.StringVar(&c.Zone, "zone", c.Zone, "its zone; gateways there come first")
	fs.BoolVar(&c.Delta, "delta", c.Delta, "the delta protocol in place of the state of the world")
	fs.StringVar(&c.Admin, "admin", c.Admin, "ip:port of Envoy's admin interface")
	fs.Int64Var(&c.MaxConnections, "max-connections", c.MaxConnections, "connections of callers")
	fs.StringVar(&t.CA, "ca", "", "PEM file of the roots of the control plane's certificate")
	fs.StringVar(&t.Cert, "cert", "", "PEM file of the certificate shown to the control plane")
	fs.StringVar(&t.Key, "key", "", "PEM file of its key")
	fs.StringVar(&t.Name, "server-name", "", "DNS name in the control plane's certificate")
	return &c, t, fs
}

func bootstrapHelp() string {
	_, _, fs := bootstrapFlags()
	return fs.FlagUsages()
}

func writeBootstrap(args []string, stdout io.Writer) error {
	c, t, fs := bootstrapFlags()
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			_, err = io.WriteString(stdout, "Flags of sluice xds bootstrap:\n"+fs.FlagUsages())
		}
		return err
	}
	if rest := fs.Args(); len(rest) > 0 {
		return fmt.Errorf("'%s' is not a flag", strings.Join(rest, " "))
	}
	if t.CA != "" {
		c.TLS = t
	}
	data, err := bootstrap.YAML(*c)
	if err != nil {
		return err
	}
	_, err = stdout.Write(data)
	return err
}
